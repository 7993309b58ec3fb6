"""The unequal problem: duration tables of K stages and their links, and the block sizes that may be chosen.

Every duration is rounded, at the door, to a multiple of `quantum`, a power of two so small (about 1e-16 of the longest
possible makespan) that every sum of durations that can occur is exact in float64. Addition is then associative, and
all forms of the recurrence - plain, prefix sums with cumulative maxima, compiled with closed forms, event simulation -
agree to the last bit by construction, whatever the order of their operations. Comparisons, pruning and proofs of
optimality need no tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from hardware_profiles import Floats
from planners.unequal.chain import Chain
from simulator import InfeasiblePlanError

RECOMPUTATION = ("none", "always", "where-differs")
"""When a stage runs its forward pass again in its backward pass: never, always, or only where its two sizes differ (f_k !=
g_k).
"""


class InfeasibleSizes(InfeasiblePlanError):
    """Error of a problem whose limits no size vector satisfies."""


@dataclass(frozen=True, slots=True, eq=False)
class UnequalProblem:
    """Choose a forward and a backward block size per stage so that one mini-batch with a flush ends soonest.

    - `samples` B, the mini-batch.
    - `forward[k, b]`, `backward[k, b]` seconds of a block of b samples on stage k, shape (K, B+1), column 0 is 0;
      `backward` without the repeated forward pass, which `recomputation` adds.
    - `again[k, b]` seconds of that repeated forward pass, in the same shape; None: those of `forward`. In a replay it is without
      what the framework takes beside a pass.
    - `forward_link[k, b]`, `backward_link[k, b]` seconds of b samples between stages k and k+1, shape (K-1, B+1); a link sends
      the blocks of the stage that sends.
    - `candidates` the sizes to choose from, each in 1..B; a size vector has an entry per stage.
    - `backward_caps` the largest backward size of every stage (memory limits), or None.
    - `fixed_seconds` what a mini-batch takes beyond the makespan, whatever the sizes: latencies, an update. No evaluator adds
      it; who compares problems does.
    - `quantum` the grid of the durations in seconds; computed unless given (so that `replace` keeps it).

    Raises ValueError for tables of a wrong shape, negative or infinite durations and impossible sizes, and
    `InfeasibleSizes` where the caps leave a stage without a candidate.
    """

    samples: int
    forward: Floats
    backward: Floats
    forward_link: Floats
    backward_link: Floats
    candidates: tuple[int, ...]
    backward_caps: tuple[int, ...] | None = None
    recomputation: str = "none"
    fixed_seconds: float = 0.0
    quantum: float = 0.0
    again: Floats | None = None
    forward_chain: Chain = field(init=False, repr=False)
    backward_chain: Chain = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._check_choices()
        stages = np.asarray(self.forward).shape[0]
        shapes = {"forward": stages, "backward": stages, "forward_link": stages - 1, "backward_link": stages - 1}
        tables = {name: _table(name, getattr(self, name), rows, self.samples) for name, rows in shapes.items()}
        quantum = self.quantum or _quantum(self.samples, list(tables.values()))
        again = tables["forward"] if self.again is None else _table("again", self.again, stages, self.samples)
        tables["again"] = np.minimum(again, tables["forward"])
        for name, table in tables.items():
            table = np.rint(table / quantum) * quantum
            table.flags.writeable = False
            object.__setattr__(self, name, table)
        object.__setattr__(self, "quantum", quantum)
        object.__setattr__(self, "candidates", tuple(sorted({int(size) for size in self.candidates})))
        object.__setattr__(self, "forward_chain", self._forward_chain())
        object.__setattr__(self, "backward_chain", self._backward_chain())

    @property
    def stages(self) -> int:
        """Number of stages K."""
        return int(self.forward.shape[0])

    @property
    def coupled(self) -> bool:
        """Whether the backward seconds depend on the forward sizes, too (recomputation where sizes differ)."""
        return self.recomputation == "where-differs"

    def _check_choices(self) -> None:
        if not self.candidates or any(not 1 <= size <= self.samples for size in self.candidates):
            raise ValueError(f"candidates must be sizes in 1..{self.samples}, not {tuple(self.candidates)}")
        if self.recomputation not in RECOMPUTATION:
            raise ValueError(f"recomputation must be one of {', '.join(RECOMPUTATION)}, not {self.recomputation!r}")
        if self.quantum and math.frexp(self.quantum)[0] != 0.5:
            raise ValueError(f"quantum must be a power of two in seconds, or 0 to compute it, not {self.quantum}")

    def _forward_chain(self) -> Chain:
        rows = [self.forward, self.forward_link, np.zeros((1, self.samples + 1))]
        return Chain(self.samples, _read_only(rows), (self.candidates,) * self.stages, reverse=False)

    def _backward_chain(self) -> Chain:
        again = self.backward + np.asarray(self.again)
        first = again if self.recomputation == "always" else self.backward
        rows = [first[::-1], self.backward_link[::-1], np.zeros((1, self.samples + 1))]
        if self.coupled:
            rows.append(again[::-1])
        return Chain(self.samples, _read_only(rows), self._allowed()[::-1], reverse=True)

    def _allowed(self) -> tuple[tuple[int, ...], ...]:
        """Backward sizes that each stage may take, ascending; InfeasibleSizes where its cap leaves none."""
        caps = self.backward_caps or (self.samples,) * self.stages
        if len(caps) != self.stages:
            raise ValueError(f"caps must be {self.stages} sizes, one per stage, not {caps}")
        allowed = [tuple(size for size in self.candidates if size <= cap) for cap in caps]
        for stage, (sizes, cap) in enumerate(zip(allowed, caps, strict=True)):
            if not sizes:
                raise InfeasibleSizes(f"stage {stage}: no candidate of {self.candidates} is within its cap of {cap}")
        return tuple(allowed)


def powers_of_two(samples: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to `samples`, and `samples` itself."""
    return tuple(sorted({1 << exponent for exponent in range(samples.bit_length())} | {samples}))


