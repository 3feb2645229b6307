"""What a session's workflow does beside keeping its lane: its runs, and what they leave."""
