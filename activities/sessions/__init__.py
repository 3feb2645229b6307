"""What a session does to its runs through activities."""
