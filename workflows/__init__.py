"""Orchestration only: what to start when, decided by `perdure` and carried out by activities called by name."""
