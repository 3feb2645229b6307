"""A support desk: one conversation of a customer and a colleague with an agent, over a restart."""
