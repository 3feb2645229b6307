"""A worker's hooks: those that it has, and how they are called (R10.17)."""
