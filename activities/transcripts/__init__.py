"""What a session's transcript needs done outside of its workflow: summaries, segments of old entries, recall (R10.11 to R10.13)."""
