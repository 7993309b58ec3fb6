"""XPipe: which of its claims hold."""
