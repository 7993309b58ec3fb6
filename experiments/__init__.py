"""Experiments: questions asked of the simulator and the planners, and the command line."""

import sys

import lazy_loader

from experiments.terminal.exits import loading_failed

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

if sys.argv[:1] == ["-m"] and any(word.startswith(f"{__name__}.") for word in sys.orig_argv):
    # of `python -m experiments.NAME`, which loads its module before `guarded` can catch anything
    sys.excepthook = loading_failed
