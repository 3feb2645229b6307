"""What a session's run says to people: what of it is to be said, in which parts, and which function of the worker's takes it there (R10.16)."""
