"""Layer costs: seconds and bytes of each layer of a problem, measured or from the accelerator's model."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hardware_profiles import (
    BACKWARD_LAUNCHES,
    PRECISION_BYTES,
    Accelerator,
    Flags,
    Floats,
    Integers,
    Phase,
    Rates,
    Work,
    answered_seconds,
    optional_members,
    passes,
    reduce_seconds,
    streaming,
)
from simulator.costs.kept_shares import kept_shares, products_of
from simulator.options.training_options import BY_BLOCK, Recompute
from simulator.plans.keys import Kept
from simulator.plans.plan import OPTIMIZER_STATES, Plan, Problem, problem_of_parts
from simulator.workloads.layer_splits import LayerSplit
from simulator.workloads.layers import Layer, TiedWeight
from simulator.workloads.sequence_slices import context_part, keys_and_values, slice_of
from simulator.workloads.shares import Parallelism, Share, share_of, unlike_layers

_PASSES: Mapping[Phase, float] = {"forward": 1.0, "backward": 1.0, "input_gradient": 0.5, "weight_gradient": 0.5}
"""Passes over a block for which each phase counts."""

SecondsOfStages = Callable[[int, Phase], Floats]
"""(samples, phase) -> seconds of one pass of each of several stages, float64 [stages]."""


class GroupRates(NamedTuple):
    """Rates of the collectives that a device takes part in, by form of parallelism; () where that form is not used or is counted
    elsewhere.

    tensor: all-reduces of its tensor-parallel group; context: of those that have the other tokens of its samples
    expert: exchanges of those that have other experts; gather: all-gathers of its tensor-parallel group
    """

    tensor: Rates = ()
    context: Rates = ()
    expert: Rates = ()
    gather: Rates = ()


ALONE, NO_RATES = Parallelism(), GroupRates()

KEPT_SPLITS = 64
"""Networks of parts whose costs are kept, the ones that were used last."""

STRUCTURES: Kept[Hashable, Any] = Kept()
"""Of the plans of a process, as `simulator.plan_replay` lowers them: they know no seconds, so that all costs share them."""
"""Of a device that has all of its layers."""


class Member(NamedTuple):
    """A device of a given kind as a member of its groups: what its cost tables depend on, beside the kind.

    parallel: how it divides layers with others, at what rates
    state_bytes: bytes per parameter that it holds all the time
    servers: that its plan's devices are in; 1 where its stack has no stragglers
    """

    parallel: Parallelism
    rates: GroupRates
    state_bytes: float
    servers: int = 1


class _Collective(NamedTuple):
    """One collective of each layer: how fast it runs, what it moves, and how often.

    rates: seconds; others: the part of the bytes that it sends to them per collective; sizes: bytes per sample, float64 [layers]
    forward, backward: how often in a forward, and in an input gradient, float64 [layers]
    """

    rates: Rates
    others: float
    sizes: Floats
    forward: Floats
    backward: Floats

    def times(self, phase: Phase) -> Floats:
        """How often it runs in a pass of a phase, float64 [layers]; weight gradients have none."""
        if phase == "weight_gradient":
            return np.zeros(len(self.sizes))
        return self.forward if phase == "forward" else self.backward


class LayerCosts:
    """Seconds and bytes of every layer of a problem, in tables that are filled on demand.

    A measured layer takes its profiled seconds, whatever the accelerator: see `measured_layer_seconds`. Every other layer takes
    what the accelerator's model says; a stage of them is their sum, but where layers stream, as on an FPGA (see `stage_seconds`).
    """

    def __init__(self, problem: Problem, member: Member | None = None) -> None:
        """Start with empty tables; member: whose they are (default: a device that holds every layer whole)."""
        self.problem, self.member = problem, member or Member(ALONE, NO_RATES, problem.state_bytes)
        self._members: dict[Member, LayerCosts] = {self.member: self}
        self._alike: LayerCosts | None = None
        self._divided: LayerCosts | None = None  # those of the same division, on whatever servers
        self._seconds: dict[tuple[int, int, Phase], Floats] = {}
        self._kernels: dict[tuple[int, int, Phase], Floats] = {}
        self._launches: dict[tuple[int, Phase], Floats] = {}
        self._streamed: dict[tuple[int, bytes, int, Phase], float] = {}
        self._slices: dict[tuple[int, int], LayerCosts] = {}
        self._kept: dict[Recompute, Floats] = {}
        self._kept_products: dict[Recompute, Floats] = {}
        self._made: dict[Recompute, Floats] = {}
        self._parts: dict[Recompute, Integers] = {}
        self._again: dict[Recompute, Floats] = {}
        self._split: Kept[tuple[LayerSplit, ...], tuple[LayerCosts]] = Kept()
        self.structures = STRUCTURES
        self.places: Kept[Hashable, Any] = Kept()  # of their stages, as `PlanCosts` has them
        self._measured = problem.workload.measured
        self._accelerators, self._kind_of_device = problem.cluster.kinds

    @cached_property
    def rooms(self) -> Floats:
        """`Problem.rooms`: bytes that a plan may allocate on each device, float64 [devices]."""
        return np.array(self.problem.rooms, dtype=np.float64)

    @property
    def accelerator_kinds(self) -> int:
        """Number of different kinds of accelerator."""
        return len(self._accelerators)

    def kind_of_device(self, device: int) -> int:
        """Index of the accelerator kind of a device."""
        return self._kind_of_device[device]

    def first_of_kind(self, kind: int) -> int:
        """The first device of a kind."""
        return self._kind_of_device.index(kind)

    def of_slice(self, number: int, slices: int) -> LayerCosts:
        """The costs of slice `number` of `slices` of every sequence; ValueError as `slice_of`."""
        key = number, slices
        if key not in self._slices:
            workload = slice_of(self.problem.workload, number, slices)
            self._slices[key] = LayerCosts(replace(self.problem, workload=workload))
        return self._slices[key]

    def of_parts(self, plan: Plan) -> LayerCosts:
        """The costs of the parts of layers that a plan splits; raises as `problem_of_parts`."""
        known = self._split.used(plan.splits)
        if known is None:
            known = (LayerCosts(problem_of_parts(self.problem, plan)),)
            self._split.keep(plan.splits, known, KEPT_SPLITS)
        return known[0]

    def at(self, parallel: Parallelism, rates: GroupRates = NO_RATES, state_bytes: float | None = None) -> LayerCosts:
        """The costs on a device that divides layers with others and holds its share of each; ValueError as `context_part`.

        rates: of these, whose seconds are then those of the layers before or behind which they reduce, gather and exchange
        state_bytes: as of a problem, where ZeRO divides them
        """
        state, servers = self.problem.state_bytes if state_bytes is None else state_bytes, self.member.servers
        member = Member(parallel, rates, state, servers)
        if member not in self._members:
            alike = Member(parallel, NO_RATES, self.problem.state_bytes, servers)
            if member == alike:
                part = context_part(self.problem.workload, parallel.context) if parallel.context > 1 else None
                problem = replace(self.problem, workload=part) if part else self.problem
                made = self._members[member] = LayerCosts(problem, member)
                made._divided = None if self._divided is None else self._divided.at(parallel)
            else:  # what a device computes is the same, however long others take
                same = self.at(parallel)
                made = self._members[member] = LayerCosts(same.problem, member)
                made._alike = same
        return self._members[member]

    def across(self, devices: Iterable[int]) -> LayerCosts:
        """The costs under a plan on these devices: what stragglers add depends on the number of servers that they are in."""
        if not self.problem.stack.straggles:
            return self
        member = self.member._replace(servers=len(set(map(self.problem.cluster.server_of, devices))))
        if member not in self._members:
            made = self._members[member] = LayerCosts(self.problem, member)
            made.structures, made.places, made._divided = self.structures, self.places, self
        return self._members[member]

    @property
    def computing(self) -> LayerCosts:
        """The same costs without communication: the collectives of its groups take no time."""
        return self if self._alike is None else self._alike

    @cached_property
    def shares(self) -> tuple[Share, ...]:
        """The share of each layer that this device holds."""
        if (same := self._alike or self._divided) is not None:
            return same.shares
        return tuple(map(self._unlike_shares.__getitem__, unlike_layers(self.problem.workload)[1].tolist()))

    @cached_property
    def _unlike_shares(self) -> tuple[Share, ...]:
        """The shares of `unlike_layers`."""
        if (same := self._alike or self._divided) is not None:
            return same._unlike_shares
        divided, (tensor, _, expert) = self.problem.sequence_parallel, self.member.parallel
        unlike = unlike_layers(self.problem.workload)[0]
        return tuple(share_of(*one, tensor, expert=expert, sequence_parallel=divided) for one in unlike)

    def _of_shares(self, figure: Callable[[Share], float]) -> Floats:
        """A figure of each layer's share, float64 [layers]."""
        made: Floats = np.array([figure(share) for share in self._unlike_shares], dtype=np.float64)
        return made[unlike_layers(self.problem.workload)[1]]

    @cached_property
    def works(self) -> tuple[Work, ...]:
        """The work of each layer per sample, as an accelerator takes it."""
        if self._divided is not None:
            return self._divided.works
        return tuple(share.work for share in self.shares)

    def seconds(self, device: int, samples: int, phase: Phase) -> Floats:
        """Seconds of one pass of every layer over `samples` samples on a device, float64 [layers]: kernel time plus waits for the
        host, and what the stack takes of every block.

        A host that sends a layer every `launch_overhead` times `launches` seconds is behind where layers are small, and ahead
        after a large one: what the pass of a network waits in all is laid on the layers before which it waits, so that seconds
        of layers add up.
        """
        key = (self._kind_of_device[device], samples, phase)
        if key not in self._seconds:
            kernels = self.kernel_seconds(device, samples, phase)
            launches = self.launch_seconds(device, phase)
            seconds = kernels + launch_waits(kernels, launches, phase) if launches.any() else kernels
            if block_pass := self.problem.stack.block_pass.on(self._accelerators[key[0]]):
                seconds = seconds + block_pass * _PASSES[phase] * self._parts_of_blocks
            if any(self.member.rates):
                seconds = seconds + self._collective_seconds(samples, phase)
            self._seconds[key] = seconds
        return self._seconds[key]

    @cached_property
    def _parts_of_blocks(self) -> Floats:
        """Each layer's part of its block, float64 [layers]: evenly over those with weights of their own, which have all passes;
        0 where a measured profile includes what a framework takes.
        """
        layers = self.problem.workload.layers
        counted = [layer.block if product else 0 for layer, product in zip(layers, self._products, strict=True)]
        count = Counter(counted)
        return np.array([1.0 / count[one] if one and not self._measured else 0.0 for one in counted])

    def launch_seconds(self, device: int, phase: Phase) -> Floats:
        """Seconds that the host needs to launch each layer's pass, float64 [layers]; 0 where a measured profile includes them. A
        backward takes 1.5 times a forward, divided over the gradients that the layer has; a cast is launched with its product.
        """
        if self._alike is not None:
            return self._alike.launch_seconds(device, phase)
        key = self._kind_of_device[device], phase
        if key not in self._launches:
            self._launches[key] = self._counted_launch_seconds(device, phase)
        return self._launches[key]

    def _counted_launch_seconds(self, device: int, phase: Phase) -> Floats:
        accelerator = self._accelerators[self._kind_of_device[device]]
        launch = self.problem.stack.launches.on(accelerator) * optional_members(accelerator).launch_overhead
        if not launch or self._measured:
            return np.zeros(len(self.works))

        def runs(parts: Iterable[Phase]) -> Floats:
            """Number of these passes in which each layer runs a kernel, independent of the number of samples."""
            kernels = (self.kernel_seconds(device, 1, one) for one in parts)
            return sum((np.where(seconds > 0.0, 1.0, 0.0) for seconds in kernels), np.zeros(len(self.works)))

        if phase == "forward":
            launches = runs((phase,))
        else:
            launches = BACKWARD_LAUNCHES * runs(passes(phase)) / np.maximum(runs(passes("backward")), 1.0)
        return launches * launch

    def kernel_seconds(self, device: int, samples: int, phase: Phase) -> Floats:
        """Seconds for which one pass of each layer over `samples` samples keeps a device busy, float64 [layers], without launch
        overhead.
        """
        if self._alike is not None:
            return self._alike.kernel_seconds(device, samples, phase)
        kind = self._kind_of_device[device]
        key = (kind, samples, phase)
        if key not in self._kernels:
            accelerator, servers = self._accelerators[kind], self.member.servers

            of, unlike, stack = self.problem.precision_of, [], self.problem.stack
            for layer, work in self._unlike_layers[0]:
                if layer.measured:
                    unlike.append(measured_layer_seconds(layer, samples, phase))
                else:
                    unlike.append(stack.layer_seconds(accelerator, work, samples, phase, of(layer), servers))
            seconds = np.array(unlike)[self._unlike_layers[1]]
            beside = self._cast_seconds(accelerator, samples, phase), self._sort_seconds(accelerator, samples, phase)
            self._kernels[key] = seconds + beside[0] + beside[1]
        return self._kernels[key]

    @cached_property
    def _unlike_layers(self) -> tuple[list[tuple[Layer, Work]], Integers]:
        """Layers of which no two take equal seconds, with their works, and the place of each layer among them: blocks repeat."""
        if self._divided is not None:
            return self._divided._unlike_layers
        of, places = self.problem.precision_of, dict[Hashable, int]()
        found: list[tuple[Layer, Work]] = []
        number = []
        unlike, place = unlike_layers(self.problem.workload)
        for (layer, _), share in zip(unlike, self._unlike_shares, strict=True):
            like = (layer.measured, layer.has_weight_gradient) if layer.measured else (share.work, of(layer))
            if places.setdefault(like, len(found)) == len(found):
                found.append((layer, share.work))
            number.append(places[like])
        return found, np.array(number, dtype=np.int64)[place]

    def _sort_seconds(self, accelerator: Accelerator, samples: int, phase: Phase) -> Floats:
        """Seconds in which tokens that are exchanged are put into the order of experts, or back, float64 [layers]; gradients as
        they were.
        """
        if phase == "weight_gradient" or not self._sorted.any():
            return np.zeros(len(self.works))
        sort, what = self.problem.stack.sort_seconds, (samples, self.problem.stored_precision, self.member.servers)
        seconds = {elements: sort(accelerator, elements, *what) for elements in set(self._sorted.tolist())}
        return np.array([seconds[elements] for elements in self._sorted.tolist()])

    @cached_property
    def _sorted(self) -> Floats:
        """Elements per sample that each layer puts into the order of a device's experts behind their exchange, or back into that
        of the devices before it, float64 [layers]; 0 where no other device has experts, or each has one.
        """
        workload, elements = self.problem.workload, np.zeros(len(self.problem.workload))
        for producer, layer in self._exchanged:
            if workload.layers[layer].experts > self.member.parallel.expert:
                elements[layer] += self.shares[producer].output
        return elements

    @cached_property
    def _exchanged(self) -> tuple[tuple[int, int], ...]:
        """Layers whose output goes to routed experts of other devices, or comes from them, and where each is exchanged."""
        layers = self.problem.workload.layers
        if self.member.parallel.expert == 1:
            return ()
        across = [
            pair
            for pair in self.problem.workload.edges
            if (layers[pair[0]].experts > 0) != (layers[pair[1]].experts > 0)
        ]
        return tuple(sorted({(one, one if layers[one].experts else two) for one, two in across}))

    @cached_property
    def _casts(self) -> Flags:
        """Layers whose operands are cast to a narrower precision than the rest has, bool [layers]."""
        layers, stored = self.problem.workload.layers, self.problem.stored_precision
        return np.array([not layer.measured and self.problem.precision_of(layer) != stored for layer in layers])

    @cached_property
    def _narrowed(self) -> Floats:
        """What a group that divides tokens moves of a tensor in a forward and in an input gradient, times its bytes, float64
        [2, layers]: operands of products are gathered as they are cast, sums are scattered as they are.
        """
        problem, gathered = self.problem, ("columns", "rows")
        width = PRECISION_BYTES[problem.precision] / problem.element_bytes
        splits = [[layer.split == one for layer in problem.workload.layers] for one in gathered]
        return np.where(self._casts & np.array(splits) & problem.sequence_parallel, width, 1.0)

    def _cast_seconds(self, accelerator: Accelerator, samples: int, phase: Phase) -> Floats:
        """Seconds in which the operands of each layer are cast, float64 [layers]: the input in a forward, the output's gradient
        in the backward, before they are gathered; weights are cast once an iteration, which is not counted.
        """
        seconds = np.zeros(len(self._casts))
        if phase != "weight_gradient" and self._casts.any():
            elements = self._of_shares(lambda share: share.input if phase == "forward" else share.output)
            of_size, number = np.unique(np.where(self._casts, elements, 0.0), return_inverse=True)
            cast, what = self.problem.stack.cast_seconds, (samples, self.problem.precision, self.member.servers)
            seconds = np.array([cast(accelerator, one, *what) for one in of_size.tolist()])[number]
        return seconds

    def streams(self, device: int) -> bool:
        """Whether the layers of a stage run concurrently on this device (an FPGA): its seconds are not their sum."""
        return self._accelerators[self._kind_of_device[device]].streams and not self._measured

    def pass_seconds(self, device: int, phase: Phase) -> float:
        """Framework overhead of one pass of a stage, seconds, independent of its layers: per forward, and per full backward or
        input gradient. 0 for a measured profile, which includes it.
        """
        if self._measured or phase == "weight_gradient":
            return 0.0
        return self._pass_overheads[self._kind_of_device[device]]

    @cached_property
    def _pass_overheads(self) -> tuple[float, ...]:
        """Of each kind of accelerator, seconds."""
        return tuple(float(optional_members(one).pass_overhead) for one in self._accelerators)

    def stage_seconds(
        self, device: int, layers: Integers, samples: int, phase: Phase, *, again: Recompute | None = None
    ) -> float:
        """Seconds of one pass of some layers as one stage: the sum of its layers (or the streaming device's own rule) plus the
        framework overhead.

        again: as far as this policy runs them again, within a backward, whose framework's seconds these are not; a board that
            streams runs layers whole
        """
        kind = self._kind_of_device[device]
        accelerator = self._accelerators[kind]
        if self._measured or not streaming(accelerator):
            of_layers = self.seconds(device, samples, phase)[layers]
            if again:
                return float((of_layers * self.runs_again(again)[layers]).sum())
            return float(of_layers.sum()) + self.pass_seconds(device, phase)
        key = (kind, layers.tobytes(), samples, phase)
        if key not in self._streamed:
            works = [self.works[layer] for layer in layers]
            seconds = accelerator.stage_seconds(works, samples, phase, self.problem.precision)
            if any(self.member.rates):
                seconds += float(self._collective_seconds(samples, phase)[layers].sum())
            self._streamed[key] = seconds
        return self._streamed[key]

    def seconds_of_stages(self, device: int, held: Flags) -> SecondsOfStages:
        """A function that gives `stage_seconds` of several stages at once; a streaming board divides itself over the layers of
        each only once.

        held: bool [stages, layers], which layers each has; a stage of none takes no time
        """
        accelerator = self._accelerators[self._kind_of_device[device]]
        divided = getattr(accelerator, "divided", None)
        if divided is not None and self.streams(device) and not any(self.member.rates):
            own: SecondsOfStages = divided(self.works, held, self.problem.precision).seconds
            return own
        rows = [np.flatnonzero(row) for row in held]

        def one_by_one(samples: int, phase: Phase) -> Floats:
            return np.array([self.stage_seconds(device, row, samples, phase) if len(row) else 0.0 for row in rows])

        return one_by_one

    def round_trip_seconds(self, device: int, samples: int) -> Floats:
        """Seconds of forward plus backward of every layer, with the recomputation that the problem asks for, float64 [layers]."""
        forward = self.seconds(device, samples, "forward")
        total = forward + self.seconds(device, samples, "backward")
        return total + forward * self.runs_again(self.problem.recompute)

    def parts(self, recompute: Recompute) -> Integers:
        """For each layer the number (from 1) of the part that backward recomputes together, int64 [layers]; 0 where nothing is
        recomputed.
        """
        if recompute not in self._parts:
            self._parts[recompute] = self._parts_of(recompute)
        return self._parts[recompute]

    def _parts_of(self, recompute: Recompute) -> Integers:
        layers = self.problem.workload.layers
        if recompute == "attention":
            return np.where(self._attention, np.arange(1, len(layers) + 1), 0)
        if recompute in BY_BLOCK:
            return np.array([layer.block for layer in layers])
        return np.full(len(layers), int(recompute == "whole"))

    def parts_again(self, recompute: Recompute, layers: ArrayLike, blocks: int) -> Integers:
        """`parts` of the layers of a stage, which recomputes so many of its first blocks; 0 stands for all of them."""
        number = self.parts(recompute)[np.asarray(layers, dtype=np.int64)]
        if not blocks:
            return number
        first = np.unique(number[number > 0])[:blocks]
        return np.where(np.isin(number, first), number, 0)

    def runs_again(self, recompute: Recompute) -> Floats:
        """Share of each layer's forward that a recompute policy runs again, float64 [layers]."""
        if recompute not in self._again:
            self._again[recompute] = (self.parts(recompute) > 0) * (1.0 - self._kept_shares(recompute))
        return self._again[recompute]

    def made_bytes(self, recompute: Recompute) -> Floats:
        """Bytes per sample of `stashed_bytes` that backward recomputes, float64 [layers]."""
        if recompute not in self._made:
            self._made[recompute] = self._bytes_made(recompute)
        return self._made[recompute]

    def _bytes_made(self, recompute: Recompute) -> Floats:
        if recompute == "attention":
            return self._attention_bytes
        again = self.stashed_bytes * (self.parts(recompute) > 0)
        if recompute == "every-second-product":  # attention is kept, with what its backward needs of its own
            again = again - self._attention_bytes * (again > 0)
        return again - self._stashed_products(recompute)

    def products_bytes(self, recompute: Recompute) -> Floats:
        """Bytes per sample of outputs that a policy keeps of what it does not run again of a block, float64 [layers].

        Those that something in their block is made of which a backward needs, beside those that a layer stashes anyway.
        """
        if recompute not in self._kept_products:
            self._kept_products[recompute] = self.output_bytes * self._kept_shares(recompute) * self._needed_beside
        return self._kept_products[recompute]

    @cached_property
    def _needed_beside(self) -> Flags:
        """Which layers have an output that no layer stashes and something in their block is made of which a backward needs, bool
        [layers].
        """
        needed = np.zeros(len(self.works), dtype=np.bool_)
        stashed = np.zeros(len(self.works), dtype=np.bool_)
        for producer, consumer in sorted(self._edges_in_blocks, reverse=True):
            reads = self._reads_of_block[consumer] > 0.0
            needed[producer] |= reads or (needed[consumer] and not self._products[consumer])
            stashed[producer] |= reads and self._stashes(producer, consumer)
        return needed & ~stashed

    def _stashed_products(self, recompute: Recompute) -> Floats:
        """Bytes per sample of what layers stash that a policy keeps of another layer in the same block, float64 [layers]."""
        kept, read = self._kept_shares(recompute), np.zeros(len(self.works))
        for producer, consumer in self._edges_in_blocks:
            if self._stashes(producer, consumer):
                read[consumer] += self.output_bytes[producer] * kept[producer]
        return np.minimum(read, self._reads_of_block)

    def _stashes(self, producer: int, consumer: int) -> bool:
        """Whether what a layer keeps of its input is what another one has put out: a product keeps it of attention alone."""
        return bool(self._attention[producer] or not self._products[consumer])

    def _kept_shares(self, recompute: Recompute) -> Floats:
        """`kept_shares` of the layers, float64 [layers]."""
        if recompute not in self._kept:
            self._kept[recompute] = kept_shares(self.problem.workload, self.problem.precision, recompute)
        return self._kept[recompute]

    @cached_property
    def _reads_of_block(self) -> Floats:
        """Bytes per sample of `_stashed_inputs`, float64 [layers]; none of a dropout, which stashes its mask."""
        masks = np.array([layer.kind == "dropout" for layer in self.problem.workload.layers])
        return np.where(masks, 0.0, self._stashed_inputs)

    @cached_property
    def _edges_in_blocks(self) -> tuple[tuple[int, int], ...]:
        """Producers and consumers that are of one block."""
        layers = self.problem.workload.layers
        return tuple(edge for edge in self.problem.workload.edges if 0 < layers[edge[0]].block == layers[edge[1]].block)

    @cached_property
    def _products(self) -> Flags:
        """Which layers are products of weights."""
        return products_of(self.problem.workload)

    @cached_property
    def _attention(self) -> Flags:
        return np.array([layer.kind == "attention" for layer in self.problem.workload.layers])

    @cached_property
    def _attention_bytes(self) -> Floats:
        """What attention layers stash apart from their inputs, bytes per sample: scores, masks, softmax output."""
        return np.where(self._attention, self.stashed_bytes - self._stashed_inputs, 0.0)

    @cached_property
    def _stashed_inputs(self) -> Floats:
        """Bytes per sample of `stashed_bytes` that are layer inputs, float64 [layers]; all of them for a first layer, whose input
        is data.
        """
        return np.minimum(self.stashed_bytes, np.where(self._read_bytes > 0.0, self._read_bytes, np.inf))

    @cached_property
    def _read_bytes(self) -> Floats:
        """Bytes per sample that each layer reads from other layers, float64 [layers]."""
        return self._of_shares(lambda share: share.work.input_elements) * self.problem.element_bytes

    def _collective_seconds(self, samples: int, phase: Phase) -> Floats:
        """Seconds of the collectives of one pass of each layer on a member of a group, float64 [layers]."""
        found = np.zeros(len(self.works))
        for one in self._collectives:
            of_size, number = np.unique(one.sizes, return_inverse=True)
            seconds = np.array([reduce_seconds(one.rates, size * samples) for size in of_size.tolist()])
            found += seconds[number] * one.times(phase)
        return found

    def sent_bytes(self, layers: Integers, phase: Phase) -> float:
        """Bytes per sample that a member of a group sends to its peers in one pass of some layers."""
        moved = (one.others * one.sizes * one.times(phase) for one in self._collectives)
        return float(sum(one[layers].sum() for one in moved))

    @property
    def group_bytes(self) -> float:
        """Bytes per sample of the largest tensor that its tensor-parallel group reduces at once; 0 for a device alone."""
        tensor = self._collectives[0]
        return float(tensor.sizes.max(initial=0.0)) if tensor.rates else 0.0

    @cached_property
    def _collectives(self) -> tuple[_Collective, ...]:
        """The collectives of a member: all-reduces of its tensor-parallel group; the all-gather of the context's keys and values
        with the reduce-scatter of their gradients (together one and a half all-reduces); and the exchanges before and behind
        experts.
        """
        (tensor, context, expert), rates = self.member.parallel, self.member.rates
        element, workload = self.problem.element_bytes, self.problem.workload
        sizes = self._of_shares(lambda share: share.reduced) * element
        often = self._narrowed * (
            self._of_shares(lambda share: share.forward),
            self._of_shares(lambda share: share.backward),
        )
        found = [_Collective(rates.tensor, 2.0 * (tensor - 1) / tensor, sizes, *often)]
        if context > 1:
            mixes = np.array([layer.causal_tokens > 0 for layer in workload.layers])
            read = self._of_shares(lambda share: keys_and_values(share.work.input_elements, share.work.output_elements))
            sizes = read * mixes * context * element
            found.append(_Collective(rates.context, 2.0 * (context - 1) / context, sizes, mixes / 2, mixes * 1.0))
        if expert > 1:
            sizes = self.exchanged_bytes
            moves = np.where(sizes > 0.0, 1.0, 0.0)
            others = (expert - 1) / expert
            found += [_Collective(rates.expert, others, *one) for one in zip(sizes, moves, moves, strict=True)]
        return tuple(found)

    @property
    def exchanged_bytes(self) -> Floats:
        """Bytes per sample that a member exchanges with those that have other experts before each layer, and behind it, in a
        forward, and in an input gradient as well, float64 [2, layers].
        """
        sizes = np.zeros((2, len(self.problem.workload)))
        for producer, layer in self._exchanged:
            sizes[int(producer == layer), layer] += self.shares[producer].output * self.problem.element_bytes
        return sizes

    @cached_property
    def expert_parameters(self) -> Floats:
        """Weight elements of each layer in routed experts, float64 [layers]."""
        experts = [layer.experts > 0 for layer in self.problem.workload.layers]
        return np.where(experts, self.parameters, 0.0)

    def update_seconds(self, device: int, parameters: float) -> float:
        """Seconds of an optimizer step: it reads weights, gradients and states, and writes weights and states."""
        if parameters == 0:
            return 0.0
        problem = self.problem
        states = problem.optimizer_bytes / problem.element_bytes
        read = 1.0 + problem.accumulated_bytes / problem.element_bytes + states
        return self._streaming_seconds(device, parameters * read, parameters * (1.0 + states))

    def predict_seconds(self, device: int, parameters: float) -> float:
        """Seconds of a weight prediction: it reads the weights and the optimizer states (for Adam, two moments), and writes a
        copy.
        """
        if parameters == 0:
            return 0.0
        states = 4.0 * OPTIMIZER_STATES[self.problem.optimizer] / self.problem.element_bytes
        return self._streaming_seconds(device, parameters * (1.0 + states), parameters)

    def _streaming_seconds(self, device: int, read: float, written: float) -> float:
        """Seconds of one pass over elements of the problem's width, at the device's rate for element-wise work.

        A measured network's width is its profile's, whatever precisions the device knows: its bytes are moved as fp32.
        """
        problem, precision, scale = self.problem, self.problem.stored_precision, 1.0
        if problem.workload.bytes_per_element is not None:
            precision, scale = "fp32", problem.element_bytes / PRECISION_BYTES["fp32"]
        work = Work("elementwise", 0.0, read * scale, written * scale, 0.0)
        accelerator = self._accelerators[self._kind_of_device[device]]
        return answered_seconds(accelerator, work, 1, "forward", precision)

    @cached_property
    def parameters(self) -> Floats:
        """Weight elements of each layer, float64 [layers]; a tied weight counts at its owner."""
        return self._of_shares(lambda share: share.parameters)

    @cached_property
    def tied_weights(self) -> tuple[TiedWeight, ...]:
        """Weights that several layers share."""
        whole = self.problem.workload.tied_weights()
        return tuple(replace(one, parameters=self.shares[one.layers[1]].tied_parameters) for one in whole)

    def weight_elements(self, layers: Iterable[int], beside: Iterable[int] = ()) -> float:
        """Weight elements that some layers add to a device that already holds the layers `beside`.

        Their own, and a copy of each tied weight that they use and whose owner is not among them; what the device has is not
        held twice.
        """
        held, there = set(layers), set(beside)
        copies = sum(
            tied.parameters
            for tied in self.tied_weights
            if tied.layers[0] not in held and not held.isdisjoint(tied.layers) and there.isdisjoint(tied.layers)
        )
        again = sum(
            tied.parameters for tied in self.tied_weights if tied.layers[0] in held and there.intersection(tied.layers)
        )
        return float(self.parameters[sorted(held)].sum()) + copies - again

    def range_elements(self, ranges: Sequence[tuple[int, int]]) -> float:
        """`weight_elements` of layer ranges begin..end - 1 that share no layer, computed from prefix sums."""
        before = self.parameters_before
        own = sum(before[end] - before[begin] for begin, end in ranges)

        def held(layer: int) -> bool:
            return any(begin <= layer < end for begin, end in ranges)

        copies = sum(
            tied.parameters for tied in self.tied_weights if not held(tied.layers[0]) and any(map(held, tied.layers))
        )
        return float(own + copies)

    @cached_property
    def parameters_before(self) -> Floats:
        """Prefix sums of the own weight elements, before each cut, float64 [layers + 1]."""
        return np.concatenate([[0.0], np.cumsum(self.parameters)])

    @cached_property
    def stashed_bytes(self) -> Floats:
        """Bytes per sample that each layer stashes from forward to backward, float64 [layers]."""
        problem, logits = self.problem, self.problem.stack.logits.value
        times = np.array([logits if layer.kind == "loss" else 1.0 for layer in problem.workload.layers])
        beside: Floats = self._of_shares(lambda share: share.stashed_bytes) * times
        return self._of_shares(lambda share: share.stashed) * problem.element_bytes + beside

    @cached_property
    def loss_bytes(self) -> Floats:
        """Those of `stashed_bytes` that losses keep, float64 [layers]; 0 for other layers."""
        losses = [layer.kind == "loss" for layer in self.problem.workload.layers]
        return np.where(losses, self.stashed_bytes, 0.0)

    @cached_property
    def weight_stashed_bytes(self) -> Floats:
        """Bytes per sample of `stashed_bytes` that each layer's weight gradient needs, float64 [layers]; the end of the input
        gradient frees the rest.

        Of a layer with weights its input (of the first one the whole stash: no layer makes it), of an embedding none (it keeps
        no tokens). The graph tells the input, so that a layer that was measured with its full backward alone is split alike.
        """
        needs = [layer.has_weight_gradient and layer.kind != "embedding" for layer in self.problem.workload.layers]
        return np.where(needs, self._stashed_inputs, 0.0)

    @cached_property
    def cut_bytes(self) -> Floats:
        """Bytes per sample that cross the cut before each layer, float64 [layers + 1]; for a member of a group, its part."""
        return self._cut_bytes(self._outputs)

    @cached_property
    def gathered_cut_bytes(self) -> Floats:
        """The part of `cut_bytes` that every member of a group holds whole, float64 [layers + 1]."""
        return self._cut_bytes(self._whole_outputs)

    def _cut_bytes(self, outputs: Floats) -> Floats:
        sizes: Floats = self.problem.workload.cut_elements(outputs) * self.problem.element_bytes
        return sizes

    @property
    def output_bytes(self) -> Floats:
        """Bytes per sample of each layer's output, float64 [layers]; for a member of a group, its part."""
        return self._outputs * self.problem.element_bytes

    @cached_property
    def _outputs(self) -> Floats:
        return self._of_shares(lambda share: share.output)

    @cached_property
    def _whole_outputs(self) -> Floats:
        whole = np.array([layer.output_elements for layer in self.problem.workload.layers], dtype=np.float64)
        return np.where(self._outputs == whole, self._outputs, 0.0)

    def crossing_bytes(self, near: set[int] | frozenset[int], *, gathered: bool = False) -> float:
        """Bytes per sample that leave a set of layers: the output of every producer with a consumer outside, counted once.
        gathered: only outputs that every member of a group holds whole.
        """
        outputs = self._whole_outputs if gathered else self._outputs
        edges = self.problem.workload.edges
        crossing = {producer for producer, consumer in edges if producer in near and consumer not in near}
        return float(sum(outputs[producer] for producer in crossing) * self.problem.element_bytes)


