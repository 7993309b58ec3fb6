"""Truth: predictions beside published measurements, of kernels, collectives and whole iterations."""
