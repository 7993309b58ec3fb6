"""Terminal: what every door shares: words of a command line, tables and documents, how a command ends."""
