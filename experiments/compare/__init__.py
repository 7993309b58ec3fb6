"""Compare: a problem by its options, its plans in files, and several planners side by side."""
