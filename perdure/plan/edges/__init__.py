"""Who reads what of whom: the edges of a plan, and the cycles that they may form."""
