"""Who is asked, what waits, and what a decision does."""
