"""What a prompt has beside what Perdure teaches and what the agent says: instructions, skills and a workspace's files, as recorded (R10.19)."""
