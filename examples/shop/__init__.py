"""A support desk for a shop: FastAPI, SQLite, one conversation for each customer, refunds that a person approves."""
