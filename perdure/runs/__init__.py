"""Runs: one run as a state machine, from Request to Request, and its views."""
