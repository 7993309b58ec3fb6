"""Stack: what runs a plan, a framework of some year: which plans it can run, its seconds and its bytes beside the devices' own.

seconds of a layer = those of the accelerator × products (× experts), attention or elementwise, by its kind
a product in fp8   += casts × those of an element-wise pass over its input (forward) or over its output's gradient (backward)
the host launches a layer every launches × the accelerator's launch overhead: a pass waits for it where its layers are small
a pass over a block = its layers + block_pass
a forward           = its layers + exposed × the gathers of its units             where replicas divide weights (ZeRO 3)
a backward          = its layers + exposed × (the gathers and the scatters)
collectives         = those of the cluster × tensor_collectives, or × replica_collectives
allocated bytes     = those of the plan's tensors, where a loss keeps logits × 4 bytes per logit, + workspace
reserved            = reserved × allocated
driver's            = reserved + context

Seconds of layers, and of casts, are those of a plan on one server; on several × (1 + stragglers × log2 of their number).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from math import log2
from typing import Any, Literal

from hardware_profiles.accelerator import (
    RECIPES,
    Accelerator,
    Phase,
    Precision,
    Work,
    answered_seconds,
    optional_member,
)
from hardware_profiles.numbers import check_real
from hardware_profiles.prediction_errors import NO_FRAMEWORK, ErrorClass
from hardware_profiles.words import GIB, blaming, brief, shown

PRODUCTS = frozenset({"convolution", "linear", "recurrent"})
"""Kinds of layer that are matrix products."""

LANES = 8
"""Attention kernels reach their full rate where the size of a head is a multiple of so many elements."""


RANGES: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(
        ("products", "attention", "elementwise", "experts", "launches", "tensor_collectives", "replica_collectives"),
        (0.05, 100.0),
    ),
    "odd_heads": (0.0, 100.0),
    "casts": (0.0, 100.0),
    "block_pass": (0.0, 10.0),
    "exposed": (0.0, 1.0),
    "stragglers": (0.0, 1.0),
}
"""Constants of a stack's seconds -> least and largest value: seconds, shares or factors."""

MEMORY_RANGES: Mapping[str, tuple[float, float]] = {
    "logits": (0.25, 10.0),
    "workspace": (0.0, 64.0 * GIB),
    "reserved": (1.0, 4.0),
    "context": (0.0, 64.0 * GIB),
}
"""Constants of a stack's memory -> least and largest value: bytes or factors."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant of a stack with its evidence.

    value: on every generation of accelerators without a value of its own
    source: where it comes from
    fitted, judged: measured tables that it was fitted on, and those that judged it
    generations: names of generations of accelerators, with the constant that holds there
    """

    value: float
    source: str = ""
    fitted: tuple[str, ...] = ()
    judged: tuple[str, ...] = ()
    generations: tuple[tuple[str, Constant], ...] = ()

    def on(self, accelerator: Accelerator) -> float:
        """Its value on an accelerator."""
        if not self.generations:
            return self.value
        return dict(self.generations).get(optional_member(accelerator, "generation"), self).value


SAME, NONE = Constant(1.0), Constant(0.0)
"""The factor and the addend that change nothing."""


Gathered = Literal["blocks", "products"]
"""What replicas gather, and scatter, at once: a block, or the weights of a product."""

