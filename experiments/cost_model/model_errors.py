"""Model errors: predicted beside measured seconds of each profile, in total and by group of layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from experiments.cost_model.profile_comparison import Group, ProfileComparison
from hardware_profiles import Accelerator, Precision, Work
from simulator import Workload, gnmt, load_workload, read_profile

ACCELERATOR = "v100-sxm2"
GNMT_WIDTH = 1024
"""Features of a token in the bundled GNMT profiles, as their layers say: Embedding(32320, 1024)."""

TARGET = 0.15
"""Largest relative error of a total that counts as a match."""

MEAN_TOKENS = 30
"""Tokens of a sentence, source and target, in both GNMT profiles: fitted, see the module's text."""

PIPE_WIDTH = 150
"""Columns of the table where standard output is no terminal."""

EXIT_OK, EXIT_FAILURE = 0, 1


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


# ------------------------------------------------------------------------------------------------- numbers


def predicted_seconds(
    workload: Workload, accelerator: Accelerator, samples: int, precision: Precision = "fp32"
) -> list[LayerSeconds]:
    """Seconds of each layer by the accelerator's model; the loss is left out."""
    rows = []
    for layer, read in zip(workload.layers, workload.all_input_elements(), strict=True):
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


# ------------------------------------------------------------------------------------------------- command


def print_comparisons(comparisons: Sequence[ProfileComparison]) -> None:
    """The comparison as a table on standard output."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{ACCELERATOR}, fp32: model against measured profiles, ms of a mini-batch")
    table.add_column("profile", no_wrap=True)
    for heading in ("mini-batch", "measured F", "model F", "measured B", "model B", "error", "misplaced"):
        table.add_column(heading, justify="right")
    table.add_column("worst group (measured / model ms)")
    for row in comparisons:
        worst = row.worst_group
        table.add_row(
            row.name,
            str(row.minibatch),
            f"{1e3 * row.measured_forward:.1f}",
            f"{1e3 * row.predicted_forward:.1f}",
            f"{1e3 * row.measured_backward:.1f}",
            f"{1e3 * row.predicted_backward:.1f}",
            f"{row.error:+.1%}" + ("" if abs(row.error) <= TARGET else " (over)"),
            f"{row.share_distance:.0%}",
            f"{worst.name} ({1e3 * worst.measured:.1f} / {1e3 * worst.predicted:.1f})",
        )
    console = Console()
    if not console.is_terminal:
        # A pipe or a file has no width of its own: do not fold the table at rich's 80 columns.
        console = Console(width=PIPE_WIDTH)
    console.print(table)
    for row in comparisons:
        if row.recorded_error is not None:
            console.print(
                f"{row.name}: at {MEAN_TOKENS} tokens; at the {row.recorded_tokens} of the recorded tensors the error "
                f"would be {row.recorded_error:+.1%}",
                soft_wrap=True,
            )


def as_json(comparisons: Sequence[ProfileComparison]) -> dict[str, object]:
    """The comparison as plain values."""
    return {
        "accelerator": ACCELERATOR,
        "target": TARGET,
        "mean_tokens": MEAN_TOKENS,
        "within_target": all(abs(row.error) <= TARGET for row in comparisons),
        "profiles": [{**asdict(row), "error": row.error, "worst_group": row.worst_group.name} for row in comparisons],
    }


def default_profiles() -> Path | None:
    """`shared/data/pipedream_profiles` beside this checkout or above it, if there is one."""
    for parent in Path(__file__).resolve().parents:
        folder = parent / "shared" / "data" / "pipedream_profiles"
        if folder.is_dir():
            return folder
    return None
