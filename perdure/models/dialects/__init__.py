"""Dialects: the forms in which a model may write a Solution, and one reader for each."""
