"""Following a run or a session while something happens in it: events as lines for readers, and for programs."""
