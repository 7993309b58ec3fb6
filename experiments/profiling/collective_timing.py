"""Collective timing: seconds of collectives between the devices of one machine, through torch.distributed, a process each.

GPUs use NCCL, processes of a CPU gloo. What a run took is what its slowest process saw, by the host's clock.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import distributed

from experiments.profiling.layer_profiler import synchronize
from experiments.profiling.measured_kernels import COLLECTIVES, Collected, Collective
from experiments.profiling.pass_timing import relative_spread
from hardware_profiles import one_line

WARM_UP = 3


def measure_collectives(
    device: str, devices: int, sizes: Sequence[int], repeats: int
) -> tuple[tuple[Collective, ...], dict[str, str]]:
    """Measure every collective among 2, 4, ... and all of so many devices; and those that do not run there, with the reason.

    sizes: bytes of the whole tensor. Raises ValueError for more GPUs than there are, or a single device.
    """
    present = torch.cuda.device_count() if device == "cuda" else devices
    if not 2 <= devices <= present:
        raise ValueError(f"collectives need 2 devices or more, got {devices} ({present} on this machine)")
    with tempfile.TemporaryDirectory(prefix="pipeplan-") as folder:
        arguments = (device, devices, tuple(sizes), repeats, folder)
        try:
            torch.multiprocessing.spawn(_process, arguments, devices)
        except torch.multiprocessing.ProcessException as error:  # no way between the devices, a process that was killed
            return (), {f"collectives among {devices}": one_line(str(error))[-200:]}
        found = msgspec.json.decode(Path(folder, "found.json").read_bytes(), type=Collected)
    return tuple(found.collectives), found.failed


def _process(rank: int, device: str, devices: int, sizes: tuple[int, ...], repeats: int, folder: str) -> None:
    """One process: all take the same collectives in the same order; the first writes what they took."""
    warnings.simplefilter("ignore", FutureWarning)  # newer names of the same collectives
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if device == "cuda":
        torch.cuda.set_device(rank)
    backend = "nccl" if device == "cuda" else "gloo"
    meeting = Path(folder, "meeting").as_uri()
    distributed.init_process_group(backend, init_method=meeting, rank=rank, world_size=devices)
    counts = sorted({2**power for power in range(1, devices.bit_length())} | {devices})
    groups = {count: distributed.new_group(list(range(count))) for count in counts}
    found = Collected([], {})
    for count, group in groups.items():
        for operation in COLLECTIVES if rank < count else ():
            for size in sizes:
                try:
                    seconds = _seconds(operation, group, count, size, device, repeats)
                except RuntimeError as error:  # the backend has none, or no memory is left: in every process alike
                    found.failed[f"{operation} of {size} bytes among {count}"] = one_line(str(error))[:200]
                    continue
                spread = relative_spread(seconds)
                found.collectives.append(
                    Collective(
                        operation=operation,
                        devices=count,
                        bytes=size,
                        seconds=statistics.median(seconds),
                        spread=spread,
                        runs=repeats,
                    )
                )
        distributed.barrier()
    if rank == 0:
        Path(folder, "found.json").write_bytes(msgspec.json.encode(found))
    distributed.destroy_process_group()


def _seconds(operation: str, group: Any, count: int, size: int, device: str, repeats: int) -> list[float]:
    """Seconds of each run, of the slowest process."""
    elements = max(count, size // 4 // count * count)
    whole = torch.ones(elements, device=device)
    part = torch.ones(elements // count, device=device)
    calls: dict[str, Callable[[], object]] = {
        "all-reduce": lambda: distributed.all_reduce(whole, group=group),
        "all-gather": lambda: distributed.all_gather_into_tensor(whole, part, group=group),
        "reduce-scatter": lambda: distributed.reduce_scatter_tensor(part, whole, group=group),
    }
    found = []
    for _ in range(WARM_UP + repeats):
        distributed.barrier(group)
        synchronize(device)
        began = time.perf_counter()
        calls[operation]()
        synchronize(device)
        slowest = torch.tensor(time.perf_counter() - began, dtype=torch.float64, device=device)
        distributed.all_reduce(slowest, distributed.ReduceOp.MAX, group=group)
        found.append(float(slowest))
    return found[WARM_UP:]
