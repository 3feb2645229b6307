"""The command line: `perdure …`, and `python client.py …`, which is the same (section 11)."""
