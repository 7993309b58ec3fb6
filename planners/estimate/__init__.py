"""Estimate: seconds and bytes of stages in closed form, which searches rank candidates by; replays judge the best of them."""
