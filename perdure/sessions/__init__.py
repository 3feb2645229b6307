"""A conversation that outlives its runs: what it accepts, what it keeps, and what is told of it to a model (section 10)."""
