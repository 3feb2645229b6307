"""The commands to begin with: a project, the schema of agent files, the tools that there are."""
