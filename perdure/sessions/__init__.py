"""Sessions: conversations that outlive their runs."""
