"""Search: the evaluator that scores plans, candidates worth a score, bounds, and the result."""
