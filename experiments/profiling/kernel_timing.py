"""Kernel timing: seconds of kernels on the machine at hand, through PyTorch.

On a GPU the calls of a run wait in its queue behind a delay, so that none of them waits for the host, and the GPU's own clock
takes their time; on a CPU, and where the host's time is asked for, the host's clock does. Each call takes the next of several
sets of inputs, together larger than a cache.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch.nn import functional

from experiments.profiling.layer_profiler import device_name, synchronize
from experiments.profiling.measured_kernels import Kernel, Measured, Measurements
from experiments.profiling.pass_timing import relative_spread
from hardware_profiles import one_line

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

CACHED = 256 * 2**20
"""Bytes that the sets of inputs have together, at least: more than a GPU's cache."""

MOST_SETS, MOST_CALLS = 8, 40

RUN_SECONDS = 3e-3
"""Seconds that the calls of a run take together, about, on a GPU."""

HOST_SECONDS = 1e-4
"""Seconds of the host that a call waits for in the queue of a GPU, at most."""

BLOCK_TOKENS, BLOCK_LAYERS = 8, 10
"""Tokens that go through a small decoder block, and its layers: two of each of normalizations and sums, four products, attention
and an activation."""

CYCLES_PER_SECOND = 2e9
"""Of a GPU's clock, at most: a delay is counted in its cycles."""

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class KernelSettings:
    """device: cpu or cuda; warm_up, repeats: runs before and during measurement; seed: of inputs; seconds: of all, at most."""

    device: str
    warm_up: int
    repeats: int
    seed: int
    seconds: float


def measure_kernels(
    kernels: Sequence[Kernel], settings: KernelSettings, progress: Callable[[int, str], None] = lambda done, text: None
) -> Measurements:
    """Measure each kernel; one that does not run there (too large, no such kernel) is noted and passed over."""
    torch.manual_seed(settings.seed)
    until = time.monotonic() + settings.seconds
    _wake(settings.device)
    found: list[Measured] = []
    failed: dict[str, str] = {}
    with _tf32(any(kernel.precision == "tf32" for kernel in kernels)):
        for number, kernel in enumerate(kernels):
            progress(number, str(kernel))
            if time.monotonic() > until:
                failed[str(kernel)] = "no time was left"
                continue
            try:
                found.append(_measured(kernel, settings))
            except (RuntimeError, NotImplementedError) as error:  # out of memory, no kernel of this size
                failed[str(kernel)] = one_line(str(error))[:200]
            if settings.device == "cuda":
                torch.cuda.empty_cache()
    return Measurements(
        device=device_name(settings.device),
        kind=settings.device,
        software=f"torch {torch.__version__}",
        date=datetime.now(UTC).date().isoformat(),
        memory_bytes=_memory_bytes(settings.device),
        kernels=tuple(found),
        failed=failed,
    )


def _measured(kernel: Kernel, settings: KernelSettings) -> Measured:
    calls = _PREPARE[kernel.what](kernel, settings.device)
    first = next(calls)
    sets = [first, *(next(calls) for _ in range(_sets(kernel, settings.device) - 1))]
    following = cycle(sets)
    run: Callable[[int], float] = partial(
        _host_seconds if settings.device == "cpu" or kernel.what in ("launch", "layer") else _gpu_seconds,
        following,
        settings.device,
    )
    run(len(sets))
    once = run(1)
    count = max(1, min(MOST_CALLS, math.ceil(RUN_SECONDS / max(once, 1e-9)))) if settings.device == "cuda" else 1
    if kernel.what in ("launch", "layer"):
        count = MOST_CALLS
    layers = BLOCK_LAYERS if kernel.what == "layer" else 1
    seconds = [run(count) / layers for _ in range(settings.warm_up + settings.repeats)][settings.warm_up :]
    return Measured(
        kernel=kernel,
        seconds=statistics.median(seconds),
        spread=relative_spread(seconds),
        runs=settings.repeats,
        calls=count,
    )


def _host_seconds(calls: Iterator[Call], device: str, count: int) -> float:
    """Seconds of a call by the host's clock, which does not wait until the device is done."""
    synchronize(device)
    began = time.perf_counter()
    for _ in range(count):
        next(calls)()
    seconds = time.perf_counter() - began
    synchronize(device)
    return seconds / count


