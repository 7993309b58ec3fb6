"""Layer profiler: seconds, sizes and stashes of every layer of a PyTorch model, measured on the machine at hand.

The one module that imports torch. A layer is a leaf module (or one that calls no module of its own, as multi-head attention
does), in the order in which they run; its producers are found by walking the autograd graph back from its inputs to other
layers' outputs, so that sums, concatenations and reshapes between modules are seen through. Each layer is then timed alone on
the inputs that it received: a forward, then a backward for its inputs and weights.
"""

from __future__ import annotations

import math
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from simulator.workloads import PROFILE_FORMAT, STEADY_SPREAD, MeasuredProfile, checked_profile

KINDS: tuple[tuple[str, str], ...] = (
    ("Conv", "convolution"),
    ("Linear", "linear"),
    ("Bilinear", "linear"),
    ("MultiheadAttention", "attention"),
    ("LSTM", "recurrent"),
    ("GRU", "recurrent"),
    ("RNN", "recurrent"),
    ("Embedding", "embedding"),
    ("Norm", "normalization"),
    ("Pool", "pooling"),
    ("Dropout", "dropout"),
    ("Loss", "loss"),
    ("Flatten", "reshape"),
    ("Unflatten", "reshape"),
    ("Identity", "reshape"),
    ("Shuffle", "reshape"),
    ("ReLU", "activation"),
    ("ELU", "activation"),
    ("SiLU", "activation"),
    ("Sigmoid", "activation"),
    ("Tanh", "activation"),
    ("Softmax", "activation"),
    ("Hardswish", "activation"),
    ("Mish", "activation"),
)
"""Kind of layer by a part of its class's name, first match; else `linear` if it has weights, `elementwise` if not."""

WHOLE = (nn.MultiheadAttention, nn.RNNBase)
"""Modules with children that they do not call: profiled as one layer."""


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """What to measure.

    sizes: micro-batch sizes in samples, rising; input_shape: of one sample
    vocabulary: inputs are whole numbers below this (token ids), 0 for normally distributed reals
    warm_up, repeats: passes of each layer before and during measurement; seed: of inputs and initial weights
    """

    input_shape: tuple[int, ...]
    sizes: tuple[int, ...] = (1, 2, 4, 8)
    device: str = "cpu"
    vocabulary: int = 0
    warm_up: int = 3
    repeats: int = 11
    seed: int = 0


class ModelError(ValueError):
    """A model that cannot be profiled with these settings; one line."""


@dataclass(slots=True)
class _Call:
    """One run of a leaf module during the trace.

    arguments, named: what it received (tensors detached); producers: indices of the calls whose results it read
    """

    name: str
    module: nn.Module
    arguments: tuple[Any, ...] = ()
    named: dict[str, Any] = field(default_factory=dict)
    producers: tuple[int, ...] = ()
    output_elements: int = 0
    stashed_bytes: int = 0


def profile_model(
    model: nn.Module,
    name: str,
    label: str,
    settings: ProfileSettings,
    progress: Callable[[int, str], None] = lambda done, text: None,
) -> MeasuredProfile:
    """Measure every layer of a model at every size.

    name: of the workload; label: what the user asked for, kept in the file
    progress: called with the layers done and the one at work
    Raises ModelError if the model does not run on such inputs, or holds no layer.
    """
    model = model.to(settings.device).train()
    largest = max(settings.sizes)
    calls: list[_Call] = []
    timings: list[list[dict[str, float]]] = []
    for size in sorted(settings.sizes):  # one trace at a time: each holds every layer's inputs
        trace = _trace(model, settings, size)
        if calls and [call.name for call in trace] != [call.name for call in calls]:
            raise ModelError(f"{label}: the model runs other layers at {size} samples than at fewer")
        calls = trace
        timings = timings or [[] for _ in calls]
        for index, call in enumerate(calls):
            progress(index, f"{size} samples: {call.name}")
            timings[index].append(_time_layer(call, size, settings))
    parameters = _parameters(model, calls)
    spread = _run_spread(timings)
    document: dict[str, object] = {
        "format": PROFILE_FORMAT,
        "name": name,
        "sample": "sequence" if settings.vocabulary else "image" if len(settings.input_shape) == 3 else "sample",
        "minibatch": largest,
        "bytes_per_element": 4,
        "measurement": {
            "model": label,
            "device": settings.device,
            "device_name": _device_name(settings.device),
            "torch": str(torch.__version__),
            "input_shape": list(settings.input_shape),
            "warm_up": settings.warm_up,
            "repeats": settings.repeats,
            "spread": spread,
            "steady": spread <= STEADY_SPREAD,
            "whole": [_time_whole(model, settings, size) for size in settings.sizes],
        },
        "layers": [
            {
                "name": call.name,
                "kind": _kind(call.module),
                "parameters": parameters[index],
                "flop": _flop(call) / largest,
                "output_elements": call.output_elements / largest,
                "stashed_elements": call.stashed_bytes / 4 / largest,
                "timings": timings[index],
            }
            for index, call in enumerate(calls)
        ],
        "edges": [(producer, index) for index, call in enumerate(calls) for producer in call.producers],
    }
    return checked_profile(document)


