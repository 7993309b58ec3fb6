"""Experiments: questions asked of the simulator and the planners, and the command line."""

import sys

import lazy_loader

from experiments.terminal.stops import loading_failed

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

if (sys.argv[:1] == ["-m"] and any(word.startswith(f"{__name__}.") for word in sys.orig_argv)) or (
    sys.argv and sys.argv[0].replace("\\", "/").rpartition("/")[2] in ("pipeplan", "pipeplan.exe")
):
    # of the command, or of `python -m experiments.NAME`, which load their module before `guarded` can catch anything
    sys.excepthook = loading_failed
