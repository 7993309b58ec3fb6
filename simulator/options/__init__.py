"""Options: what a user may say of a problem, declared once; loads so little that help is printed at once."""
