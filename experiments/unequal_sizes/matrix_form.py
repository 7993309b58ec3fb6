"""TiDGAP's two-level matrix form (M) in numpy: end times of all individuals and all blocks of a process at once.

    E_p[j] = S_p[j] + max_{i <= j} ( A_p[i] - S_p[i-1] )

S are prefix sums of durations, A the arrival times gathered from the process upstream; the maximum is cumulative over
blocks and runs for all individuals in one call. S and the gather positions depend on sizes only and are tables over the
candidates. Individuals are split by their number of blocks into classes of similar width, so that few blocks do not
pay for many. On the grid of `problem` the subtractions are exact: the result is that of (R), to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hardware_profiles import Floats, Integers
from planners.unequal import Chain, PopulationEvaluator

WIDTHS = (8, 24, 80, 288, 1056, 4128)
PAIR_TABLE_ENTRIES = 1 << 22


@dataclass(frozen=True, slots=True, eq=False)
class _Class:
    """Tables of the candidates with at most `width` blocks; rows of S are durations row x candidates + candidate.

    `last[c, j]` is the last sample of block j (B beyond the end), `holder` (C+1, C, width) the upstream block that
    holds it for every pair of sizes, or None where that would be large.
    """

    width: int
    after: Floats
    before: Floats
    last: Integers
    holder: Integers | None


@dataclass(frozen=True, slots=True, eq=False)
class ChainMatrix:
    """The tables of one chain; call it with sizes (individuals, K) to get seconds (individuals,)."""

    chain: Chain
    candidates: Integers
    code: Integers
    kind: Integers
    classes: tuple[_Class, ...]
    block_of: Integers

    def __call__(self, sizes: Integers, differs: Integers) -> Floats:
        """Seconds of every individual; ValueError for sizes that are not candidates.

        `differs` (individuals, K) as `differing_stages`.
        """
        chain = self.chain
        codes = self._codes(sizes)
        count, individuals = len(self.candidates), np.arange(len(sizes))
        flat, offsets, upstream = np.zeros(len(sizes)), individuals, np.full(len(sizes), count)
        groups: list[tuple[_Class, Integers, Floats]] = []
        for stage, block in enumerate(codes):
            if stage:
                flat, offsets = _flatten(groups, len(sizes))
            groups = [
                (shape, rows, flat.take(self._positions(shape, upstream, block, offsets, rows)))
                for shape, rows in self._split(block)
            ]
            upstream, first = block, np.full(len(sizes), stage)
            if differs.shape[1]:  # only a backward chain is coupled
                first = first + 2 * chain.stages * differs[:, chain.stages - 1 - stage]
            processes = [first * count + block]
            if stage + 1 < chain.stages:
                processes.append((chain.stages + stage) * count + block)
            for row in processes:
                for shape, rows, ends in groups:
                    table_rows = row if len(rows) == len(sizes) else row[rows]
                    ends -= shape.before.take(table_rows, axis=0)
                    np.maximum.accumulate(ends, axis=1, out=ends)
                    ends += shape.after.take(table_rows, axis=0)
        result = np.empty(len(sizes))
        for _, rows, ends in groups:
            result[rows] = ends[:, -1]
        return result

    def _codes(self, sizes: Integers) -> list[Integers]:
        """Candidate number of every stage in chain order."""
        codes = self.code[sizes]
        if codes.size and codes.min() < 0:
            raise ValueError(f"sizes must be candidates, one of {self.candidates.tolist()}")
        columns = list(np.ascontiguousarray(codes.T))
        return columns[::-1] if self.chain.reverse else columns

    def _split(self, block: Integers) -> list[tuple[_Class, Integers]]:
        """The classes of widths that occur and the individuals in each."""
        kinds = self.kind[block]
        found = ((shape, np.flatnonzero(kinds == number)) for number, shape in enumerate(self.classes))
        return [(shape, rows) for shape, rows in found if len(rows)]

    def _positions(
        self, shape: _Class, upstream: Integers, block: Integers, offsets: Integers, rows: Integers
    ) -> Integers:
        """Where in the flat upstream ends the arrivals of every block stand; (rows, width)."""
        before, now = upstream[rows], block[rows]
        if shape.holder is not None:
            positions = shape.holder.take(before * len(self.candidates) + now, axis=0)
        else:
            positions = self.block_of.take(shape.last.take(now, axis=0) + (before * (self.chain.samples + 1))[:, None])
        positions += offsets[rows][:, None]
        return positions


def _flatten(groups: Sequence[tuple[_Class, Integers, Floats]], individuals: int) -> tuple[Floats, Integers]:
    """All ends in one array, and where the row of every individual starts."""
    offsets = np.empty(individuals, dtype=np.int64)
    start = 0
    for shape, rows, _ in groups:
        offsets[rows] = np.arange(start, start + len(rows) * shape.width, shape.width)
        start += len(rows) * shape.width
    flat = groups[0][2].ravel() if len(groups) == 1 else np.concatenate([ends.ravel() for *_, ends in groups])
    return flat, offsets


def chain_matrix(chain: Chain, candidates: Sequence[int]) -> ChainMatrix:
    """Build the tables of a chain for the given candidate sizes."""
    samples, sizes = chain.samples, np.array(sorted(candidates), dtype=np.int64)
    code = np.full(samples + 1, -1, dtype=np.int64)
    code[sizes] = np.arange(len(sizes))
    blocks = -(-samples // sizes)
    edges = [width for width in WIDTHS if width < blocks.max()] + [int(blocks.max())]
    with_source = np.append(sizes, samples)  # the data that start a chain arrive as one block
    block_of = np.maximum(-(-np.arange(samples + 1) // with_source[:, None]) - 1, 0)
    classes = []
    for width in edges:
        last = np.minimum(np.arange(1, width + 1) * sizes[:, None], samples)
        samples_of = np.diff(last, axis=1, prepend=0)
        after = np.cumsum(chain.durations[:, samples_of], axis=2).reshape(-1, width)
        before = np.zeros_like(after)
        before[:, 1:] = after[:, :-1]
        holder = None
        if len(with_source) * len(sizes) * width <= PAIR_TABLE_ENTRIES:
            holder = np.ascontiguousarray(block_of[:, last]).reshape(-1, width)
        classes.append(_Class(width, after, before, last, holder))
    return ChainMatrix(chain, sizes, code, np.searchsorted(edges, blocks), tuple(classes), block_of.ravel())


@dataclass(frozen=True, slots=True)
class Matrix(PopulationEvaluator):
    """Both chains of a problem in matrix form, whose tables are built once; sizes are candidates."""

    tables: tuple[ChainMatrix, ChainMatrix] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        chains = self.problem.forward_chain, self.problem.backward_chain
        forward, backward = (chain_matrix(chain, self.problem.candidates) for chain in chains)
        object.__setattr__(self, "tables", (forward, backward))

    def chain_seconds(self, chain: Chain, sizes: Integers, differs: Integers) -> Floats:
        """Seconds of one pass."""
        return self.tables[chain.reverse](sizes, differs)
