"""Training: the numerical replay of a timeline with a real network on real data, and methods compared on many seeds."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
