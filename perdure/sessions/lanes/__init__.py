"""The lane of a session: what is accepted, what it does, what waits, and who may do what."""
