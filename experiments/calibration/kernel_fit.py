"""Kernel fit: the shares of a GPU that its measured kernels tell, fitted on half of the shapes and judged on the others.

The form is that of `hardware_profiles.gpu`, in which more FLOP are never quicker whatever the constants; a class of kernels tells
a few of them, by the least mean of absolute relative errors in which a kernel counts by the root of its seconds: most of an
iteration is in large kernels. What the form cannot say stays as an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import median
from typing import NamedTuple

from experiments.profiling.measured_kernels import FLOOR, Kernel, Measured, Measurements
from hardware_profiles import BACKWARD_LAUNCHES, LANES, VECTOR_PRECISION, GraphicsProcessor

Range = tuple[float, float]

SHARE: Range = (0.01, 1.0)
SATURATION: Range = (1e-8, 1e-2)


@dataclass(frozen=True, slots=True)
class KernelClass:
    """Kernels that tell constants of one kind of layer.

    name: of the table `[efficiency.NAME]`; what: its kernels; constants: fields of `KindEfficiency`, each with its least and most
    """

    name: str
    what: tuple[str, ...]
    constants: Mapping[str, Range]


def kernel_classes(vector: bool) -> tuple[KernelClass, ...]:
    """The classes of kernels whose products run on vector units, or on matrix engines."""
    forward, backward = ("forward", "backward") if vector else ("matrix", "matrix_backward")
    products = {forward: SHARE, backward: SHARE, "saturation_seconds": SATURATION}
    streaming = {
        "normalization": ("layer-norm", "rms-norm"),
        "activation": ("gelu", "gated-silu"),
        "dropout": ("dropout",),
        "elementwise": ("add", "adam"),
        "embedding": ("embedding",),
        "loss": ("loss",),
    }
    return (
        KernelClass("linear", ("product",), products | {"memory": SHARE}),
        KernelClass("fused_attention", ("attention",), products),
        *(KernelClass(name, what, {"memory": SHARE}) for name, what in streaming.items()),
    )


class JudgedKernel(NamedTuple):
    """A kernel, what it took and what the shares say, before and after the fit; held: whether the fit did not see it."""

    kernel: Kernel
    measured: float
    before: float
    after: float
    held: bool


class ClassFit(NamedTuple):
    """What a class told: constants by name, before and after, and its kernels."""

    name: str
    before: Mapping[str, float]
    after: Mapping[str, float]
    kernels: tuple[JudgedKernel, ...]

    def error(self, held: bool, after: bool = True) -> float | None:
        """Mean absolute relative error of the kernels that were fitted, or held out, by the root of their seconds; None where
        there are none.
        """
        rows = [one for one in self.kernels if one.held is held]
        return _mean_error([(one.after if after else one.before, one.measured) for one in rows]) if rows else None

    @property
    def worst(self) -> JudgedKernel:
        """The kernel that is farthest off, by the factor between what the shares say after the fit and what it took."""
        return max(self.kernels, key=lambda one: abs(math.log(one.after / one.measured)))


class KernelFit(NamedTuple):
    """What kernels told of a device.

    device: with the shares that they told; classes: of kernels
    odd_heads: what a stack adds to the seconds of attention, as a share of them, where LANES does not divide the size of a head;
        None where no such kernel was measured
    call, launch, host_bandwidth: seconds of a kernel with nothing to do, seconds of the host for a small layer, bytes/s over its
        link; None where they were not measured
    """

    device: GraphicsProcessor
    classes: tuple[ClassFit, ...]
    odd_heads: float | None
    call: float | None
    launch: float | None
    host_bandwidth: float | None


def _mean_error(pairs: Iterable[tuple[float, float]]) -> float:
    """Mean absolute relative error of predicted and measured seconds, by the root of the latter."""
    rows = [(math.sqrt(measured), abs(predicted / measured - 1.0)) for predicted, measured in pairs]
    return sum(weight * error for weight, error in rows) / sum(weight for weight, _ in rows)


def measured_device(found: Measurements, name: str) -> GraphicsProcessor:
    """A device whose peaks are the best rates that were measured: bytes/s of any kernel, FLOP/s of products."""
    rates: dict[str, float] = {}
    bandwidth = 0.0
    for one in found.kernels:
        if one.kernel.what == "product":
            rate = one.kernel.work().flop / one.seconds
            rates[one.kernel.precision] = max(rates.get(one.kernel.precision, 0.0), rate)
        elif one.kernel.what in ("copy", "add", "adam"):
            bandwidth = max(bandwidth, one.kernel.moved_bytes / one.seconds)
    if not rates or not bandwidth:
        raise ValueError("products, and copies or sums, are needed to tell the peaks of a device; measure more of them")
    # What is in fp32 beside the products (an optimizer's step) needs a rate there, too; its products nobody measured.
    return GraphicsProcessor(name, found.memory_bytes, bandwidth, {VECTOR_PRECISION: max(rates.values()), **rates})


def fit_kernels(device: GraphicsProcessor, found: Measurements, seed: int = 0) -> KernelFit:
    """Fit the shares of a device, class by class, each to half of its shapes.

    A step is a kernel with nothing to do, a call no more than its steps.
    """
    rows = [one for one in found.kernels if one.kernel.precision in device.peak_flops]
    call = _seconds_of(found, FLOOR.what, lambda one: one.inputs == FLOOR.inputs and one.rows == 1)
    launch = _launch(found)
    fitted = device if call is None else replace(device, call_overhead=0.0, step_overhead=call)
    odd = [one for one in rows if one.kernel.head_size % LANES]
    even = [one for one in rows if not one.kernel.head_size % LANES]
    classes = []
    for of in kernel_classes(all(one.kernel.precision == VECTOR_PRECISION for one in rows)):
        own = [one for one in even if one.kernel.what in of.what and one.kernel != FLOOR]
        if own:
            told, fitted = _fit_class(device, fitted, of, own, seed)
            classes.append(told)
    links = [one.kernel.moved_bytes / one.seconds for one in rows if one.kernel.what in ("to-host", "from-host")]
    beyond = [one.seconds / kernel_seconds(fitted, one.kernel) - 1.0 for one in odd]
    return KernelFit(
        fitted,
        tuple(classes),
        max(0.0, median(beyond)) if beyond else None,
        call,
        launch,
        max(links, default=None),
    )


def _launch(found: Measurements) -> float | None:
    """Seconds that a host needs for a layer's forward, of which the model counts BACKWARD_LAUNCHES for its backward."""
    forward = _seconds_of(found, "layer", lambda one: one.phase == "forward")
    backward = _seconds_of(found, "layer", lambda one: one.phase == "backward")
    return forward if forward is None or backward is None else (forward + backward) / (1.0 + BACKWARD_LAUNCHES)


