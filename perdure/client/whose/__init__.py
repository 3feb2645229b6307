"""Whose runs and sessions are, and which start is whose: tenants and keys, as the server keeps them."""
