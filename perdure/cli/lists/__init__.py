"""Commands on many runs at once, chosen by what visibility knows of them: list, cancel, policy."""
