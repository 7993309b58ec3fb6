"""Layer profiler: seconds, sizes and stashes of every layer of a PyTorch model, measured on the machine at hand.

The timing itself is `profiling.pass_timing`. A layer is a leaf module (or one that calls
no module of its own, as multi-head attention does), in the order in which they run; its producers are found by walking the
autograd graph back from its inputs to other layers' outputs, so that sums, concatenations and reshapes between modules are seen
through. Each layer is then timed alone on the inputs that it received: a forward, then a backward for its inputs and weights.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from experiments.profiling.pass_timing import (
    LayerWeights,
    PassSeconds,
    TimedPass,
    divided_weights,
    kind_of,
    run_spread,
    time_pass,
)
from hardware_profiles import one_line
from simulator import PROFILE_FORMAT, STEADY_SPREAD, MeasuredProfile, checked_profile

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
    weights = _weights(model, calls)
    spread = run_spread(timings)
    document: dict[str, object] = {
        "format": PROFILE_FORMAT,
        "name": name,
        "sample": "sequence" if settings.vocabulary else "image" if len(settings.input_shape) == 3 else "sample",
        "minibatch": largest,
        "bytes_per_element": 4,
        "measurement": {
            "model": label,
            "device": settings.device,
            "device_name": device_name(settings.device),
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
                "parameters": weights[index].own,
                **_tied(calls, weights[index]),
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
        detached, named = _mapped((arguments, named), _detached)
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


def _mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same nest of values with other tensors."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: _mapped(one, change) for key, one in value.items()}
    if isinstance(value, (tuple, list)):
        copies = [_mapped(one, change) for one in value]
        return type(value)(*copies) if hasattr(value, "_fields") else type(value)(copies)
    return value


def _detached(tensor: torch.Tensor) -> torch.Tensor:
    """Copied out of the graph: in-place layers overwrite what they get."""
    copy = tensor.detach().clone()
    return copy.requires_grad_(copy.is_floating_point())


def _weights(model: nn.Module, calls: Sequence[_Call]) -> list[LayerWeights]:
    """Weights of each call; one that no layer owns counts at the first layer of its parent."""
    used: list[dict[Hashable, int]] = [{id(one): one.numel() for one in call.module.parameters()} for call in calls]
    known = {weight for weights in used for weight in weights}
    for name, parameter in model.named_parameters():
        if id(parameter) not in known:
            known.add(id(parameter))
            parent = name.rpartition(".")[0]
            inside = [index for index, call in enumerate(calls) if call.name.startswith(parent)]
            used[inside[0] if inside else 0][id(parameter)] = parameter.numel()
    return divided_weights(used)


def _tied(calls: Sequence[_Call], weights: LayerWeights) -> dict[str, object]:
    """The keys of a layer that uses an earlier one's weight."""
    if weights.tied_to is None:
        return {}
    return {"tied_to": calls[weights.tied_to].name, "tied_parameters": weights.tied}


def _kind(module: nn.Module) -> str:
    return kind_of(type(module).__name__, any(True for _ in module.parameters()))


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
    timed = TimedPass(
        ready=lambda: _fresh(call),
        forward=lambda inputs: call.module(*inputs[0], **inputs[1]),
        backward=lambda result: _backward(list(_tensors(result)), wanted),
    )
    return _timed(timed, settings).row(size)


def _time_whole(model: nn.Module, settings: ProfileSettings, size: int) -> dict[str, float]:
    """Median seconds of passes over the whole model."""
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    timed = TimedPass(
        ready=lambda: _input(settings, size),
        forward=model,
        backward=lambda result: _backward(list(_tensors(result)), wanted),
    )
    return _timed(timed, settings).medians(size)


def _timed(timed: TimedPass[Any, Any], settings: ProfileSettings) -> PassSeconds:
    return time_pass(
        timed,
        warm_up=settings.warm_up,
        repeats=settings.repeats,
        synchronize=lambda: synchronize(settings.device),
        clock=time.perf_counter,
    )


def _backward(results: list[torch.Tensor], wanted: list[torch.Tensor]) -> Callable[[], object] | None:
    """What makes the gradients of `wanted`, None where there are none to make."""
    outputs = [one for one in results if one.requires_grad]
    if not outputs or not wanted:
        return None
    gradients = [torch.ones_like(one) for one in outputs]
    return lambda: torch.autograd.grad(outputs, wanted, gradients, allow_unused=True)


def _fresh(call: _Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments for one run: copies that in-place layers may overwrite, still joined to the detached inputs."""
    fresh: tuple[tuple[Any, ...], dict[str, Any]] = _mapped((call.arguments, call.named), lambda tensor: tensor.clone())
    return fresh


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


def synchronize(device: str) -> None:
    """Wait until a device has done its work."""
    if device == "cuda":
        torch.cuda.synchronize()


def device_name(device: str) -> str:
    """What a profile calls a device."""
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
        text = one_line(str(error))[:300]
        raise ModelError(f"the model fails on an input of {shape}: {type(error).__name__}: {text}") from error