def _seconds_of(found: Measurements, what: str, chosen: Callable[[Kernel], bool]) -> float | None:
    """Least seconds of the kernels of a name that are chosen; None for none."""
    return min((one.seconds for one in found.kernels if one.kernel.what == what and chosen(one.kernel)), default=None)


def kernel_seconds(device: GraphicsProcessor, kernel: Kernel) -> float:
    """What the model says of a kernel.

    A backward that is one kernel is called once, however many gradients it makes; a product alone is added to nothing.
    """
    work, phase = kernel.work(), kernel.phase
    if phase == "weight_gradient":
        device = with_shares(device, work.kind, {"accumulated": 0.0})
    seconds = device.seconds(work, 1.0, phase, kernel.precision)
    if phase == "backward" and work.parameters:
        seconds -= device.call_overhead
    return seconds


def _fit_class(
    base: GraphicsProcessor, device: GraphicsProcessor, of: KernelClass, rows: Sequence[Measured], seed: int
) -> tuple[ClassFit, GraphicsProcessor]:
    """Fit a class's constants to half of the shapes, and the device that has them.

    All passes of a shape are on the same side. A single shape is fitted, and nothing judges it.
    """
    shapes = list(dict.fromkeys(one.kernel.shape for one in rows))
    held = set(Random(seed).sample(shapes, len(shapes) // 2))
    fitted = [one for one in rows if one.kernel.shape not in held]
    begun = {name: _told(base, of.name, name) for name in of.constants}

    def error(values: Mapping[str, float]) -> float:
        changed = with_shares(device, of.name, values)
        return _mean_error((kernel_seconds(changed, one.kernel), one.seconds) for one in fitted)

    found = least(error, {name: (begun[name], *bounds) for name, bounds in of.constants.items()})
    after = with_shares(device, of.name, found)
    judged = tuple(
        JudgedKernel(
            one.kernel,
            one.seconds,
            kernel_seconds(base, one.kernel),
            kernel_seconds(after, one.kernel),
            one.kernel.shape in held,
        )
        for one in rows
    )
    return ClassFit(of.name, begun, found, judged), after


def _told(device: GraphicsProcessor, kind: str, name: str) -> float:
    """A constant of a kind of layer, with what a missing one stands for."""
    efficiency = device.efficiencies[kind]
    value = float(getattr(efficiency, name))
    return value or (efficiency.matrix if name == "matrix_backward" else value)


def with_shares(device: GraphicsProcessor, kind: str, values: Mapping[str, float]) -> GraphicsProcessor:
    """The device with other constants of one kind of layer."""
    return replace(device, efficiencies={**device.efficiencies, kind: replace(device.efficiencies[kind], **values)})


ROUNDS = 60
"""Of the pattern search; one that finds nothing better halves the step, which begins at a factor of two."""


def least(
    error: Callable[[Mapping[str, float]], float], begin: Mapping[str, tuple[float, float, float]]
) -> dict[str, float]:
    """The positive numbers, each between its least and most, for which an error is least, by a pattern search of their logarithms
    (Hooke, Jeeves, JACM 1961).

    begin: of each its first value, least and most
    """
    values = {name: min(max(value, low), high) for name, (value, low, high) in begin.items()}
    best, step = error(values), math.log(2.0)
    for _ in range(ROUNDS):
        tried = [
            {**values, name: min(max(values[name] * math.exp(sign * step), low), high)}
            for name, (_, low, high) in begin.items()
            for sign in (1.0, -1.0)
        ]
        found = min(tried, key=error)
        if (error_there := error(found)) < best:
            best, values = error_there, found
        else:
            step /= 2.0
    return values