# ------------------------------------------------------------------------------------------------------------- trace


def _leaves(model: nn.Module) -> dict[nn.Module, str]:
    """Modules that are profiled as one layer, by their (first) qualified name."""
    found: dict[nn.Module, str] = {}
    inside: set[nn.Module] = set()
    for name, module in model.named_modules():
        if module in inside:
            continue
        if isinstance(module, WHOLE):
            inside.update(child for child in module.modules() if child is not module)
        if isinstance(module, WHOLE) or not any(True for _ in module.children()):
            found.setdefault(module, name or type(module).__name__)
    return found


def _trace(model: nn.Module, settings: ProfileSettings, size: int) -> list[_Call]:
    """Run the model once; note every layer's inputs, producers, output and what autograd saved for it."""
    calls: list[_Call] = []
    made_by: dict[int, int] = {}  # grad_fn of an output -> the call that made it
    alive: list[Any] = []  # keeps graph nodes and saved storages, whose ids and addresses would be used again
    kept = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    leaves = _leaves(model)
    names: dict[str, int] = {}
    handles = []

    def before(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        base = (
            f"{leaves[module]}_{type(module).__name__}" if leaves[module] != type(module).__name__ else leaves[module]
        )
        names[base] = names.get(base, 0) + 1
        name = base if names[base] == 1 else f"{base}_{names[base]}"  # a shared module runs several times
        producers: set[int] = set()
        for tensor in _tensors((arguments, named)):
            producers |= _producers(tensor, made_by)
        detached, named = _detached(arguments), _detached(named)
        calls.append(_Call(name, module, detached, named, tuple(sorted(producers))))

    def after(module: nn.Module, arguments: tuple[Any, ...], result: Any) -> None:
        number = len(calls) - 1
        tensors = list(_tensors(result))
        calls[number].output_elements = sum(tensor.numel() for tensor in tensors)
        for tensor in tensors:
            if tensor.grad_fn is not None:
                made_by[id(tensor.grad_fn)] = number
                alive.append(tensor.grad_fn)

    def save(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in kept and calls:
            kept.add(storage.data_ptr())
            alive.append(storage)
            calls[-1].stashed_bytes += storage.nbytes()
        return tensor

    for module in leaves:
        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(module.register_forward_hook(after))
    try:
        with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor), _explained(settings, size):
            model(_input(settings, size))
    finally:
        for handle in handles:
            handle.remove()
    if not calls:
        raise ModelError("the model runs no module; there is nothing to measure")
    return calls


def _producers(tensor: torch.Tensor, made_by: dict[int, int]) -> set[int]:
    """Calls whose outputs a tensor was computed from, through whatever lies between modules."""
    found: set[int] = set()
    waiting, seen = [tensor.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        if id(node) in made_by:
            found.add(made_by[id(node)])
        else:
            waiting.extend(following for following, _ in node.next_functions)
    return found


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _tensors(one)


def _detached(value: Any) -> Any:
    """The same nest of values with tensors copied out of the graph (in-place layers overwrite what they get)."""
    if isinstance(value, torch.Tensor):
        copy = value.detach().clone()
        return copy.requires_grad_(copy.is_floating_point())
    if isinstance(value, dict):
        return {key: _detached(one) for key, one in value.items()}
    if isinstance(value, (tuple, list)):
        copies = [_detached(one) for one in value]
        return type(value)(*copies) if hasattr(value, "_fields") else type(value)(copies)
    return value


def _parameters(model: nn.Module, calls: Sequence[_Call]) -> list[int]:
    """Weight elements of each call: a shared weight counts at its first, one that no layer owns at the first of its parent."""
    counted: set[int] = set()
    counts = []
    for call in calls:
        own = [one for one in call.module.parameters() if id(one) not in counted]
        counted.update(id(one) for one in own)
        counts.append(sum(one.numel() for one in own))
    for name, parameter in model.named_parameters():
        if id(parameter) not in counted:
            counted.add(id(parameter))
            parent = name.rpartition(".")[0]
            inside = [index for index, call in enumerate(calls) if call.name.startswith(parent)]
            counts[inside[0] if inside else 0] += parameter.numel()
    return counts


def _kind(module: nn.Module) -> str:
    name = type(module).__name__
    for part, kind in KINDS:
        if part in name:
            return kind
    return "linear" if any(True for _ in module.parameters()) else "elementwise"


def _flop(call: _Call) -> float:
    """Forward FLOP of matrix products and convolutions, as torch counts them."""
    from torch.utils.flop_counter import FlopCounterMode

    arguments, named = _fresh(call)
    with FlopCounterMode(display=False) as counter:
        call.module(*arguments, **named)
    return float(counter.get_total_flops())


# ------------------------------------------------------------------------------------------------------------ timing


def _time_layer(call: _Call, size: int, settings: ProfileSettings) -> dict[str, float]:
    """Median seconds of forward and backward of one layer, and their interquartile ranges over the median."""
    wanted = [tensor for tensor in _tensors((call.arguments, call.named)) if tensor.requires_grad]
    wanted += [parameter for parameter in call.module.parameters() if parameter.requires_grad]
    forwards, backwards = [], []
    for repeat in range(settings.warm_up + settings.repeats):
        arguments, named = _fresh(call)
        _synchronize(settings.device)
        began = time.perf_counter()
        result = call.module(*arguments, **named)
        _synchronize(settings.device)
        forward = time.perf_counter() - began
        backward = _backward_seconds(list(_tensors(result)), wanted, settings.device)
        if repeat >= settings.warm_up:
            forwards.append(forward)
            backwards.append(backward)
    return {
        "samples": size,
        "forward_seconds": statistics.median(forwards),
        "backward_seconds": statistics.median(backwards),
        "forward_spread": _relative_spread(forwards),
        "backward_spread": _relative_spread(backwards),
    }


def _backward_seconds(results: list[torch.Tensor], wanted: list[torch.Tensor], device: str) -> float:
    outputs = [one for one in results if one.requires_grad]
    if not outputs or not wanted:
        return 0.0
    gradients = [torch.ones_like(one) for one in outputs]
    _synchronize(device)
    began = time.perf_counter()
    torch.autograd.grad(outputs, wanted, gradients, allow_unused=True)
    _synchronize(device)
    return time.perf_counter() - began


def _time_whole(model: nn.Module, settings: ProfileSettings, size: int) -> dict[str, float]:
    """Median seconds of passes over the whole model."""
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    forwards, backwards = [], []
    for repeat in range(settings.warm_up + settings.repeats):
        data = _input(settings, size)
        _synchronize(settings.device)
        began = time.perf_counter()
        result = model(data)
        _synchronize(settings.device)
        forward = time.perf_counter() - began
        backward = _backward_seconds(list(_tensors(result)), wanted, settings.device)
        if repeat >= settings.warm_up:
            forwards.append(forward)
            backwards.append(backward)
    return {
        "samples": size,
        "forward_seconds": statistics.median(forwards),
        "backward_seconds": statistics.median(backwards),
    }


def _fresh(call: _Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments for one run: copies that in-place layers may overwrite, still joined to the detached inputs."""

    def fresh(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.clone()
        if isinstance(value, dict):
            return {key: fresh(one) for key, one in value.items()}
        if isinstance(value, (tuple, list)):
            copies = [fresh(one) for one in value]
            return type(value)(*copies) if hasattr(value, "_fields") else type(value)(copies)
        return value

    arguments: tuple[Any, ...] = fresh(call.arguments)
    named: dict[str, Any] = fresh(call.named)
    return arguments, named


def _relative_spread(values: Sequence[float]) -> float:
    """Interquartile range over the median; 0 for a single value or a median of 0."""
    middle = statistics.median(values)
    if len(values) < 2 or middle == 0:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / middle


def _run_spread(timings: Sequence[Sequence[dict[str, float]]]) -> float:
    """Largest, over sizes and directions, of the layers' summed interquartile ranges over their summed medians."""
    worst = 0.0
    for column in zip(*timings, strict=True):
        for direction in ("forward", "backward"):
            total = math.fsum(one[f"{direction}_seconds"] for one in column)
            ranges = math.fsum(one[f"{direction}_seconds"] * one[f"{direction}_spread"] for one in column)
            worst = max(worst, ranges / total if total > 0 else 0.0)
    return worst


# ------------------------------------------------------------------------------------------------------------ machine


def _input(settings: ProfileSettings, size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(settings.seed)
    shape = (size, *settings.input_shape)
    if settings.vocabulary:
        return torch.randint(settings.vocabulary, shape, generator=generator).to(settings.device)
    # A gradient for the input too: every layer's backward then makes one, as inside a pipeline.
    return torch.randn(shape, generator=generator).to(settings.device).requires_grad_()


def check_device(device: str) -> None:
    """Raise ModelError unless torch can compute on it."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ModelError("--device cuda: torch finds no CUDA device here; use --device cpu")


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _device_name(device: str) -> str:
    if device == "cuda":
        return str(torch.cuda.get_device_name())
    return f"{platform.machine()}, {torch.get_num_threads()} threads"


FORWARD_ERRORS = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError)
"""What a model's forward raises on an input that is not for it."""


@contextmanager
def _explained(settings: ProfileSettings, size: int) -> Iterator[None]:
    try:
        yield
    except FORWARD_ERRORS as error:
        shape = "x".join(map(str, (size, *settings.input_shape)))
        text = " ".join(str(error).split())[:300]
        raise ModelError(f"the model fails on an input of {shape}: {type(error).__name__}: {text}") from error
