"""Activities: requests to models, tools, hooks, queries, and the worker's own records."""
