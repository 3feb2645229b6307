"""What is written and remembered: JSON, paths, references, templates, schemas, messages and the state they add up to."""
