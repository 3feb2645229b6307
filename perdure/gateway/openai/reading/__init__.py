"""What requests ask for: their bodies key by key, their input, and what both come to (R17.2)."""