def near_sizes(sizes: Sequence[int], size: int) -> set[int]:
    """The candidates near a size: itself, the next smaller and larger ones, its half and its double."""
    place = sizes.index(size)
    return {*sizes[max(0, place - 1) : place + 2], *({size // 2, size * 2} & {*sizes})}


def _read_only(rows: Sequence[Floats]) -> Floats:
    table = np.vstack(rows)
    table.flags.writeable = False
    return table


def _table(name: str, values: ArrayLike, rows: int, samples: int) -> Floats:
    table = np.array(values, dtype=np.float64)
    if rows == 0 and table.size == 0:
        return np.zeros((0, samples + 1))
    if table.shape != (rows, samples + 1):
        raise ValueError(
            f"{name} must have shape {(rows, samples + 1)}, a row per process and sizes 0..B, not {table.shape}"
        )
    if not (np.isfinite(table) & (table >= 0)).all():
        raise ValueError(f"{name} must hold finite, non-negative seconds; it has {table.min()} .. {table.max()}")
    if table[:, 0].any():
        raise ValueError(f"{name}[:, 0], the time of no samples, must be 0, not {table[:, 0].tolist()}")
    return table


def _quantum(samples: int, tables: Sequence[Floats]) -> float:
    """Grid of durations in seconds: the least power of two of which fewer than 2^52 make the longest possible makespan.

    Any sequence of blocks of B samples on a process costs at most B max_b d(b)/b; the sum over all processes, with the forward
    pass counted twice for recomputation, bounds every makespan of every order.
    """
    sizes = np.arange(1, samples + 1)
    longest = [float((samples * (table[:, 1:] / sizes).max(axis=1)).sum()) if table.size else 0.0 for table in tables]
    total = sum(longest) + longest[0]
    if total == 0.0:
        return math.ldexp(1.0, -52)
    return math.ldexp(1.0, math.frexp(total)[1] - 52)
