"""What a worker carries out now: calls in threads, and what becomes of all when the worker ends."""
