"""Mixed clusters: pipelines whose stages divide a batch over devices of several kinds, each in groups of a degree of its own.

The names below load their modules, and with them numba, when they are first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
