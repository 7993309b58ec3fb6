"""Memory: one list of what a program takes and frees; the reader of its times, and the compiled reader of its peaks."""
