"""What a tool is: its definition, `@tool`, its schema and meta-properties."""
