"""Reading events for whoever watches: each run and each session once, however many watch it, and no watcher waits for another (R10.15)."""
