"""Tools: definitions, the `@tool` decorator, and what a call sends to its activity."""
