"""A script: its lines, its statements, what they say as calls of a plan, and calls as lines again (R9.2, R16.4)."""
