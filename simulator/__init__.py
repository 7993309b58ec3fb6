"""Simulator: workloads, schedules, engines and timelines.

The modules `engine` (SimPy), `recurrence` and `event_loop` (both compiled) replay programs; each has a `replay` of its own.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
