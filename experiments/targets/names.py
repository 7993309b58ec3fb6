"""Names of targets: every target's declaration, by the name that commands take."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.targets.deepspeed import DEEPSPEED
from experiments.targets.megatron import MEGATRON
from experiments.targets.target import Target
from experiments.targets.torch_csv import TORCH_CSV
from experiments.targets.torchtitan import TORCHTITAN

TARGETS: Mapping[str, Target] = {
    "megatron": MEGATRON,
    "torchtitan": TORCHTITAN,
    "deepspeed": DEEPSPEED,
    "torch-csv": TORCH_CSV,
}


def told(targets: Mapping[str, Target]) -> str:
    """The targets in words, with what is written for each."""
    return "; ".join(f"{name}: {one.summary}" for name, one in targets.items())
