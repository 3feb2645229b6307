"""What the model has been told: new messages that wait for a Request, and what became of the calls of its own."""