def _gpu_seconds(calls: Iterator[Call], device: str, count: int) -> float:
    """Seconds of a call by the GPU's clock, with all calls in its queue before the first begins."""
    began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    synchronize(device)
    torch.cuda._sleep(int(count * HOST_SECONDS * CYCLES_PER_SECOND))
    began.record()
    for _ in range(count):
        next(calls)()
    ended.record()
    synchronize(device)
    return float(began.elapsed_time(ended)) * 1e-3 / count


# ------------------------------------------------------------------------------------------------------------- calls


def _random(shape: Sequence[int], kernel: Kernel, device: str, gradient: bool = False) -> torch.Tensor:
    made = torch.empty(tuple(shape), device=device, dtype=DTYPES[kernel.precision]).normal_()
    return made.requires_grad_(gradient)


def _product(kernel: Kernel, device: str) -> Iterator[Call]:
    while True:
        weights = _random((kernel.outputs, kernel.inputs), kernel, device)
        read = _random((kernel.rows, kernel.inputs), kernel, device)
        made = _random((kernel.rows, kernel.outputs), kernel, device)
        if kernel.phase == "forward":
            yield partial(functional.linear, read, weights)
        elif kernel.phase == "input_gradient":
            yield partial(torch.mm, made, weights)
        else:
            yield partial(torch.mm, made.t(), read)


def _attention(kernel: Kernel, device: str) -> Iterator[Call]:
    grouped = {"enable_gqa": True} if kernel.key_value_heads != kernel.heads else {}
    function = partial(functional.scaled_dot_product_attention, is_causal=kernel.causal, **grouped)
    shapes = [
        (kernel.batch, heads, kernel.tokens, kernel.head_size)
        for heads in (kernel.heads, *(kernel.key_value_heads,) * 2)
    ]
    return _of_function(kernel, device, function, shapes)


def _of_function(
    kernel: Kernel, device: str, function: Callable[..., torch.Tensor], shapes: Sequence[Sequence[int]]
) -> Iterator[Call]:
    """A function of tensors of these shapes, or its gradients of all of them."""
    while True:
        given = [_random(shape, kernel, device, gradient=True) for shape in shapes]
        yield _pass(kernel, function, given, given)


def _pass(kernel: Kernel, function: Callable[..., torch.Tensor], given: Sequence[Any], wanted: Sequence[Any]) -> Call:
    if kernel.phase == "forward":
        return partial(function, *given)
    result = function(*given)
    gradient = torch.ones_like(result) if result.dim() == 0 else torch.empty_like(result).normal_()
    return partial(torch.autograd.grad, result, list(wanted), gradient, retain_graph=True)


def _normalization(kernel: Kernel, device: str) -> Iterator[Call]:
    layer = functional.layer_norm if kernel.what == "layer-norm" else functional.rms_norm
    weights = [(kernel.inputs,)] * (2 if kernel.what == "layer-norm" else 1)

    def function(read: torch.Tensor, *factors: torch.Tensor) -> torch.Tensor:
        return layer(read, (kernel.inputs,), *factors)

    return _of_function(kernel, device, function, [(kernel.rows, kernel.inputs), *weights])


