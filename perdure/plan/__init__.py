"""Calls as a data-flow graph: which is ready, how each ends, and what a dry run of them tells."""
