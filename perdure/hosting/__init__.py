"""Putting it together where it runs: connection, storage, telemetry, settings, the worker and the embedded server."""
