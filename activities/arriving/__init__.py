"""An answer as it arrives: its bytes cut into events, its calls delivered, its text told."""