Rule = Callable[[Any, Any], Iterable[str]]
"""(problem, plan) -> what the plan needs and is not there, in words, as a noun phrase each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Which plans a stack, or a launcher, can run; an empty list means no restriction.

    chips: kinds of accelerators that it runs on, as far as it is chosen; a stack that is named is taken on any
    zero: what replicas may divide; schedules, recompute, precisions: those that it has
    tensor, context, expert, pipeline: whether it divides layers, tokens, experts, and the network
    interleaved: whether a device may hold several stages; looped_alone: also one that holds the whole network; short_groups: also
        with fewer micro-batches than ranks
    looped_once: whether schedules of several stages per device also run with one; else it runs another then
    cut_blocks: whether stages may end inside blocks; unlike_recompute: whether each may have a recompute policy of its own, and
        a number of its first blocks
    unequal: whether micro-batches, replicas and stages of a plan may have unlike sizes
    sequence_parallel: whether tensor-parallel groups may divide the rest, too
    fused_attention: whether it has attention in one kernel (FlashAttention)
    hybrid_sharding: whether ZeRO may divide among part of the replicas, which then are copies of each other
    further: rules that no list says, such as where stages may end; a stack's file has none
    """

    chips: tuple[str, ...] = ()
    zero: tuple[int, ...] = (0, 1, 2, 3)
    schedules: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ()
    precisions: tuple[Precision, ...] = ()
    tensor: bool = True
    context: bool = True
    expert: bool = True
    pipeline: bool = True
    interleaved: bool = True
    looped_alone: bool = True
    short_groups: bool = True
    looped_once: bool = True
    cut_blocks: bool = True
    unlike_recompute: bool = True
    unequal: bool = True
    sequence_parallel: bool = True
    fused_attention: bool = True
    hybrid_sharding: bool = True
    further: tuple[Rule, ...] = ()

    def within(self, other: Runs) -> Runs:
        """Which plans both can run; ValueError, in words, where two lists have nothing in common."""
        found: dict[str, Any] = {"further": (*self.further, *other.further)}
        for one in fields(self):
            mine, others = getattr(self, one.name), getattr(other, one.name)
            if isinstance(mine, bool):
                found[one.name] = mine and others
            elif one.name not in found:
                found[one.name] = (
                    tuple(value for value in mine if value in others) if mine and others else mine or others
                )
                if mine and not found[one.name]:
                    raise ValueError(f"{one.name}: {_listed(mine)} here, {_listed(others)} there")
        return replace(self, **found)

    def __str__(self) -> str:
        """The restrictions in words."""
        lists = {
            "ZeRO": self.zero,
            "schedules": self.schedules,
            "recompute": self.recompute,
            "precisions": self.precisions,
        }
        said = [f"{words} {', '.join(map(str, known))}" for words, known in lists.items() if 0 < len(known) < 4]
        said += [f"no {one.name.replace('_', ' ')}" for one in fields(self) if getattr(self, one.name) is False]
        return "; ".join(said) or "every plan"


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """What runs a plan: a training framework, with its constants.

    runs: which plans it can run
    products, attention, elementwise: times the accelerator's seconds of layers of those kinds
    experts: times those of products of routed experts, beside `products`: tokens are spread unevenly, and few go to each
    odd_heads: added to `attention` where LANES does not divide the size of a head
    casts: times the seconds in which the operands of products in a precision of RECIPES are read in the other one and written,
        as rows and as columns, in bytes: as many bytes as an element-wise kernel of 16 bits moves
    launches: times the accelerator's `launch_overhead`, in which the host launches a layer
    tensor_collectives: times the seconds of collectives inside tensor-parallel groups
    replica_collectives: times those of reductions, scatters and gathers among replicas
    block_pass: seconds of every pass over a block beside its kernels
    exposed: share of what replicas gather and scatter in every pass that is never hidden behind computation
    stragglers: share of the seconds of layers that every doubling of a plan's servers adds, as its devices wait for the slowest
    logits: times the 4 bytes of each logit that a loss keeps
    workspace: bytes that its libraries allocate on every device beside the plan's tensors
    reserved: times what is allocated: what the caching allocator holds, with rounding and fragments
    context: bytes that the driver counts beside: CUDA context, buffers of communicators; 0: the accelerator's reserve
    gradient_bytes: of an accumulated 16-bit gradient where the problem says nothing; 0: as the weights
    gathered: what replicas that divide weights, or gradients, have whole at once: two blocks, or two products
    narrow_copy: whether 16-bit weights stay beside the fp32 ones; else they are cast from these as they are used
    errors: classes of errors of its predictions, in place of those that its name has among the shipped ones
    launcher: what is to launch its plans (`launched_by`); "" where nobody says
    source: the name or the path that gives it again; None for one that was made in Python
    """

    name: str
    description: str = ""
    runs: Runs = Runs()
    products: Constant = SAME
    attention: Constant = SAME
    experts: Constant = SAME
    odd_heads: Constant = NONE
    elementwise: Constant = SAME
    casts: Constant = SAME
    launches: Constant = SAME
    tensor_collectives: Constant = SAME
    replica_collectives: Constant = SAME
    block_pass: Constant = NONE
    exposed: Constant = NONE
    stragglers: Constant = NONE
    logits: Constant = SAME
    workspace: Constant = NONE
    reserved: Constant = SAME
    context: Constant = NONE
    gradient_bytes: int = 0
    gathered: Gathered = "blocks"
    narrow_copy: bool = True
    errors: tuple[ErrorClass, ...] = ()
    launcher: str = field(init=False, default="", repr=False)
    source: str | None = field(init=False, default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        return brief(self, self.name)

    def __post_init__(self) -> None:
        for name, constant in self.constants().items():
            least, most = {**RANGES, **MEMORY_RANGES}[name]
            for where, one in ((name, constant), *((f"{name} of {of}", own) for of, own in constant.generations)):
                check_real(f"stack {self.name}: {where}", one.value)
                if not least <= one.value <= most:
                    raise ValueError(
                        f"stack {self.name}: {where} must be from {least:g} to {most:g}, got {shown(one.value)}; check the unit"
                    )

    @property
    def title(self) -> str:
        """What messages call it."""
        return f"stack {self.name!r}" + f" launched by {self.launcher}" * bool(self.launcher)

    def launched_by(self, launcher: str, runs: Runs) -> Stack:
        """The stack for plans that a launcher can run, too: with the same constants, and named by files as this one is.

        ValueError where it has no plans in common with the launcher.
        """
        with blaming(ValueError, f"stack {self.name!r} runs no plan that {launcher} does"):
            narrowed = replace(self, runs=self.runs.within(runs))
        object.__setattr__(narrowed, "launcher", launcher)
        object.__setattr__(narrowed, "source", self.source or (GENERIC.name if self == GENERIC else None))
        return narrowed

    def constants(self) -> dict[str, Constant]:
        """Its constants by name."""
        return {name: getattr(self, name) for name in (*RANGES, *MEMORY_RANGES)}

    def is_nowhere_quicker(self, other: Stack, accelerators: Iterable[Accelerator]) -> bool:
        """Whether another one runs the same plans, each in no more seconds and bytes on these accelerators."""
        if (self.runs, self._bytes_held) != (other.runs, other._bytes_held):
            return False
        mine, others = self.constants(), other.constants()
        return all(mine[name].on(one) >= others[name].on(one) for one in accelerators for name in mine)

    @property
    def _bytes_held(self) -> tuple[object, ...]:
        """What it says of bytes, apart from constants."""
        return self.gradient_bytes, self.gathered, self.narrow_copy

    @property
    def straggles(self) -> bool:
        """Whether its seconds of layers depend on the number of servers that a plan is on."""
        return any(one.value for one in (self.stragglers, *(own for _, own in self.stragglers.generations)))

    def runs_on(self, accelerators: Iterable[Accelerator]) -> bool:
        """Whether it runs on all of these; no framework runs on boards whose layers stream."""
        return all(
            not one.streams and (not self.runs.chips or optional_member(one, "chip") in self.runs.chips)
            for one in accelerators
        )

    def times(self, accelerator: Accelerator, work: Work) -> float:
        """Factor on the accelerator's own seconds of a layer; 1 on boards whose layers stream, which no framework runs."""
        if accelerator.streams:
            return 1.0
        if work.kind in PRODUCTS:
            return self.products.on(accelerator) * (self.experts.on(accelerator) if work.experts else 1.0)
        if work.kind != "attention":
            return self.elementwise.on(accelerator)
        odd = self.odd_heads.on(accelerator) if work.head_size % LANES else 0.0
        return self.attention.on(accelerator) + odd

    def waits(self, accelerator: Accelerator, servers: int) -> float:
        """Factor on the seconds of a layer in a plan on so many servers (TPUs: slices), over one; 1 on boards that stream."""
        if servers == 1 or accelerator.streams:
            return 1.0
        return 1.0 + self.stragglers.on(accelerator) * log2(servers)

    def layer_seconds(
        self, accelerator: Accelerator, work: Work, samples: float, phase: Phase, precision: Precision, servers: int = 1
    ) -> float:
        """Seconds of one pass of one layer over `samples` samples in a plan on so many servers; operands need no cast."""
        own = answered_seconds(accelerator, work, samples, phase, precision)
        return self.factor(accelerator, work, servers) * own

    def factor(self, accelerator: Accelerator, work: Work, servers: int = 1) -> float:
        """Factor on the accelerator's own seconds of a layer in a plan on so many servers."""
        return self.times(accelerator, work) * self.waits(accelerator, servers)

    def cast_seconds(
        self, accelerator: Accelerator, elements: float, samples: float, precision: Precision, servers: int = 1
    ) -> float:
        """Seconds to cast so many elements per sample to the precision of a product, one of RECIPES."""
        if not elements or accelerator.streams:
            return 0.0
        cast = Work("elementwise", 0.0, elements, elements, 0)
        times = self.casts.on(accelerator) * self.waits(accelerator, servers)
        return times * answered_seconds(accelerator, cast, samples, "forward", RECIPES[precision])

    def sort_seconds(
        self, accelerator: Accelerator, elements: float, samples: float, precision: Precision, servers: int = 1
    ) -> float:
        """Seconds to permute so many elements per sample: to read them and write them in another order."""
        if not elements or accelerator.streams:
            return 0.0
        work = Work("elementwise", 0.0, elements, elements, 0)
        return self.layer_seconds(accelerator, work, samples, "forward", precision, servers)

    def workspace_bytes(self, accelerator: Accelerator) -> float:
        """Bytes that its libraries allocate on a device; none on boards that no framework runs."""
        return 0.0 if accelerator.streams else self.workspace.on(accelerator)

    def reserved_bytes(self, accelerator: Accelerator, allocated: float) -> float:
        """Bytes that the caching allocator of a device reserves when so many are allocated."""
        return allocated if accelerator.streams else self.reserved.on(accelerator) * allocated

    def driver_bytes(self, accelerator: Accelerator, allocated: float) -> float:
        """Bytes that the driver of a device (nvidia-smi) shows when so many are allocated."""
        return self.reserved_bytes(accelerator, allocated) + self._context_bytes(accelerator)

    def room_bytes(self, accelerator: Accelerator) -> float:
        """The most that may be allocated, the workspace with it, so that what the driver shows is on the device."""
        beside = self._context_bytes(accelerator) - float(optional_member(accelerator, "reserve_bytes"))
        return (accelerator.memory_bytes - beside) / self.reserved_bytes(accelerator, 1.0)

    def _context_bytes(self, accelerator: Accelerator) -> float:
        own = 0.0 if accelerator.streams else self.context.on(accelerator)
        return own or float(optional_member(accelerator, "reserve_bytes"))


GENERIC = Stack(
    name=NO_FRAMEWORK, description="no framework in particular: the seconds of devices and links as they are"
)
"""The default stack."""
