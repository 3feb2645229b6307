"""What a model is told and what it answers: dialects, the composed schema, what stands of a stream, tokens and money."""
