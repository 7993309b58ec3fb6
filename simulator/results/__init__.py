"""Results: what is read off a timeline: memory, weight versions, steady state, figures, tables, traces."""
