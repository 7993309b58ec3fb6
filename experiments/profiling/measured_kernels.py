"""Kernels: what is measured of a device, each as the work that the device's model prices; knows no framework.

A kernel is told by what it computes, its pass and its sizes. Measured ones are read from and written to JSON, so that constants
can be fitted where the device is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, get_args

import msgspec

from hardware_profiles import PRECISION_BYTES, Phase, Precision, Work, demand

What = Literal[
    "product",
    "attention",
    "layer-norm",
    "rms-norm",
    "gelu",
    "gated-silu",
    "dropout",
    "add",
    "embedding",
    "loss",
    "adam",
    "copy",
    "to-host",
    "from-host",
    "launch",
    "layer",
]
"""What a kernel computes: a product of weights; fused attention; element-wise work; an optimizer's step over fp32 states; copies
inside the device and over its host's link; what a host needs to launch one small kernel, and a layer of a small decoder block
under autograd."""

KINDS: dict[str, str] = {
    "product": "linear",
    "attention": "attention",
    "layer-norm": "normalization",
    "rms-norm": "normalization",
    "gelu": "activation",
    "gated-silu": "activation",
    "dropout": "dropout",
    "add": "elementwise",
    "adam": "elementwise",
    "embedding": "embedding",
    "loss": "loss",
}
"""Kinds of layer that kernels are priced as; of the others the device's model has no layer."""


_Size = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
_Amount = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel.

    phase: its pass; `backward` where one kernel makes all gradients
    rows, inputs, outputs: tokens of a product, and features that go in and come out; of element-wise work rows and features
        (`inputs`); of a loss its logits (`outputs`); of an embedding its table (`inputs`) and features (`outputs`); weights of
        an optimizer (`inputs`), bytes of a copy (`inputs`)
    batch, tokens, heads, key_value_heads, head_size, causal: of attention
    """

    what: What
    phase: Phase = "forward"
    precision: Precision = "bf16"
    rows: _Count = 1
    inputs: _Size = 0
    outputs: _Size = 0
    batch: _Size = 0
    tokens: _Size = 0
    heads: _Size = 0
    key_value_heads: _Size = 0
    head_size: _Size = 0
    causal: bool = False

    @property
    def shape(self) -> Kernel:
        """What all passes of one shape have in common: its forward."""
        return msgspec.structs.replace(self, phase="forward")

    @property
    def moved_bytes(self) -> float:
        """Bytes that it reads and writes at least; of a copy over the link of a host those that cross it."""
        if self.what in ("to-host", "from-host"):
            return float(self.inputs)
        if self.what == "copy":
            return 2.0 * self.inputs
        return demand(self.work(), 1.0, "forward", PRECISION_BYTES[self.precision]).traffic

    def __str__(self) -> str:
        """In words."""
        if self.what == "attention":
            heads = f"{self.heads}/{self.key_value_heads} heads of {self.head_size}"
            masked = ", causal" if self.causal else ""
            return f"attention {self.phase}, {self.batch} x {self.tokens} tokens, {heads}{masked}"
        sizes = " x ".join(str(size) for size in (self.rows, self.inputs, self.outputs) if size)
        return f"{self.what} {self.phase}, {sizes}"

    def work(self) -> Work:
        """The work of one sample that is the whole kernel. ValueError for what no layer is."""
        if self.what not in KINDS:
            raise ValueError(f"{self.what}: no kind of layer is one")
        read, made = float(self.rows * self.inputs), float(self.rows * self.outputs)
        kind = KINDS[self.what]
        if self.what == "product":
            return Work(kind, 2.0 * read * self.outputs, read, made, self.inputs * self.outputs)
        if self.what == "attention":
            return self._attention()
        if self.what == "embedding":
            return Work(kind, 0.0, float(self.rows), made, self.inputs * self.outputs)
        if self.what == "loss":
            return Work(kind, 0.0, made, float(self.rows), 0)
        if self.what == "adam":  # reads weights, gradients and two moments, and writes all but gradients
            return Work(kind, 0.0, 4.0 * read, 3.0 * read, 0)
        operands = {"gated-silu": 2.0, "add": 2.0}.get(self.what, 1.0)
        weights = {"layer-norm": 2, "rms-norm": 1}.get(self.what, 0) * self.inputs
        return Work(kind, 0.0, operands * read, read, weights)

    def _attention(self) -> Work:
        query = float(self.batch * self.tokens * self.heads * self.head_size)
        others = 2.0 * self.batch * self.tokens * self.key_value_heads * self.head_size
        return Work(
            "attention",
            4.0 * query * self.tokens,
            query + others,
            query,
            0,
            fused_pairs=0.5 if self.causal else 1.0,
            head_size=self.head_size,
        )


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel's seconds: their median over so many runs, and the interquartile range over it; calls: in each run."""

    kernel: Kernel
    seconds: _Amount
    spread: _Amount
    runs: _Count
    calls: _Count = 1


CollectiveName = Literal["all-reduce", "all-gather", "reduce-scatter"]
COLLECTIVES: tuple[CollectiveName, ...] = get_args(CollectiveName)


