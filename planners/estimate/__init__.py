"""Estimate: seconds and bytes of stages in closed form, by which searches rank candidates before replays judge the best of
them.
"""
