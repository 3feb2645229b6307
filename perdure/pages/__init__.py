"""HTML pages: the inbox in which people decide, conversations, runs, costs, and the sign-in (sections 7 and 17)."""
