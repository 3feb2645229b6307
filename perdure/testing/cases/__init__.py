"""Cases: production runs written down, and played again against the code and the agent of today (R14.6)."""