def launch_waits(kernels: Floats, launches: Floats, phase: Phase) -> Floats:
    """Seconds that a device waits for the host before each layer of a pass, float64 [layers].

    Layer i ends at max(end of the layer before, launches up to i) + kernels[i]: the waits up to i are the most by which launches
    up to some layer exceed the kernels before it. A forward goes through the layers upwards, every gradient downwards.
    """
    if phase != "forward":
        return launch_waits(kernels[::-1], launches[::-1], "forward")[::-1]
    behind = np.cumsum(launches) - np.concatenate([[0.0], np.cumsum(kernels)[:-1]])
    behind[kernels == 0.0] = 0.0  # nothing runs that could wait
    return np.diff(np.maximum.accumulate(np.maximum(behind, 0.0)), prepend=0.0)


def measured_layer_seconds(layer: Layer, samples: int, phase: Phase) -> float:
    """Seconds of one pass of a measured layer over `samples` samples; the single rule for measured layers.

    Between two profiled sizes linearly, beyond the last in proportion to the samples, below the first of several rows that row's
    (a small call takes no less). One row alone is in proportion to the samples both ways: all that is known is a rate. The input
    gradient of a layer with weights is half of its backward.
    """
    rows = layer.measured
    if phase == "forward":
        return _interpolate(rows, samples, 1)
    backward = _interpolate(rows, samples, 2)
    if phase == "backward":
        return backward
    weight = backward / 2 if layer.has_weight_gradient else 0.0
    return weight if phase == "weight_gradient" else backward - weight


def _interpolate(rows: tuple[tuple[float, float, float], ...], samples: int, column: int) -> float:
    position = bisect_left([row[0] for row in rows], samples)
    if position == len(rows):
        return rows[-1][column] * samples / rows[-1][0]
    upper = rows[position]
    if upper[0] == samples:
        return upper[column]
    if position == 0:
        return upper[column] * samples / upper[0] if len(rows) == 1 else upper[column]
    lower = rows[position - 1]
    share = (samples - lower[0]) / (upper[0] - lower[0])
    return lower[column] + share * (upper[column] - lower[column])
