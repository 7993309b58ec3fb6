"""Modern schedules: makespan against peak memory of all flushed families, of searched orders, and of the bound."""
