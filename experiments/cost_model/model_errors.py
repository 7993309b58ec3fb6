"""Model errors: predicted beside measured seconds of each profile, in total and by group of layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from hardware_profiles import Accelerator, Precision, Work
from simulator import Workload, gnmt, load_workload, read_profile

ACCELERATOR = "v100-sxm2"
GNMT_WIDTH = 1024
"""Features of a token in the bundled GNMT profiles, as their layers say: Embedding(32320, 1024)."""

TARGET = 0.15
"""Largest relative error of a total that counts as a match."""

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


def _image_network(name: str, tokens: int) -> Workload:
    return load_workload(name)


def _gnmt(layers: int, tokens: int) -> Workload:
    return gnmt(layers, source_tokens=tokens)


CASES = (
    ProfileCase("vgg16", partial(_image_network, "vgg16")),
    ProfileCase("alexnet", partial(_image_network, "alexnet")),
    ProfileCase("resnet50", partial(_image_network, "resnet50")),
    ProfileCase("gnmt", partial(_gnmt, 8), MEAN_TOKENS),
    ProfileCase("gnmt_large", partial(_gnmt, 16), MEAN_TOKENS),
)


@dataclass(frozen=True, slots=True)
class LayerSeconds:
    """Seconds of one layer, and whether it has parameters."""

    name: str
    parametric: bool
    forward: float
    backward: float


@dataclass(frozen=True, slots=True)
class Group:
    """A layer with parameters and the layers without that follow it, in seconds of forward plus backward."""

    name: str
    measured: float
    predicted: float


@dataclass(frozen=True, slots=True)
class ProfileComparison:
    """One profile against its analytic twin; seconds, and relative errors (predicted / measured - 1).

    share_distance: half the sum over groups of |predicted share - measured share|: the part of the time that
        the model puts in the wrong group, 0 to 1
    recorded_tokens, recorded_error: the sentence length of the recorded tensors and the total's error at it
    """

    name: str
    minibatch: int
    measured_forward: float
    measured_backward: float
    predicted_forward: float
    predicted_backward: float
    share_distance: float
    groups: tuple[Group, ...]
    recorded_tokens: int | None = None
    recorded_error: float | None = None

    @property
    def error(self) -> float:
        """Relative error of the total."""
        measured = self.measured_forward + self.measured_backward
        return (self.predicted_forward + self.predicted_backward) / measured - 1.0

    @property
    def worst_group(self) -> Group:
        """The group whose share is furthest off."""
        measured = sum(group.measured for group in self.groups)
        predicted = sum(group.predicted for group in self.groups)
        return max(self.groups, key=lambda g: abs(g.predicted / predicted - g.measured / measured))


def predicted_seconds(
    workload: Workload, accelerator: Accelerator, samples: int, precision: Precision = "fp32"
) -> list[LayerSeconds]:
    """Seconds of each layer by the accelerator's model; the loss is left out."""
    rows = []
    for layer, read in zip(workload.layers, workload.input_elements(), strict=True):
        if layer.kind == "loss":
            continue
        work = Work(layer.kind, layer.flop, float(read), layer.output_elements, layer.weights, layer.sequential_steps)
        forward = accelerator.seconds(work, samples, "forward", precision)
        backward = accelerator.seconds(work, samples, "backward", precision)
        rows.append(LayerSeconds(layer.name, layer.has_weight_gradient, forward, backward))
    return rows


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


def compared(
    name: str, minibatch: int, measured: Sequence[LayerSeconds], predicted: Sequence[LayerSeconds]
) -> ProfileComparison:
    """The comparison of two lists of layers. Raises ValueError unless they hold equally many with parameters."""
    ours, theirs = grouped(predicted), grouped(measured)
    if len(ours) != len(theirs):
        raise ValueError(
            f"{name}: profile and workload must have equally many layers with parameters: {len(theirs)} and {len(ours)}"
        )
    groups = tuple(Group(our[0], their[1], our[1]) for our, their in zip(ours, theirs, strict=True))
    whole_measured = sum(group.measured for group in groups)
    whole_predicted = sum(group.predicted for group in groups)
    distance = 0.5 * sum(abs(g.predicted / whole_predicted - g.measured / whole_measured) for g in groups)
    return ProfileComparison(
        name,
        minibatch,
        sum(row.forward for row in measured),
        sum(row.backward for row in measured),
        sum(row.forward for row in predicted),
        sum(row.backward for row in predicted),
        distance,
        groups,
    )


def recorded_tokens(profile: Workload) -> int:
    """Tokens a sentence of the recorded tensors: the first embedding's output over its width."""
    embedding = next(layer for layer in profile.layers if layer.kind == "embedding")
    return round(embedding.output_elements / GNMT_WIDTH)


def compare_case(
    case: ProfileCase, folder: Path, accelerator: Accelerator, profiled_minibatch: int | None = None
) -> ProfileComparison:
    """Read one profile and compare. Raises ValueError for a file that cannot be read or has other layers.

    profiled_minibatch: as for `read_profile`
    """
    profile = read_profile(folder / f"{case.profile}.txt", profiled_minibatch=profiled_minibatch)
    measured = measured_seconds(profile)

    def against(tokens: int) -> ProfileComparison:
        predicted = predicted_seconds(case.make(tokens), accelerator, profile.minibatch)
        return compared(case.profile, profile.minibatch, measured, predicted)

    if case.tokens is None:
        return against(0)
    tokens = recorded_tokens(profile)
    return replace(against(case.tokens), recorded_tokens=tokens, recorded_error=against(tokens).error)


def compare_all(
    folder: Path, accelerator: Accelerator, profiled_minibatches: Mapping[str, int] | None = None
) -> list[ProfileComparison]:
    """All bundled profiles, in the order of CASES; profiled_minibatches: of those that do not tell theirs, by name."""
    given = profiled_minibatches or {}
    return [compare_case(case, folder, accelerator, given.get(case.profile)) for case in CASES]


def as_json(comparisons: Sequence[ProfileComparison]) -> dict[str, Any]:
    """The comparison as plain values."""
    return {
        "accelerator": ACCELERATOR,
        "target": TARGET,
        "mean_tokens": MEAN_TOKENS,
        "within_target": all(abs(row.error) <= TARGET for row in comparisons),
        "profiles": [{**asdict(row), "error": row.error, "worst_group": row.worst_group.name} for row in comparisons],
    }
