"""What a call says of being made: once, only if something holds, for each item, or until something is true (R8.5, R8.6, R16)."""
