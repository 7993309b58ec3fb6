"""Variants: stages of layers that can each run in several ways, as Piper searches them."""
