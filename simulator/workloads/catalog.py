"""Catalog: every network by name, built in or from an installed package."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from os import PathLike

from hardware_profiles import (
    PluginError,
    answering_for,
    aside,
    check_whole,
    path_text,
    plugged_in,
    remembering,
    shown,
    unknown,
    whole_number,
)
from simulator.workloads.gnmt import gnmt8, gnmt16
from simulator.workloads.huggingface import read_config
from simulator.workloads.image_networks import (
    alexnet,
    efficientnet_b0,
    mobilenet_v1,
    mobilenet_v2,
    resnet50,
    resnet101,
    vgg16,
    vgg19,
)
from simulator.workloads.language_models import LANGUAGE_MODELS, published
from simulator.workloads.layers import Attention, Workload, WorkloadSource
from simulator.workloads.measured_profile import read_measured_profile
from simulator.workloads.pipedream_profile import read_profile
from simulator.workloads.stage_traces import is_stage_trace, read_stage_times
from simulator.workloads.synthetic import LONGEST_CHAIN, uniform_chain

FAMILIES: dict[str, dict[str, Callable[..., Workload]]] = {
    "image networks": {
        "alexnet": alexnet,
        "vgg16": vgg16,
        "vgg19": vgg19,
        "resnet50": resnet50,
        "resnet101": resnet101,
        "mobilenet-v1": mobilenet_v1,
        "mobilenet-v2": mobilenet_v2,
        "efficientnet-b0": efficientnet_b0,
    },
    "translation": {"gnmt8": gnmt8, "gnmt16": gnmt16},
    **{family: {one.name: published(one) for one in models} for family, models in LANGUAGE_MODELS.items()},
}
"""Built-in workloads by family: functions without required arguments; some take `sequence` and `attention`."""

WORKLOADS = {name: make for family in FAMILIES.values() for name, make in family.items()}
"""Built-in workloads by name."""

PLUGGED_IN = "installed packages"
"""Family of the workloads of other packages."""

CHOICES = {"sequence": "sequence length", "attention": "attention"}
"""Optional arguments of workloads -> their names in messages."""

ENTRY_POINTS = "pipeplan.workloads"
"""Entry-point group of other packages: each entry is a name and such a function."""

CHAIN = "chain:"
"""Prefix of a synthetic chain: `chain:16` has 16 equal layers."""

DESCRIBED = "described:"
"""Prefix of a profile of which only the sizes of layers are used, not the seconds: `described:graph.txt`."""


def workload_names() -> tuple[str, ...]:
    """Names that `load_workload` knows, sorted: built-in ones and those of installed packages.

    A built-in name wins over a package's.
    """
    return tuple(sorted({*WORKLOADS, *_plugins()}))


def workload_families() -> dict[str, tuple[str, ...]]:
    """Workload names by family."""
    plugged = {PLUGGED_IN: tuple(sorted(set(_plugins()) - set(WORKLOADS)))}
    return {
        family: names for family, names in ({one: tuple(FAMILIES[one]) for one in FAMILIES} | plugged).items() if names
    }


def load_workload(name: str, sequence: int | None = None, attention: Attention | None = None) -> Workload:
    """The workload called `name`.

    sequence: tokens of a sample; attention: its form (None: the workload's own)

    Raises ValueError (one line) for an unknown name (with the closest and all choices), for what the workload has not to
    choose, and for a package's entry that is no workload.
    """
    make = WORKLOADS.get(name) or _plugins().get(name)
    if make is None:
        complaint = unknown(f"workload {name!r} is not known", name, workload_names())
        raise ValueError(f"{complaint}; or give the path of a config.json or graph.txt")
    chosen = _chosen(sequence, attention)
    _refuse(
        name, {choice: value for choice, value in chosen.items() if choice not in inspect.signature(make).parameters}
    )
    if name in WORKLOADS:
        workload = make(**chosen)
    else:
        with answering_for(f"workload {name!r}"), aside():
            workload = make(**chosen)
    if not isinstance(workload, Workload):
        raise PluginError(f"workload {name!r} must be a function that returns a Workload, got {workload!r}")
    return remembering(workload, WorkloadSource(name, sequence=sequence, attention=attention))


def workload_from_spec(
    spec: str | PathLike[str], sequence: int | None = None, attention: Attention | None = None
) -> Workload:
    """The workload that a user names: a registered name, a path, `chain:LAYERS`, or `described:PROFILE`.

    sequence: tokens of a sample, for workloads that are made of sequences; attention: its form, for transformers (None: the
        workload's own)
    What ends in `.txt` is a PipeDream profile (described: what its nodes say of their sizes, without its seconds); what else
    ends in `.json` or has a path separator is a Hugging Face `config.json`.

    Raises ValueError (one line); WorkloadFileError, a ValueError, for a file.
    """
    spec = path_text("workload", spec)
    if sequence is not None:
        check_whole("sequence", sequence, 1)
    if spec.startswith(CHAIN):
        layers = spec.removeprefix(CHAIN)
        try:
            count = whole_number(layers, 1, LONGEST_CHAIN)
        except ValueError:
            raise ValueError(
                f"a chain is written chain:LAYERS with 1 to {LONGEST_CHAIN} layers, got {shown(spec)}"
            ) from None
        _refuse(spec, _chosen(sequence, attention))
        return remembering(uniform_chain(count), WorkloadSource(spec))
    if spec.startswith(DESCRIBED):
        _refuse(spec, _chosen(sequence, attention))
        if spec == DESCRIBED:
            raise ValueError(f"a described profile is written {DESCRIBED}graph.txt, got {spec!r}")
        path = os.path.realpath(spec.removeprefix(DESCRIBED))
        return remembering(read_profile(path).described(), WorkloadSource(f"{DESCRIBED}{path}"))
    if spec.endswith(".txt"):
        _refuse(spec, _chosen(sequence, attention))
        return read_any_profile(spec)
    if spec.endswith(".json") or "/" in spec or os.sep in spec:
        path = spec if "\0" in spec else os.path.realpath(spec)  # no file has such a name, which reading tells
        found = read_config(spec, sequence, attention)
        return remembering(found, WorkloadSource(path, sequence=sequence, attention=attention))
    return load_workload(spec, sequence, attention)


def read_any_profile(path: str | PathLike[str], profiled_minibatch: int | None = None) -> Workload:
    """A measured profile in any form: `.json` is `pipeplan profile`'s; a trace of torch.profiler, also `.json.gz`, or a folder
    of them, gives the stages of its run as layers (`StageTimes.workload`); anything else is PipeDream's.

    profiled_minibatch: of PipeDream's form; ValueError with the others, which say their own
    """
    path = path_text("profile", path)
    traced = is_stage_trace(path)
    if not traced and not path.endswith(".json"):
        workload = read_profile(path, profiled_minibatch=profiled_minibatch)
    elif profiled_minibatch is not None:
        raise ValueError(f"profiled_minibatch goes with PipeDream's graph.txt; {path} says its own samples")
    elif traced:
        workload = read_stage_times(path).workload(os.path.basename(os.path.realpath(path)))
    else:
        workload = read_measured_profile(path)
    profile = os.path.realpath(path)
    return remembering(workload, WorkloadSource(profile=profile, profiled_minibatch=profiled_minibatch))


def workload_of(source: WorkloadSource) -> Workload:
    """The workload of a source. ValueError as in `workload_from_spec` and `read_any_profile`."""
    if source.name is not None:
        return workload_from_spec(source.name, source.sequence, source.attention)
    return read_any_profile(source.profile or "", source.profiled_minibatch)


def _plugins() -> dict[str, Callable[..., Workload]]:
    return plugged_in(ENTRY_POINTS, _function, frozenset(WORKLOADS))


def _function(value: object) -> Callable[..., Workload]:
    if not callable(value):
        raise TypeError(f"must be a function that returns a Workload, not {type(value).__name__}")
    return value


def _chosen(sequence: int | None, attention: Attention | None) -> dict[str, object]:
    """Those arguments of CHOICES that are given, by name."""
    return {name: value for name, value in (("sequence", sequence), ("attention", attention)) if value is not None}


def _refuse(name: str, chosen: Mapping[str, object]) -> None:
    for choice, value in chosen.items():
        raise ValueError(f"workload {name!r} has no {CHOICES[choice]} to set, got {value}")
