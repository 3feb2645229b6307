"""Models: dialects, schemas of Solutions, streamed responses, providers' errors, and usage."""
