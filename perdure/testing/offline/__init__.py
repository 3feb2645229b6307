"""What needs no server: plans checked, and plans and values made from schemas (R14.1, R14.4)."""
