"""Spans of runs, by OpenTelemetry's conventions for generative AI: their names, who makes them, and how they hang together."""
