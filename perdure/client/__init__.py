"""Clients of runs and sessions: start, watch, decide, audit, through a Temporal client."""
