"""Search: the evaluator that scores plans, candidates worth a score, and the result."""
