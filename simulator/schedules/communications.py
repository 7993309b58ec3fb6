"""Communications: the ways in which transfers and computation share a device; `simulator.lowering.lower` says what each does."""

from __future__ import annotations

from typing import Literal, get_args

Communication = Literal["overlapped", "send-blocking", "both-blocking", "streaming", "free"]
COMMUNICATIONS: tuple[str, ...] = get_args(Communication)
