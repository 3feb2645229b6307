"""Approvals: which calls a person is asked about, what waits for a decision, and what a decision does."""
