"""The command line: `perdure …`, and the same as `python client.py …` (section 11)."""