class Collective(msgspec.Struct, frozen=True, kw_only=True):
    """A collective's seconds over so many devices; bytes: the whole tensor; otherwise as `Measured`."""

    operation: CollectiveName
    devices: _Count
    bytes: _Size
    seconds: _Amount
    spread: _Amount
    runs: _Count


class Collected(msgspec.Struct):
    """What a process that measured collectives tells the one which started it; failed: those that do not run, with the reason."""

    collectives: list[Collective]
    failed: dict[str, str]


class Measurements(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of a device.

    device: as its framework calls it; kind: cpu or cuda; software: what ran it, with versions; date: ISO 8601
    memory_bytes: of the device; failed: kernels that do not run there, with the reason
    """

    device: _Text
    kind: _Text
    software: _Text
    date: _Text
    memory_bytes: _Size
    kernels: tuple[Measured, ...]
    collectives: tuple[Collective, ...] = ()
    failed: dict[str, str] = {}

    @classmethod
    def of(cls, document: Any) -> Measurements:
        """Those of a JSON document, or of its key `measurements`. Raises msgspec.ValidationError."""
        if isinstance(document, dict) and "measurements" in document:
            document = document["measurements"]
        return msgspec.convert(document, cls)


GRADIENTS: tuple[Phase, ...] = ("forward", "input_gradient", "weight_gradient")
WHOLE: tuple[Phase, ...] = ("forward", "backward")

FLOOR = Kernel(what="add", inputs=64)
"""A kernel with next to nothing to do: what every kernel takes."""

HEAD_SIZES = (56, 64, 80, 96, 108, 112, 128, 150, 192, 256)
"""Sizes of a head that networks have; of some of them kernels of attention run with padding."""


def standard_kernels(
    hidden: Sequence[int], tokens: Sequence[int], vocabulary: int, precision: Precision
) -> tuple[Kernel, ...]:
    """Kernels of transformers with these hidden sizes, at these numbers of tokens, each once."""
    found = [
        *(one for width in hidden for rows in tokens for one in _products(width, rows)),
        *_attention(max(tokens)),
        *(one for width in hidden for one in _elementwise(width, max(tokens), vocabulary)),
        *_beside(max(hidden) * max(tokens)),
    ]
    kept = (one if one.what == "adam" else msgspec.structs.replace(one, precision=precision) for one in found)
    return tuple(dict.fromkeys(kept))


def _products(width: int, rows: int) -> Iterator[Kernel]:
    """Square, wide and deep products, and those of an eighth: thin ones, and ones with a short reduction."""
    part = max(8, width // 8)
    shapes = [(width, width), (width, 4 * width), (4 * width, width), (width, 3 * part), (part, width)]
    for inputs, outputs in shapes:
        for phase in GRADIENTS:
            yield Kernel(what="product", phase=phase, rows=rows, inputs=inputs, outputs=outputs)


def _attention(most: int) -> Iterator[Kernel]:
    """Attention over as many tokens in all: long sequences, sizes of heads, grouped queries, without a mask, and a small one."""

    def kernel(
        tokens: int, heads: int, groups: int, size: int, causal: bool = True, batch: int = 0
    ) -> Iterator[Kernel]:
        for phase in WHOLE:
            yield Kernel(
                what="attention",
                phase=phase,
                batch=batch or max(1, most // tokens),
                tokens=tokens,
                heads=heads,
                key_value_heads=groups,
                head_size=size,
                causal=causal,
            )

    for divisor in (1, 2, 4, 8, 16):
        yield from kernel(max(1, most // divisor), 16, 16, 128)
    for size in HEAD_SIZES:
        yield from kernel(max(1, most // 8), 16, 16, size)
    for divisor in (2, 8):
        yield from kernel(max(1, most // divisor), 32, 8, 128)
        yield from kernel(max(1, most // divisor), 16, 16, 64)
    yield from kernel(max(1, most // 4), 16, 16, 128, causal=False)
    yield from kernel(max(1, most // 16), 8, 8, 128, batch=1)


ONE_OPERAND: tuple[What, ...] = ("layer-norm", "rms-norm", "dropout")
WIDE: tuple[What, ...] = ("gelu", "gated-silu")


def _elementwise(width: int, rows: int, vocabulary: int) -> Iterator[Kernel]:
    for phase in WHOLE:
        for what in ONE_OPERAND:
            yield Kernel(what=what, phase=phase, rows=rows, inputs=width)
        for what in WIDE:
            yield Kernel(what=what, phase=phase, rows=rows, inputs=4 * width)
        yield Kernel(what="embedding", phase=phase, rows=rows, inputs=vocabulary, outputs=width)
        yield Kernel(what="loss", phase=phase, rows=max(1, rows // 4), outputs=vocabulary)
    yield Kernel(what="add", rows=rows, inputs=width)


def _beside(elements: int) -> Iterator[Kernel]:
    for divisor in (1, 8, 64):
        part = max(1, elements // divisor)
        yield Kernel(what="adam", precision="fp32", inputs=part)
        yield Kernel(what="copy", inputs=2 * part)
        yield Kernel(what="to-host", inputs=2 * part)
        yield Kernel(what="from-host", inputs=2 * part)
    yield FLOOR
    yield Kernel(what="launch", inputs=64)
    yield Kernel(what="layer", inputs=64)
    yield Kernel(what="layer", phase="backward", inputs=64)
