"""Experiments: questions asked of the simulator and the planners, and the command line."""

import sys

from experiments.terminal.stops import stopped_from_the_start

if (sys.argv[:1] == ["-m"] and any(word.startswith(f"{__name__}.") for word in sys.orig_argv)) or (
    sys.argv and sys.argv[0].replace("\\", "/").rpartition("/")[2] in ("pipeplan", "pipeplan.exe")
):
    # of the command, or of `python -m experiments.NAME`, which load their module before `guarded` can catch anything
    stopped_from_the_start()

import lazy_loader  # behind the above: an interrupt may come while it is loaded

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
