"""Plans: calls as a dependency graph, their scheduler, loops, validation, and simulation."""
