"""Replies on their way to people, by functions of the worker's."""
