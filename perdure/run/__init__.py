"""One run, from Request to Request: the agent, its limits, its delegates and loops, and what crosses the boundary."""
