"""BaPipe: what its explorer finds, and where its claims hold."""
