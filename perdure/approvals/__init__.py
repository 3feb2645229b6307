"""Approvals: the calls that need a person, the requests that wait for a decision, and the effect of each decision."""
