"""`perdure serve` and `perdure token`: the gateway put together, and whom it lets in (section 17)."""
