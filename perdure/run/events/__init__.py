"""What happens in a run or a session, as events that others read (R10.14): which there are, where a reader is, what is kept, what crosses."""
