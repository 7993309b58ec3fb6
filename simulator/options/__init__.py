"""Options: what a user may set on a problem, declared once; imports little, so that help prints at once."""
