"""Planners: search for a good plan of a problem.

Names are loaded from their modules when they are first asked for, so that `pipeplan --help` stays quick.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
