"""Everything with an effect: asking the model, running tools, reading what the worker has."""
