"""What is shown of a run: calls, plans, the whole run, as data, as Markdown and as a picture."""
