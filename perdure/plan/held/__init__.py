"""Calls that are held when a new message comes, and a plan that goes on under the next Request (R10.5)."""
