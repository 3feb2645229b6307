"""Providers of models: the forms in which servers take a Request and stream the answer."""
