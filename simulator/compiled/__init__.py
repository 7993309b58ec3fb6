"""What numba compiles, said once."""
