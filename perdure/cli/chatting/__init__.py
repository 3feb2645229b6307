"""`perdure chat`: a session in a terminal, or in a pipe. It stands on the Python API, and on the events that everybody reads."""
