"""Schedule search: how near its optimum the searching scheduler comes, how fast, and how far ahead of the known families."""
