"""Shape bounds: lower bounds on the seconds of any division of a shape, for many shapes at once.

A rank with n blocks takes own + block * n seconds for a micro-batch, where `block` depends on what it runs again, and the bytes
that it keeps are a line in n, too. So within a threshold on the slowest rank each holds at most so many blocks; the smallest
threshold at which all ranks hold as many as the network has bounds the rounds. Transfers, and what follows the last backward, are
added to the bounds of those that are near the best without.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Floats, Integers
from planners.estimate.memory import least_in_flight, state_bytes, unit_bytes
from planners.estimate.pipeline_seconds import pipelined
from planners.estimate.stage_costs import FIRST, LAST, MIDDLE, ONLY, Line
from planners.large.closed_form import PASSES, ClosedForm
from planners.large.shapes import Shape, unlike
from simulator import least_group

Counts = NDArray[np.int16]

HALVINGS = 10
"""Bisection steps for the bound on the seconds of the slowest rank."""

RANGE = 2.0
"""Factor, at most, by which memory lengthens the bound on the seconds of the slowest rank."""

ROUNDING = 1e-9
"""Tolerance in blocks when fractions are rounded down to whole blocks."""


class _DividedFigures(NamedTuple):
    """Seconds and bytes of stages by degrees and samples; each field has a row per shape.

    passes: lower bounds on seconds of a block forward, and backward; own: seconds beside the blocks, by place in the pipeline
    again: seconds for which each policy runs a block again
    weights: elements of a block, and those in routed experts; own_weights: elements beside the blocks, by place
    kept, made, made_own: bytes per sample, by policy: that a block keeps, that a block's backward makes again, and that a
    backward makes again beside blocks
    boundary: bytes per sample between stages; in_work: lower bound on bytes of gradients before they are added up, by place
    """

    passes: Floats
    own: Floats
    again: Floats
    weights: Floats
    own_weights: Floats
    kept: Floats
    made: Floats
    made_own: Floats
    boundary: Floats
    in_work: Floats


class ShapeBounds:
    """Lower bounds of the shapes of one problem, which are rows of `grid`; figures are computed when first needed."""

    def __init__(self, form: ClosedForm) -> None:
        self.form, self.problem, self.blocks = form, form.problem, form.blocks.count
        self._members: dict[tuple[int, ...], _DividedFigures] = {}

    def least_seconds(self, shapes: Integers) -> Floats:
        """Lower bounds on the seconds of an iteration, float64 [shapes]; infinite where weights and states alone exceed memory.

        They assume that each sample takes what it takes where most are passed at once, and that all activations fit.
        """
        rows, number = unlike(shapes, (0, 5, 6))
        seconds = self._of_samples(shapes, rows, number)
        block, whole = (seconds[number] * shapes[:, 3:4]).T
        found = self._iteration(shapes, self._undivided(shapes, block, whole), whole)
        return np.where(self._least_states(shapes, rows, number) <= self.form.memory_bytes, found, np.inf)

    def _least_states(self, shapes: Integers, rows: Integers, number: Integers) -> Floats:
        """Lower bounds on bytes of weights, gradients and optimizer states on the fullest rank, float64 [shapes]."""
        pairs = [self.form.costs.elements(Shape(*row).parallel) for row in shapes[rows].tolist()]
        held, experts = (
            np.array([pair[kind].own[ONLY] + pair[kind].block * self.blocks for pair in pairs])[number]
            for kind in (0, 1)
        )
        divided, copies = held + (shapes[:, 6] - 1) * experts, shapes[:, 2] * shapes[:, 5]
        states = [state_bytes(self.problem, zero, held, divided, copies) for zero in self.form.zeros]
        return np.asarray(np.min(states, axis=0) / shapes[:, 1])

    def least_device_seconds(self, shapes: Integers) -> float:
        """Lower bound on the compute seconds of the busiest device in an iteration, over all of these shapes."""
        rows, number = unlike(shapes, (0, 5, 6))
        whole = self._of_samples(shapes, rows, number)[:, 1]
        tensor, context = shapes[rows].T[[0, 5]]
        return float((self.problem.batch * whole * tensor * context).min()) / len(self.problem.cluster.devices)

    def _of_samples(self, shapes: Integers, rows: Integers, number: Integers) -> Floats:
        """Lower bounds on the seconds of a sample through a block, and through the whole network, by kind of shape, float64
        [kinds, 2].
        """
        seconds = np.empty((len(rows), 2))
        for kind, (tensor, _, _, _, _, context, expert) in enumerate(shapes[rows].tolist()):
            sizes = sorted(set(shapes[number == kind, 3].tolist()))[-1 if self._sublinear else 0 :]
            found = [self._member(tensor, size, context, expert) for size in sizes]
            block = min((one.passes.sum() + one.again.min()) / size for one, size in zip(found, sizes, strict=True))
            own = min(one.own[ONLY] / size for one, size in zip(found, sizes, strict=True))
            seconds[kind] = block, own + block * self.blocks
        return seconds

    @cached_property
    def _sublinear(self) -> bool:
        """Whether a sample takes least where most samples are passed at once."""
        return self.problem.cluster.devices[0].sublinear and not self.problem.workload.measured

    def least_seconds_in_memory(self, shapes: Integers) -> Floats:
        """Lower bounds on the seconds of an iteration, float64 [shapes, zeros]; infinite where ranks cannot hold the network's
        blocks.

        With each shape's own samples; ranks run again what they must to hold their blocks. Gathers and scatters of replicas count
        as of `ClosedForm.block_moves`.
        """
        zeros = self.form.zeros
        rows = np.repeat(shapes, len(zeros), axis=0), np.tile(zeros, len(shapes))
        most = self._most_blocks(*rows)
        room = np.flatnonzero(most.max(axis=1).sum(axis=1, dtype=np.int64) >= self.blocks)
        found = np.full(len(rows[0]), np.inf)
        if len(room):
            found[room] = self._least_seconds_within(most[room], *(one[room] for one in rows))
        return found.reshape(len(shapes), len(zeros))

    def _least_seconds_within(self, most: Counts, shapes: Integers, zero: Integers) -> Floats:
        """Lower bounds on the seconds of shapes whose ranks hold at most `most` blocks each, int16 [shapes, ways, ranks]; float64
        [shapes].
        """
        figures, ranks = self._figures(shapes), _RankWays(shapes, self.problem.batch, self.blocks)
        blocks, own = self._passes(figures, shapes, zero)
        least = blocks.min(axis=1)
        whole = own[:, ONLY] + least * self.blocks
        ways = np.repeat(blocks, 2, axis=1)
        own = np.take_along_axis(own, ranks.places, axis=1)
        steps, missing = ranks.steps(ways.shape[1])

        def held(seconds: Floats) -> Integers:
            """Blocks of all ranks where none takes longer, int64 [shapes]."""
            alone = (seconds[:, None] - own)[:, None] / ways[..., None]
            reached = _whole(np.minimum(alone, self.blocks), steps, missing)
            parts = slice(2), slice(2, None)
            found = (np.minimum(most[..., one], reached[..., one]).max(axis=1) for one in parts)
            return np.asarray(sum(one.sum(axis=1, dtype=np.int64) for one in found))

        low = self._undivided(shapes, least, whole)
        high = RANGE * low
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            enough = held(middle) >= self.blocks
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        # The slowest rank, at least, runs as much again as on a way on which it takes so long (some rank does on some way).
        slowest = (low - own.max(axis=1))[:, None]
        reaches = most.max(axis=2) * ways >= slowest * (1.0 - ROUNDING)
        again = np.where(reaches, slowest * (1.0 - least[:, None] / ways), np.inf).min(axis=1)
        return self._iteration(shapes, low, whole + np.maximum(again, 0.0))

    def least_seconds_in_all(self, shapes: Integers, zero: Integers, bounds: Floats) -> Floats:
        """Lower bounds on the seconds of an iteration with transfers and what follows the last backward, float64 [shapes].

        The more blocks the first rank has, the longer is what follows; the fewer, the longer are the rounds of other ranks.
        zero: ZeRO stage of each shape; bounds: seconds without these
        """
        number, ways = np.arange(self.blocks + 1), [self.form.ways(Shape(*row)) for row in shapes.tolist()]
        pipeline, data, samples, chunks = shapes.T[1:5, :, None]
        blocks, own = self._passes(self._figures(shapes), shapes, zero)
        least = blocks.min(axis=1)[:, None]
        whole, first = own[:, ONLY, None] + least * self.blocks, own[:, FIRST, None] + least * number
        others = np.maximum(pipeline - 1, 1)
        rest = np.maximum((whole - first) / others, least * -(-(self.blocks - number) // others))
        crossing = np.array([one.crossing for one in ways])[:, None]
        slowest = np.maximum(np.maximum(first, rest * (pipeline > 1)), crossing)
        rounds = pipelined(whole, slowest, self.problem.batch // (data * samples), chunks)
        found = np.maximum(bounds[:, None], rounds) + self.form.tails.seconds(shapes, zero, self.blocks)
        alone = self.form.blocks.ends[0] & (chunks > 1)
        held = (number - -(-number // chunks) * (chunks - 1) >= 1 - alone) & (number > 0)
        found[~np.where(pipeline > 1, held, number == self.blocks)] = np.inf
        return np.asarray(found.min(axis=1) + np.array([one.seconds for one in ways]))

    def _undivided(self, shapes: Integers, block: Floats, whole: Floats) -> Floats:
        """Lower bounds on the seconds of the slowest rank, float64 [shapes]; block, whole: seconds of a block, and of the
        network
        """
        pipeline = shapes[:, 1]
        return np.asarray(np.maximum(whole / pipeline, block * -(-self.blocks // pipeline)))

    def _iteration(self, shapes: Integers, slowest: Floats, whole: Floats) -> Floats:
        """Seconds of an iteration's rounds and fill, float64 [shapes], from seconds of the slowest rank and of the whole
        network.
        """
        data, samples, chunks = shapes.T[2:5]
        count = self.problem.batch // (data * samples)
        return pipelined(whole, slowest, count, chunks)

    # ---- figures ----

    def _figures(self, shapes: Integers) -> _DividedFigures:
        """The figures of some shapes."""
        rows, number = unlike(shapes, (0, 3, 5, 6))
        found = [self._member(*row) for row in shapes[rows][:, [0, 3, 5, 6]].tolist()]
        return _DividedFigures(*(np.stack(one)[number] for one in zip(*found, strict=True)))

    def _member(self, *key: int) -> _DividedFigures:
        """Figures of one device; key: tensor degree, samples, context degree, expert degree"""
        if key not in self._members:
            tensor, samples, context, expert = key
            shape, costs = Shape(tensor, 1, expert, samples, 1, context, expert), self.form.costs
            parallel, rates = shape.parallel, self.form.devices.rates(shape, alone=True)
            forward, backward = (costs.seconds(parallel, rates, samples, one) for one in PASSES)
            kept, made = zip(*costs.stashes(parallel), strict=True)
            held, experts = costs.elements(parallel)
            first, _, last, only = forward.own + backward.own
            figures = (
                (_least_block(forward), _least_block(backward)),
                (first, 0.0, last, min(only, first + last)),
                [_least_block(costs.seconds(parallel, rates, samples, policy)) for policy in self.form.policies],
                (held.block, experts.block),
                held.own,
                [one.block for one in kept],
                [one.block for one in made],
                [one.own.min() for one in made],
                costs.boundary_bytes(parallel),
                np.min([one.own for one in costs.gradients_in_work(parallel)], axis=0),
            )
            self._members[key] = _DividedFigures(*map(np.asarray, figures))
        return self._members[key]

    def _passes(self, figures: _DividedFigures, shapes: Integers, zero: Integers) -> tuple[Floats, Floats]:
        """Lower bounds on seconds of a block by policy, float64 [shapes, policies], and of what ends of the network add, [shapes,
        places].
        """
        forward, backward = figures.passes[:, :1], figures.passes[:, 1:] + figures.again
        gathers, scatters = self._moves(shapes) if max(self.form.zeros) >= 2 else (np.zeros(1), np.zeros(1))
        gathers, scatters = gathers * (zero == 3), scatters * (zero >= 2)
        longer = np.maximum(forward, gathers[:, None])
        back = np.maximum(backward, (scatters + gathers)[:, None])
        # Of ZeRO 3 some scatters are under forwards, where no more of them is hidden, unless these take longer.
        found = np.where(backward >= forward, longer + back, forward + backward)
        return found, figures.own * (found == forward + backward).all(axis=1)[:, None]

    def _moves(self, shapes: Integers) -> tuple[Floats, Floats]:
        """Lower bounds on seconds in which a block's weights are gathered, and its gradients scattered, float64 [shapes] each."""
        rows, number = unlike(shapes, (0, 2, 5, 6))
        gathers, scatters = self.form.block_moves(shapes[rows])
        return gathers[number], scatters[number]

    def _most_blocks(self, shapes: Integers, zero: Integers) -> Counts:
        """Upper bounds on the blocks that each rank can hold, int16 [shapes, ways, ranks]."""
        form, figures, ranks = self.form, self._figures(shapes), _RankWays(shapes, self.problem.batch, self.blocks)
        _, pipeline, data, samples, chunks, context, expert = shapes.T
        held, experts = figures.weights.T
        copies, policies = data * context, len(form.policies)
        state = state_bytes(self.problem, zero, held, held + (expert - 1) * experts, copies)[:, None, None]
        own = np.take_along_axis(figures.own_weights, ranks.places, axis=1)
        in_work = np.take_along_axis(figures.in_work, ranks.places, axis=1)
        divided = ((zero >= 2) & (copies > 1))[:, None]  # beside the units below
        in_work = np.where(divided, float(np.ceil(self.problem.workspace_bytes)), in_work)
        ends = (state_bytes(self.problem, zero[:, None], own, own, copies[:, None]) + in_work)[:, None, ranks.kinds]
        kept, made, made_own = (
            (np.repeat(one, 2, axis=1) * samples[:, None])[..., None]
            for one in (figures.kept, figures.made, figures.made_own)
        )
        shares, more = (np.tile(one, (1, policies, 1)) for one in (ranks.shares, ranks.more))
        line = state + made / chunks[:, None, None] + kept * shares
        once = figures.boundary * samples * (pipeline > 1)
        left = form.memory_bytes - once[:, None, None] - made_own - ends - kept * more
        # Two units are there whole, of a block each at least; nothing is known of products.
        known = self.problem.stack.gathered == "blocks"
        unit = (held * unit_bytes(self.problem, zero) * (copies > 1) * known)[:, None, None]
        several, one = ((left - number * unit) / line for number in (2, 1))
        found = np.where(several < 2.0, np.minimum(one, 1.0), np.minimum(several, self.blocks))
        steps, missing = ranks.steps(2 * policies)
        return _whole(np.where(ranks.there, found, 0.0), steps[..., ranks.kinds], missing[..., ranks.kinds])


