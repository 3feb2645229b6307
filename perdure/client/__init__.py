"""Runs from outside, through a Temporal client: starting, following, deciding, auditing."""
