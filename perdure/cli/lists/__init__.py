"""Commands on runs that were: many at once, chosen by what visibility knows of them (list, cancel, policy), and their histories."""
