"""What is shown on a terminal, or written into a pipe: as wide as there is room, never higher, in the characters that it takes."""
