"""Random cases and a plain interpreter of the protocol, to compare the engine with."""
