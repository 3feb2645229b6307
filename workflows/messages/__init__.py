"""Messages for a run that works."""
