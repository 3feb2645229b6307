"""The demo: a scripted model server, real tools over a real folder, and what the model answers."""
