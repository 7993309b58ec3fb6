"""Piper: pipelines of layers with variants on published inputs, beside what the published program finds."""