class _RankWays:
    """Ranks of some shapes: the first, the last, then those between, in as many columns as the longest pipeline has.

    A rank holds blocks in one of two ways: all its stages have equally many, or one lacks a block; at the ends it may lack
    several.

    kinds: of each column, 0 (first), 1 (last) or 2, int64 [ranks]; places: of each kind, int64 [shapes, kinds]; there: whether
    the shape has such a rank, bool [shapes, 1, ranks]
    shares, more: lower bound on what is in flight on a device of n blocks at its fullest, shares * n + more, float64 [shapes,
    ways, ranks]
    """

    def __init__(self, shapes: Integers, batch: int, blocks: int) -> None:
        pipeline, data, samples, chunks = shapes.T[1:5, :, None]
        longest = max(2, int(pipeline.max(initial=0)))
        self.kinds = np.minimum(np.arange(longest), 2)
        self.places = np.where(pipeline == 1, ONLY, np.array([FIRST, LAST, MIDDLE]))
        rank = np.concatenate([0 * pipeline, pipeline - 1, np.arange(1, longest - 1) + 0 * pipeline], axis=1)
        there = np.where(self.kinds == 2, rank < pipeline - 1, (self.kinds == 0) | (pipeline > 1))
        self.there = there[:, None]
        count = batch // (data * samples)
        pairs = zip(count.ravel().tolist(), shapes[:, 1].tolist(), strict=True)
        group = np.array([least_group(*pair) for pair in pairs], dtype=np.int64)[:, None]
        alike, fewest, less = least_in_flight(rank, pipeline, chunks, count, group)
        # A stage with fewer blocks than the others is taken as the one with most micro-batches in flight. At an end it has none
        # of them, or lacks one less than there are stages: whichever says more of a rank that has its part of all.
        most_less, part = (chunks - 1) * np.minimum(less, 0.0), blocks / pipeline
        line = (self.kinds == 2) | (alike * part + most_less > fewest * part)
        self.shares = np.stack([alike, np.where(line, alike, np.minimum(alike, fewest))], axis=1)
        self.more = np.stack([0 * alike, np.where(self.kinds == 2, less, most_less * line)], axis=1)
        self._steps = np.stack([chunks + 0 * self.places, np.where([False, False, True], chunks, 1)], axis=1)

    def steps(self, ways: int) -> tuple[Integers, Integers]:
        """Numbers of which a rank's blocks are a multiple, and by how many they are less than that, [shapes, ways, kinds]
        each.
        """
        return np.tile(self._steps, (1, ways // 2, 1)), np.tile([[0, 0, 0], [0, 0, 1]], (ways // 2, 1))


def _whole(blocks: Floats, steps: Integers, missing: Integers) -> Counts:
    """The largest possible numbers of blocks that are no more than `blocks`, int16 of their shape."""
    found = np.floor((blocks + (missing + ROUNDING)) / steps) * steps - missing
    return np.asarray(np.maximum(found, 0.0), dtype=np.int16)


def _least_block(line: Line) -> float:
    """Lower bound on what each block adds to a rank: a stage of one block may take less than each further block adds."""
    return line.block + min(0.0, float(line.own[MIDDLE]))
