"""Piper: are pipelines of layers with variants the best there are on its public inputs, and how soon are they found?

Reads every network of a checkout of msr-fiddle/piper (MIT; Tarnawski, Narayanan and Phanishayee, NeurIPS 2021), or of any folder
of such files. BERT-32 is planned under the devices and memories of SETTINGS, with the bandwidth (25 GiB/s) and batch (1,920
micro-batches) of the repository's own `main`; beside it stands what that program (commit d7fc8cf) finds. Other networks are
planned for the devices that their file names. A plan is judged by the published cost model, restated in
`experiments.piper.variant_problem`: seconds per sample of the slowest stage. CPU seconds are of one core, compilation left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from experiments.benchmarks.timing import least_seconds
from experiments.piper.variant_files import VariantFile
from experiments.piper.variant_partition import fastest_variant_plan
from experiments.piper.variant_problem import LayerVariant, VariantProblem, VariantStage
from experiments.studies.public_inputs import compared, judged, judged_cells, read_inputs
from experiments.studies.study_harness import Findings, run_study
from experiments.terminal.output import blamed_on, tracked
from experiments.terminal.report_tables import ReportTable, figure
from hardware_profiles import GIB


class PiperSetting(NamedTuple):
    """Devices that a network is planned for, and seconds per sample that the published program finds for them."""

    devices: int
    memory_bytes: float
    bandwidth: float
    microbatches: int
    published: float | None = None


SETTINGS: Mapping[tuple[str, int], tuple[PiperSetting, ...]] = {
    ("bert32a100", 37): tuple(
        PiperSetting(devices, memory * GIB, 25 * GIB, 1920, seconds)
        for memory, devices, seconds in (
            (8, 8, 0.165856),
            (8, 32, 0.0415155),
            (8, 64, 0.0202006),
            (8, 128, 0.0101209),
            (8, 256, 0.00508105),
            (8, 512, 0.00256113),
            (8, 1024, 0.00130318),
            (80, 8, 0.122007),
            (80, 64, 0.0156502),
            (80, 512, 0.00227252),
            (80, 1024, 0.00115876),
        )
    )
}
"""By file and number of its nodes."""


def run(options: argparse.Namespace) -> Findings:
    """Plan every network of the folder; exit code 1 if a published optimum is missed, 4 for a file that cannot be read."""
    files, skipped = read_inputs(options.inputs, VariantFile)
    compile_kernels()
    asked = [(name, setting) for name, file in files.items() for setting in _settings(name, file)]
    planned = tracked("planning", asked, lambda one: f"{one[0]} on {one[1].devices}")
    return compared((_row(name, files[name], setting) for name, setting in planned), skipped, TABLE)


def _settings(name: str, file: VariantFile) -> Iterator[PiperSetting]:
    own = PiperSetting(file.devices, file.memory_bytes, file.bandwidth, file.microbatches)
    yield from SETTINGS.get((name.rpartition("/")[2], len(file.nodes)), (own,))


def compile_kernels() -> None:
    """One tiny plan whose memory binds, so that no row's seconds contain the compiler's."""
    variants = tuple(
        LayerVariant(str(n), seconds, 1.0, kept, 1.0) for n, (seconds, kept) in enumerate([(1, 9), (3, 2), (2, 4)])
    )
    layers = ({1: variants}, {1: variants[:2]}, {1: variants})
    fastest_variant_plan(VariantProblem(layers, {(0, 1): 1.0, (1, 2): 1.0}, 4, 20.0, 1.0, 2))


def _row(name: str, file: VariantFile, setting: PiperSetting) -> dict[str, Any]:
    """One network on the devices of a setting."""
    problem = file.problem(setting.devices, setting.memory_bytes, setting.bandwidth, setting.microbatches)
    with blamed_on(name):
        plan, spent = least_seconds(lambda: fastest_variant_plan(problem))
    seconds = None if plan is None else plan.seconds_per_sample
    return {
        "instance": name,
        "layers": len(file.nodes),
        "devices": setting.devices,
        "memory_bytes": setting.memory_bytes,
        "microbatches": setting.microbatches,
        "seconds_per_sample": seconds,
        **judged(plan, seconds, setting.published, spent),
        "stages": [] if plan is None else [_stage(file, stage) for stage in plan.stages],
        "not_searched": "" if plan is None else plan.lost,
    }


def _stage(file: VariantFile, stage: VariantStage) -> dict[str, Any]:
    """A stage with the file's node numbers."""
    return {
        "tensor_parallel": stage.degree,
        "data_parallel": stage.replicas,
        "variants": {file.nodes[layer].id: name for layer, name in stage.variants.items()},
    }


TABLE = ReportTable(
    "Seconds per sample of the slowest stage",
    "rows",
    {
        "network": "{instance}",
        "devices": "{devices:,}",
        "GiB": figure("memory_bytes", ".4g", 1 / GIB),
        **judged_cells("seconds_per_sample"),
        "stages": lambda row: str(len(row["stages"])),
        "tensor": lambda row: " ".join(map(str, sorted({stage["tensor_parallel"] for stage in row["stages"]}))),
    },
)


if __name__ == "__main__":
    sys.exit(run_study("piper"))