def _gated(up: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    return functional.silu(gate) * up


def _elementwise(kernel: Kernel, device: str) -> Iterator[Call]:
    functions: dict[str, tuple[Callable[..., torch.Tensor], int]] = {
        "gelu": (partial(functional.gelu, approximate="tanh"), 1),
        "gated-silu": (_gated, 2),
        "dropout": (partial(functional.dropout, p=0.1), 1),
        "add": (torch.add, 2),
    }
    function, operands = functions[kernel.what]
    return _of_function(kernel, device, function, [(kernel.rows, kernel.inputs)] * operands)


def _embedding(kernel: Kernel, device: str) -> Iterator[Call]:
    while True:
        table = _random((kernel.inputs, kernel.outputs), kernel, device, gradient=True)
        words = torch.randint(kernel.inputs, (kernel.rows,), device=device)
        yield _pass(kernel, functional.embedding, (words, table), (table,))


def _loss(kernel: Kernel, device: str) -> Iterator[Call]:
    def function(logits: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits.float(), words)

    while True:
        logits = _random((kernel.rows, kernel.outputs), kernel, device, gradient=True)
        words = torch.randint(kernel.outputs, (kernel.rows,), device=device)
        yield _pass(kernel, function, (logits, words), (logits,))


def _adam(kernel: Kernel, device: str) -> Iterator[Call]:
    while True:
        weights = torch.nn.Parameter(torch.empty(kernel.inputs, device=device).normal_())
        weights.grad = torch.empty(kernel.inputs, device=device).normal_()
        yield torch.optim.AdamW([weights], lr=1e-4, fused=True).step


def _copy(kernel: Kernel, device: str) -> Iterator[Call]:
    """Copies of bytes; the host's side is pinned where there is a GPU."""
    pinned = device == "cuda"

    def there(on_host: bool) -> torch.Tensor:
        if on_host:
            return torch.empty(kernel.inputs, dtype=torch.uint8, pin_memory=pinned).fill_(1)
        return torch.empty(kernel.inputs, dtype=torch.uint8, device=device).fill_(1)

    while True:
        to, source = there(kernel.what == "to-host"), there(kernel.what == "from-host")
        yield partial(to.copy_, source, non_blocking=True)


def _launch(kernel: Kernel, device: str) -> Iterator[Call]:
    while True:
        yield partial(_random((kernel.inputs,), kernel, device).add_, 1.0)


def _layer(kernel: Kernel, device: str) -> Iterator[Call]:
    """A whole block, whose seconds are divided by its layers."""
    width, place = kernel.inputs, {"device": device, "dtype": DTYPES[kernel.precision]}
    while True:
        norms = [torch.nn.LayerNorm(width, **place) for _ in range(2)]
        sizes = ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width))
        products = [torch.nn.Linear(*size, **place) for size in sizes]
        read = _random((1, BLOCK_TOKENS, width), kernel, device, gradient=True)
        weights = [one for layer in (*norms, *products) for one in layer.parameters()]
        yield _pass(kernel, partial(_block, norms, products), [read], [read, *weights])


def _block(norms: Sequence[Any], products: Sequence[Any], read: torch.Tensor) -> torch.Tensor:
    """A decoder block of BLOCK_LAYERS layers, of tokens [1, tokens, width]."""
    query, key, value = products[0](norms[0](read)).chunk(3, -1)
    attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    read = read + products[1](attended)
    return read + products[3](functional.gelu(products[2](norms[1](read))))


_PREPARE: dict[str, Callable[[Kernel, str], Iterator[Call]]] = {
    "product": _product,
    "attention": _attention,
    **dict.fromkeys(("layer-norm", "rms-norm"), _normalization),
    **dict.fromkeys(("gelu", "gated-silu", "dropout", "add"), _elementwise),
    "embedding": _embedding,
    "loss": _loss,
    "adam": _adam,
    **dict.fromkeys(("copy", "to-host", "from-host"), _copy),
    "launch": _launch,
    "layer": _layer,
}


def _sets(kernel: Kernel, device: str) -> int:
    """Sets of inputs that are together larger than a cache; one on a CPU, which is measured as it is used, layer by layer."""
    if device == "cpu" or kernel.what in ("launch", "layer"):
        return 1
    width = int(DTYPES[kernel.precision].itemsize)
    attended = kernel.batch * kernel.tokens * kernel.head_size * (2 * kernel.heads + 2 * kernel.key_value_heads)
    elements = kernel.rows * (kernel.inputs + kernel.outputs) + kernel.inputs * kernel.outputs + attended
    return max(1, min(MOST_SETS, math.ceil(CACHED / (width * elements))))


# ----------------------------------------------------------------------------------------------------------- machine


def usual_device() -> str:
    """A GPU where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


class _tf32:
    """Products of 32 bits in TF32, or not, for as long as it is entered."""

    def __init__(self, allowed: bool) -> None:
        self.allowed, self.before = allowed, torch.backends.cuda.matmul.allow_tf32

    def __enter__(self) -> None:
        torch.backends.cuda.matmul.allow_tf32 = self.allowed

    def __exit__(self, *error: object) -> None:
        torch.backends.cuda.matmul.allow_tf32 = self.before


def _wake(device: str) -> None:
    """A second of products, after which a GPU has the clock and the power of one at work."""
    if device == "cuda":
        square = torch.ones((4096, 4096), device=device, dtype=torch.bfloat16)
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            square @ square
            torch.cuda.synchronize()


def _memory_bytes(device: str) -> int:
    if device == "cuda":
        return int(torch.cuda.get_device_properties(0).total_memory)
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
