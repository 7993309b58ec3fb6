"""Model errors: predicted beside measured seconds of each profile, in total and by group of layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.studies.input_sets import PIPEDREAM_PROFILES
from hardware_profiles import Accelerator, Work
from simulator import Layer, Workload, gnmt, load_workload, read_profile

Row = dict[str, Any]

ACCELERATOR = "v100-sxm2"
GNMT_WIDTH = 1024
"""Features of a token in the bundled GNMT profiles, as their layers say: Embedding(32320, 1024)."""

TARGET = 0.15
"""Largest relative error of a total that counts as a match."""

UNMEASURED = ("loss", "elementwise")
"""Kinds of layer that no profile measures: the loss has no node, and hooks do not see sums, which are no modules."""

MEAN_TOKENS = 30
"""Tokens of a sentence, source and target, in both GNMT profiles: fitted, see the module's text."""


@dataclass(frozen=True, slots=True)
class ProfileCase:
    """One profile (`<profile>.txt`) and what makes its analytic twin.

    make: tokens of a sentence -> workload; networks of images ignore it
    tokens: length to predict at; None for images
    """

    profile: str
    make: Callable[[int], Workload]
    tokens: int | None = None


CASES = (
    ProfileCase("vgg16", lambda tokens: load_workload("vgg16")),
    ProfileCase("alexnet", lambda tokens: load_workload("alexnet")),
    ProfileCase("resnet50", lambda tokens: load_workload("resnet50")),
    ProfileCase("gnmt", lambda tokens: gnmt(8, source_tokens=tokens), MEAN_TOKENS),
    ProfileCase("gnmt_large", lambda tokens: gnmt(16, source_tokens=tokens), MEAN_TOKENS),
)


@dataclass(frozen=True, slots=True)
class LayerSeconds:
    """Seconds of one layer, and whether it has parameters."""

    name: str
    parametric: bool
    forward: float
    backward: float


def measured_works(workload: Workload) -> list[tuple[Layer, Work]]:
    """The layers that profiles measure, and their work."""
    layers = zip(workload.layers, workload.works(), strict=True)
    return [(layer, work) for layer, work in layers if layer.kind not in UNMEASURED]


def pass_seconds(accelerator: Accelerator, work: Work, samples: int) -> tuple[float, float]:
    """Seconds of a layer's forward and backward by the accelerator's model in fp32."""
    forward = accelerator.seconds(work, samples, "forward", "fp32")
    return forward, accelerator.seconds(work, samples, "backward", "fp32")


def predicted_seconds(workload: Workload, accelerator: Accelerator, samples: int) -> list[LayerSeconds]:
    """Seconds of each layer by the accelerator's model in fp32; without the layers that no profile measures."""
    return [
        LayerSeconds(layer.name, layer.has_weight_gradient, *pass_seconds(accelerator, work, samples))
        for layer, work in measured_works(workload)
    ]


def measured_seconds(profile: Workload) -> list[LayerSeconds]:
    """Seconds of each layer as profiled, at the profiled mini-batch."""
    return [
        LayerSeconds(layer.name, layer.has_weight_gradient, layer.measured[0][1], layer.measured[0][2])
        for layer in profile.layers
    ]


def grouped(rows: Sequence[LayerSeconds]) -> list[tuple[str, float]]:
    """(name, seconds) of each layer with parameters plus what follows it; layers before the first join it."""
    groups: list[tuple[str, float]] = []
    pending = 0.0
    for row in rows:
        seconds = row.forward + row.backward
        if row.parametric:
            groups.append((row.name, seconds + pending))
            pending = 0.0
        elif groups:
            name, total = groups[-1]
            groups[-1] = (name, total + seconds)
        else:
            pending += seconds
    return groups


def compared(name: str, minibatch: int, measured: Sequence[LayerSeconds], predicted: Sequence[LayerSeconds]) -> Row:
    """A profile against its analytic twin: seconds, and relative errors (predicted / measured - 1).

    groups: a layer with parameters and the layers without that follow it, in seconds of forward plus backward; worst_group: the
        one whose share is furthest off
    share_distance: half the sum over groups of |predicted share - measured share|: the part of the time that
        the model puts in the wrong group, 0 to 1
    Raises ValueError unless both lists hold equally many layers with parameters.
    """
    ours, theirs = grouped(predicted), grouped(measured)
    if len(ours) != len(theirs):
        raise ValueError(
            f"{name}: profile and workload must have equally many layers with parameters: {len(theirs)} and {len(ours)}"
        )
    totals = [sum(seconds for _, seconds in groups) for groups in (theirs, ours)]
    pairs = [(our[0], their[1], our[1]) for our, their in zip(ours, theirs, strict=True)]
    distances = [abs(mine / totals[1] - real / totals[0]) for _, real, mine in pairs]
    passes = {
        f"{source}_{direction}": sum(getattr(row, direction) for row in rows)
        for source, rows in (("measured", measured), ("predicted", predicted))
        for direction in ("forward", "backward")
    }
    real, mine = (passes[f"{source}_forward"] + passes[f"{source}_backward"] for source in ("measured", "predicted"))
    return {
        "name": name,
        "minibatch": minibatch,
        **passes,
        "share_distance": 0.5 * sum(distances),
        "groups": [{"name": group, "measured": real, "predicted": mine} for group, real, mine in pairs],
        "recorded_tokens": None,
        "recorded_error": None,
        "error": mine / real - 1.0,
        "forward_error": _relative(passes["predicted_forward"], passes["measured_forward"]),
        "backward_error": _relative(passes["predicted_backward"], passes["measured_backward"]),
        "worst_group": pairs[distances.index(max(distances))][0],
    }


