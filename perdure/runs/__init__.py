"""Runs: one run as a state machine, from Request to Request, and what is shown of it."""
