"""Table words: other words for the columns of measured tables, and the sizes of published networks that rows only name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from simulator import LANGUAGE_MODELS, Transformer

COLUMNS: Mapping[str, str] = {
    "case": "model",
    "devices_a_group": "gpus",
    "ffn": "intermediate",
    "fused_ce": "fused_loss",
    "ffn_hidden_size": "intermediate",
    "grad_bytes": "gradient_bytes",
    "measured_gib": "measured_max_gib",
    "moe_ffn": "expert_intermediate",
    "num_experts": "experts",
    "platform": "hardware",
    "ranks": "gpus",
    "seconds": "measured_s",
    "sp": "sequence_parallel",
    "swiglu": "gated",
    "topk": "experts_per_token",
    "us": "out_of_place_us",
    "vocab_padded": "vocab",
    "vpp": "interleave",
}
"""Columns of other tables, and what they are called here; a table that has ours, too, keeps both apart."""

_CASE = (
    "hidden=512 heads=8 layers=12 seq=1024 vocab=50304 micro_batch=4 global_batch=32 precision=bf16 framework=Megatron-LM "
    "machine=dgx-a100"
)

CASES: Mapping[str, Mapping[str, str]] = {
    "gpt 12x512": {name: cell for name, _, cell in (one.partition("=") for one in _CASE.split())},
}
"""Sizes of cases that tables only name, by what their names begin with: the network that Megatron-LM's functional tests run."""


def in_our_words(columns: Sequence[str]) -> list[str]:
    """Columns of a table by the names that they have here."""
    return [COLUMNS[one] if one in COLUMNS and COLUMNS[one] not in columns else one for one in columns]


def sized(cells: Mapping[str, str]) -> dict[str, str]:
    """The cells of a line and, of a network that it only names, sizes that it leaves out."""
    name = cells.get("model", "")
    if "hidden" in cells or not name:
        return dict(cells)
    case = next((known for begun, known in CASES.items() if name.startswith(begun)), None)
    return {**(_sizes(name) if case is None else case), **cells}


@cache
def _sizes(name: str) -> dict[str, str]:
    """Columns of the published network that a name begins with, the longest; none of any other."""
    known = (model for family in LANGUAGE_MODELS.values() for model in family)
    begun = max(
        (one for one in known if _bare(name).startswith(_bare(one.name))), key=lambda one: len(one.name), default=None
    )
    return {} if begun is None else _columns(begun)


def _bare(name: str) -> str:
    return name.replace("-", "").lower()


def _columns(model: Transformer) -> dict[str, str]:
    """The sizes of a network as the cells of a line."""
    sizes = {
        "hidden": model.hidden,
        "heads": model.heads,
        "layers": model.layers,
        "seq": model.sequence,
        "vocab": model.vocabulary,
        "kv_heads": model.key_value_heads if model.key_value_heads != model.heads or model.rotary else 0,
        "head_size": model.head_size,
        "intermediate": model.intermediate,
        "window": model.window,
        "window_every": model.window and model.layers // (model.layers - len(model.whole)),
    }
    return {name: str(size) for name, size in sizes.items() if size} | (
        {"gated": str(model.gated)} if model.rotary else {}
    )
