"""`perdure inbox`: a page on which people decide what waits (section 7)."""
