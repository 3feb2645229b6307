"""Agents as people write them: in files and in Python."""
