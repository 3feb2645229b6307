"""What operators see of a worker: its health, its log, and what it counts of the namespace."""
