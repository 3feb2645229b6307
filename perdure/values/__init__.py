"""Values: JSON, references, templates, formulas, schemas, state, messages, provenance, and their limits."""
