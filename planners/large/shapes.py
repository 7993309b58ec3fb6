"""Shapes: the degrees, replicas and micro-batches of plans of large models, as rows of a grid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from hardware_profiles import Integers
from planners.search.replay_work import replay_work
from simulator import Parallelism, divisors


@dataclass(frozen=True, slots=True)
class Shape:
    """How devices and samples are divided, before layers are divided into stages.

    tensor: tensor-parallel degree; pipeline: ranks of a pipeline; data: number of pipelines; samples: of a micro-batch on one of
    them
    chunks: stages per rank
    context: tensor-parallel groups of each rank, for parts of the tokens; expert: groups of all pipelines that divide experts
    """

    tensor: int
    pipeline: int
    data: int
    samples: int
    chunks: int
    context: int = 1
    expert: int = 1

    @property
    def parallel(self) -> Parallelism:
        """The degrees by which layers are divided."""
        return Parallelism(self.tensor, self.context, self.expert)

    @property
    def copies(self) -> int:
        """Number of groups of a rank that hold the same weights, but for experts."""
        return self.data * self.context

    @property
    def row(self) -> Integers:
        """The shape as the only row of a `grid`, int64 [1, 7]."""
        own = self.tensor, self.pipeline, self.data, self.samples, self.chunks, self.context, self.expert
        return np.array([own])

    def microbatches(self, batch: int) -> int:
        """Number of micro-batches of an iteration."""
        return batch // (self.data * self.samples)

    def work(self, batch: int) -> int:
        """Work of a replay of the shape's plans (`replay_work`)."""
        return replay_work(self.pipeline * self.chunks, self.data, self.microbatches(batch))


@dataclass(frozen=True, slots=True)
class Wanted:
    """Decisions of a grid that are fixed; None leaves the choice.

    stages, microbatches: numbers of these; contexts, experts: degrees to choose from
    chunks_from, chunks_to: stages per device, at least and at most
    """

    stages: int | None = None
    microbatches: int | None = None
    contexts: tuple[int, ...] = (1,)
    experts: tuple[int, ...] = (1,)
    chunks_from: int = 1
    chunks_to: int = 8


def grid(degrees: Sequence[int], groups: Callable[[int], int], blocks: int, batch: int, wanted: Wanted) -> Integers:
    """Every shape, one per row with the fields of `Shape`, int64 [shapes, 7].

    degrees: of tensor parallelism; groups: degree -> number of such groups that the cluster has; blocks: like blocks of the
    network
    A pipeline has at most one stage per block; all pipelines have equally many micro-batches of equally many samples. With
    several stages per device, micro-batches are no fewer than the devices in a row, as interleaved 1F1B requires.
    """
    found = []
    parts = np.array(divisors(batch))
    for tensor, context in product(degrees, wanted.contexts):
        most = groups(tensor) // context
        pipeline, data, samples = np.meshgrid(
            np.arange(1, min(most, blocks) + 1), parts[parts <= most], parts, indexing="ij"
        )
        fits = (pipeline * data <= most) & (batch % (data * samples) == 0)
        pipeline, data, samples = pipeline[fits], data[fits], samples[fits]
        count = batch // (data * samples)
        for chunks in range(wanted.chunks_from, wanted.chunks_to + 1):
            taken = np.ones(len(count), dtype=np.bool_)
            if chunks > 1:
                # The first and the last stage may hold no block.
                taken &= (pipeline > 1) & (pipeline * chunks - 2 <= blocks) & (count >= pipeline)
            if wanted.stages is not None:
                taken &= pipeline * chunks == wanted.stages
            if wanted.microbatches is not None:
                taken &= count == wanted.microbatches
            for expert in wanted.experts:
                among = taken & (data * context % expert == 0)
                columns = pipeline[among], data[among], samples[among]
                same = np.full((4, len(columns[0])), [[tensor], [chunks], [context], [expert]])
                found.append(np.stack([same[0], *columns, *same[1:]], axis=1))
    return np.concatenate(found) if found else np.zeros((0, 7), dtype=np.int64)


def unlike(shapes: Integers, columns: tuple[int, ...]) -> tuple[Integers, Integers]:
    """Distinct values of some columns of shapes: for each the first row that has it, and for each row the index of its value."""
    key = np.zeros(len(shapes), dtype=np.int64)
    for column in shapes.T[list(columns)]:
        key = key * (int(column.max(initial=0)) + 1) + column
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    return first, number
