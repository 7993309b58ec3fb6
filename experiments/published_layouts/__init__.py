"""Published layouts of large runs, as plans: the model's seconds beside what was told, and plans of our own."""
