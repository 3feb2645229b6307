"""The programs around the engine: connection, storage, telemetry, settings, the worker and the embedded server."""