def _relative(predicted: float, measured: float) -> float | None:
    """Relative error; None where nothing was measured."""
    return predicted / measured - 1.0 if measured else None


def recorded_tokens(profile: Workload) -> int:
    """Tokens a sentence of the recorded tensors: the first embedding's output over its width."""
    embedding = next(layer for layer in profile.layers if layer.kind == "embedding")
    return round(embedding.output_elements / GNMT_WIDTH)


def compare_case(case: ProfileCase, folder: Path, accelerator: Accelerator, profiled_minibatch: int | None) -> Row:
    """Read one profile and compare, for GNMT also at the sentence length of the recorded tensors.

    profiled_minibatch: as for `read_profile`. Raises ValueError for a file that cannot be read or has other layers.
    """
    profile = read_profile(PIPEDREAM_PROFILES.path(folder, case.profile), profiled_minibatch=profiled_minibatch)
    measured = measured_seconds(profile)

    def against(tokens: int) -> Row:
        predicted = predicted_seconds(case.make(tokens), accelerator, profile.minibatch)
        return compared(case.profile, profile.minibatch, measured, predicted)

    if case.tokens is None:
        return against(0)
    tokens = recorded_tokens(profile)
    return against(case.tokens) | {"recorded_tokens": tokens, "recorded_error": against(tokens)["error"]}


def _profiles_in(folder: Path) -> Iterator[tuple[str, Path]]:
    """All files of a folder, or a checkout, that are where a profile may be, by the profile's name."""
    for form in PIPEDREAM_PROFILES.forms:
        for path in sorted(folder.glob(form.format(name="*"))):
            yield (path.stem if form.startswith("{name}") else path.parent.name), path


def compare_described(
    folder: Path, accelerator: Accelerator, profiled_minibatches: Mapping[str, int]
) -> tuple[list[Row], list[str]]:
    """All other profiles of a folder against their own descriptions, by name, and the names of files that are none.

    Networks that no constant was fitted to: what their nodes say (channels, windows, groups, features) is all that is known.
    """
    rows, passed_over = [], []
    for name, path in _profiles_in(folder):
        if name in {case.profile for case in CASES}:
            continue
        try:
            profile = read_profile(path, profiled_minibatch=profiled_minibatches.get(name))
        except ValueError:
            passed_over.append(str(path.relative_to(folder)))
            continue
        predicted = predicted_seconds(profile.described(), accelerator, profile.minibatch)
        rows.append(compared(name, profile.minibatch, measured_seconds(profile), predicted))
    return rows, passed_over


def mean_errors(rows: Sequence[Row]) -> Row:
    """Mean and largest absolute error of totals, forwards and backwards; None where there is none."""
    names = ("error", "forward_error", "backward_error")
    found = {name: [abs(row[name]) for row in rows if row[name] is not None] for name in names}
    return {name: {"mean": sum(one) / len(one), "worst": max(one)} if one else None for name, one in found.items()}


def compare_all(folder: Path, accelerator: Accelerator, profiled_minibatches: Mapping[str, int]) -> Row:
    """The study's document: all bundled profiles, in the order of CASES, then those that the folder has beside them.

    profiled_minibatches: of those that do not tell theirs, by name
    """
    rows = [compare_case(case, folder, accelerator, profiled_minibatches.get(case.profile)) for case in CASES]
    described, passed_over = compare_described(folder, accelerator, profiled_minibatches)
    return {
        "accelerator": ACCELERATOR,
        "target": TARGET,
        "mean_tokens": MEAN_TOKENS,
        "within_target": all(abs(row["error"]) <= TARGET for row in rows),
        "profiles": rows,
        "mean_errors": mean_errors(rows),
        "described": described,
        "described_mean_errors": mean_errors(described),
        "passed_over": passed_over,
    }
