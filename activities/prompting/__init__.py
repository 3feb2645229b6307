"""What of a prompt stands in files of the worker: skills and a workspace's bootstrap files, read at a run's start; and skills as a model reads them."""
