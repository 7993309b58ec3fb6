"""Unequal micro-batches: every stage has its own forward and backward block size (UMPIPE, TPDS 36(2), 2025).

The names below load their modules, and with them numba, when they are first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
