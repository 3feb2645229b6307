"""Agents as people write them: as files, and in Python, which is the same thing both ways (R13.2)."""
