"""Network rules: what the sharing of links changes about the order of plans, and about the plan that is chosen."""
