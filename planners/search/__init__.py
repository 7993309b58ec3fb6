"""Search: the evaluator that scores plans, the candidates that planners score, and the result of a search."""
