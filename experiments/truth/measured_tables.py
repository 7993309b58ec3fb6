"""Measured tables: CSV files of published or own measurements, read by their columns as rows of one kind each.

A file is of the first kind of KINDS whose needed columns it has, whatever its name; other columns are passed over, an empty cell
says nothing. The fields of the rows below are the columns; `experiments.truth.table_words` knows other words for them, and the
sizes of published networks.
"""

from __future__ import annotations

import csv
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from experiments.terminal.output import InputError
from experiments.truth.table_words import in_our_words, sized
from hardware_profiles import MOST_DEVICES, Precision, explained, read_bytes
from simulator import (
    LARGEST_SIZE,
    MOST_BLOCKS,
    MOST_SAMPLES,
    Attention,
    GradientBytes,
    GradientReduction,
    OptimizerName,
    Zero,
)

_Size = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_SIZE)]
_Blocks = Annotated[int, msgspec.Meta(ge=1, le=MOST_BLOCKS)]
_Samples = Annotated[int, msgspec.Meta(ge=1, le=MOST_SAMPLES)]
_Devices = Annotated[int, msgspec.Meta(ge=1, le=MOST_DEVICES)]
_Bytes = Annotated[int, msgspec.Meta(ge=1, le=10**15)]
_Amount = Annotated[float, msgspec.Meta(gt=0, le=1e18)]


MEASURED = ("measured_s", "measured_alloc_gib", "measured_max_gib", "measured_peak_bytes")
"""Columns of what was measured of an iteration, of which a row has one."""


class MeasuredRun(msgspec.Struct, kw_only=True, frozen=True):
    """An iteration of a transformer on a cluster.

    hidden, heads, layers (blocks), seq, vocab, kv_heads, head_size, intermediate: the network; its family is what FAMILIES of
        `predictions` knows of its `model`, else with `kv_heads` a Llama (gated, no biases, no dropout, rotary), without a GPT.
        Where `model` begins with the name of a published network, its sizes are those of this one where nothing else is said
    gated: whether the MLP has two up projections; window: tokens that a token attends to; window_every: of so many blocks the
        first has it
    experts, experts_per_token, expert_intermediate, shared_intermediate: how many each block has, how many a token goes through,
        their width, and that of those that every token goes through; dense_blocks: the first so many blocks have none
    tp, pp, dp, cp, ep: degrees of tensor, pipeline, data, context and expert parallelism; interleave: stages per device
    micro_batch: samples of one replica's micro-batch; global_batch: samples of the iteration
    layers_per_stage: parts of the pipeline as `16;18`, the embedding and the head one layer each; even where nothing is said
    recompute: none, attention (or selective), selective op (every second product is kept), minimal (all are) or full;
        recompute_modules: operations that run again, as `core_attn;layernorm`; sequence_parallel; precision
    flash: fused attention; attention: its form, in place of that; fused_loss: a loss that the framework fuses
    gradient_reduction: whole (after the last backward) or in buckets, while it goes on; gradient_bytes: 2, 4, or 0 for those of
        the precision; zero: 0 to 3; distributed_optimizer: zero 1; shard: replicas that divide what zero says, where it is not
        all (hybrid sharding); optimizer: adam where nothing is said
    machine: a cluster of `pipeplan list clusters`, or a file, from the folder of the table; where it is missing, what MACHINES of
        `predictions` knows of `hardware`, `cluster` and `nodes`, or what --machine says
    nodes: servers, each with the same share of the GPUs; gpus_per_node: that share; as few servers as hold them where nothing is
        said
    stack: what ran it, of `pipeplan list stacks`, or a file; where it is missing, what STACKS of `predictions` knows of the rest
    framework, source: words that RUNTIMES and STACKS of `predictions` may know
    measured_s: seconds; one measured column is needed
    measured_alloc_gib: of the fullest device (of the last rank, which Megatron-LM logs), its tensors alone; measured_max_gib: the
        most that they came to, where the other column tells what they had between iterations; measured_peak_bytes: as its driver
        tells, with the reserve
    """

    hidden: _Size
    heads: _Size
    layers: _Blocks
    seq: _Size
    micro_batch: _Samples
    global_batch: _Samples
    measured_s: _Amount | None = None
    tp: _Devices = 1
    pp: _Devices = 1
    dp: _Devices = 1
    cp: _Devices = 1
    ep: _Devices = 1
    interleave: _Blocks = 1
    vocab: _Size = 50257
    kv_heads: _Size | None = None
    head_size: _Size | None = None
    intermediate: _Size | None = None
    gated: bool | None = None
    window: _Size | None = None
    window_every: _Blocks = 1
    experts: Annotated[int, msgspec.Meta(ge=0, le=LARGEST_SIZE)] = 0
    experts_per_token: Annotated[int, msgspec.Meta(ge=0, le=LARGEST_SIZE)] = 0
    expert_intermediate: _Size | None = None
    shared_intermediate: Annotated[int, msgspec.Meta(ge=0, le=LARGEST_SIZE)] = 0
    dense_blocks: Annotated[int, msgspec.Meta(ge=0, le=MOST_BLOCKS)] | None = None
    layers_per_stage: Annotated[str, msgspec.Meta(pattern="^([0-9]{1,6}(;[0-9]{1,6})*)?$")] = ""
    recompute: Literal["none", "attention", "selective", "selective op", "minimal", "full"] = "none"
    recompute_modules: str = ""
    flash: bool | None = None
    fused_loss: bool = False
    attention: Attention | None = None
    sequence_parallel: bool | None = None
    precision: Precision = "fp16"
    gradient_reduction: GradientReduction | None = None
    gradient_bytes: GradientBytes | None = None
    zero: Zero | None = None
    shard: Annotated[int, msgspec.Meta(ge=0, le=MOST_DEVICES)] = 0
    distributed_optimizer: bool | None = None
    optimizer: OptimizerName = "adam"
    measured_peak_bytes: _Amount | None = None
    measured_alloc_gib: _Amount | None = None
    measured_max_gib: _Amount | None = None
    model: str = ""
    machine: str = ""
    hardware: str = ""
    cluster: str = ""
    nodes: _Devices | None = None
    gpus_per_node: _Devices | None = None
    stack: str = ""
    framework: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        if all(getattr(self, name) is None for name in MEASURED):
            raise ValueError(f"one of {', '.join(MEASURED)} is needed")
        devices, stages = self.tp * self.pp * self.dp * self.cp, self.pp * self.interleave
        if devices > MOST_DEVICES:
            raise ValueError(f"tp, pp, dp and cp must be of {MOST_DEVICES:,} devices at most, got {devices:,}")
        if stages > self.layers + 2:
            raise ValueError(
                f"pp times interleave must be at most the layers, the embedding and the head, {self.layers + 2}; got {stages:,}"
            )
        if self.layers_per_stage:
            parts = [int(part) for part in self.layers_per_stage.split(";")]
            if len(parts) != stages or sum(parts) != self.layers + 2 or not all(parts):
                raise ValueError(
                    f"layers_per_stage must be {stages} parts of at least 1 layer, sum {self.layers + 2} (embedding and head "
                    f"too); got {len(parts)}, sum {sum(parts)}"
                )
        if self.head_size is None and self.hidden % self.heads:
            raise ValueError(
                f"hidden must be a multiple of heads, {self.heads}, where there is no head_size; got {self.hidden}"
            )


class MatrixProduct(msgspec.Struct, kw_only=True, frozen=True):
    """A linear layer of m tokens, n outputs and k inputs in fp16: microseconds of its forward, and of both its gradients."""

    m: _Size
    n: _Size
    k: _Size
    forward_us: _Amount
    backward_us: _Amount
    tp: _Devices = 1
    op: str = ""
    accelerator: str = "a100-80"


class AllReduce(msgspec.Struct, kw_only=True, frozen=True):
    """A collective of so many bytes, the whole tensor, over some GPUs: microseconds, out of place.

    operation: all-reduce, all-gather, reduce-scatter
    nodes: servers, each with the same share of the GPUs; as few as hold them where nothing is said
    """

    gpus: Annotated[int, msgspec.Meta(ge=2, le=MOST_DEVICES)]
    bytes: _Bytes
    out_of_place_us: _Amount
    operation: Literal["all-reduce", "all-gather", "reduce-scatter"] = "all-reduce"
    gpu: str = "a100"
    nodes: _Devices | None = None
    machine: str = ""


class TransformerCell(msgspec.Struct, kw_only=True, frozen=True):
    """A GPT's block of one hidden size and degree: milliseconds of its forward, forward again and backward, and of what a
    micro-batch takes beside its blocks.
    """

    hidden: _Size
    heads: _Size
    seq: _Size
    micro_batch: _Samples
    layer_forward_recompute_backward_ms: _Amount
    head_and_microbatch_ms: _Amount
    tp: _Devices = 1
    vocab: _Size = 50257
    machine: str = ""


class KernelShare(msgspec.Struct, kw_only=True, frozen=True):
    """A kernel's share of the peak rate `tflops`, in 16 bits.

    op: matmul (of m, n, k; accumulate: a weight gradient of k tokens, added to what is there), sdp_fwd or sdp_bwd (causal fused
        attention, of the FLOP of full scores and of two and a half times as many), group_matmul (of ng experts, M tokens, N and
        K features each; stage: fwd, bwd_grad_act or bwd_grad_w)
    accelerator: one of `pipeplan list accelerators`; where it is missing, what ACCELERATORS of `predictions` knows of `source`
    """

    op: Literal["matmul", "sdp_fwd", "sdp_bwd", "group_matmul"]
    tflops: _Amount
    efficiency: _Amount
    m: _Size | None = None
    n: _Size | None = None
    k: _Size | None = None
    accumulate: bool = False
    batch: _Size | None = None
    seq_len: _Size | None = None
    head_num: _Size | None = None
    kv_head_num: _Size | None = None
    qk_head_dim: _Size | None = None
    v_head_dim: _Size | None = None
    ng: _Size | None = None
    M: _Size | None = None
    N: _Size | None = None
    K: _Size | None = None
    stage: Literal["fwd", "bwd_grad_act", "bwd_grad_w"] = "fwd"
    accelerator: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        sizes = {"matmul": ("m", "n", "k"), "group_matmul": ("ng", "M", "N", "K")}
        attention = "batch", "seq_len", "head_num", "kv_head_num", "qk_head_dim", "v_head_dim"
        for name in sizes.get(self.op, attention):
            if getattr(self, name) is None:
                raise ValueError(f"{name} of a kernel {self.op} is missing")


class BoardInference(msgspec.Struct, kw_only=True, frozen=True):
    """Forward passes of a network on an FPGA board, one image after the other: images per second.

    board: of `pipeplan list accelerators`, or a file; network: of `pipeplan list workloads`
    clock_mhz, dsps, macs_a_dsp_and_cycle: of its array, in place of what the board's file says
    measured_watts, measured_joules: mean power, and energy of an image; source, conditions: words
    """

    board: Annotated[str, msgspec.Meta(min_length=1)]
    network: Annotated[str, msgspec.Meta(min_length=1)]
    measured_images_per_second: _Amount
    precision: Precision = "int8"
    clock_mhz: _Amount | None = None
    dsps: _Size | None = None
    macs_a_dsp_and_cycle: _Amount | None = None
    measured_watts: _Amount | None = None
    measured_joules: _Amount | None = None
    source: str = ""
    conditions: str = ""


Row = MeasuredRun | MatrixProduct | AllReduce | TransformerCell | KernelShare | BoardInference

KINDS: tuple[type[Row], ...] = (MeasuredRun, TransformerCell, MatrixProduct, AllReduce, KernelShare)


@dataclass(frozen=True, slots=True)
class MeasuredTable:
    """A file's rows by line, all of one kind; and lines that are none, counted by reason."""

    name: str
    path: Path
    rows: Mapping[int, Row]
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def kind(self) -> type[Row]:
        """What its rows are."""
        return type(next(iter(self.rows.values())))


@cache
def needed(kind: type[Row]) -> tuple[str, ...]:
    """The columns that a table of this kind must have."""
    return tuple(field.name for field in msgspec.structs.fields(kind) if field.required)


def documented(kind: type[Row]) -> str:
    """What rows of a kind are, and their columns."""
    return inspect.cleandoc(kind.__doc__ or "")


def _lacking(columns: Sequence[str], kinds: Sequence[type[Row]]) -> str:
    """Why a table with these columns is of no kind: what it lacks of the kind that it is nearest to."""
    shares = {kind: len(set(needed(kind)) & set(columns)) / len(needed(kind)) for kind in kinds}
    nearest = max(shares, key=lambda kind: shares[kind])
    if not shares[nearest]:
        return "has none of the columns that any kind of table needs (--columns prints them)"
    lacking = ", ".join(name for name in needed(nearest) if name not in columns) or " or ".join(MEASURED)
    return f"lacks {lacking} of the nearest kind: {documented(nearest).splitlines()[0]}"


def kind_of(columns: Sequence[str], kinds: Sequence[type[Row]] = KINDS) -> type[Row] | None:
    """The kind of a table with these columns; None for one that nobody knows."""
    known = (kind for kind in kinds if set(needed(kind)) <= set(columns))
    return next((kind for kind in known if kind is not MeasuredRun or not set(MEASURED).isdisjoint(columns)), None)


def read_tables(
    folder: Path, renamed: Mapping[str, str], only: str = "", kinds: Sequence[type[Row]] = KINDS
) -> tuple[tuple[MeasuredTable, ...], dict[str, str]]:
    """The tables of a folder that are known, by name, and the files that are not, with the reason.

    only: the name of one file of it; kinds: of tables that are looked for
    renamed: what a column of another table is called here. Raises InputError (one line: file, line, column, value, rule).
    """
    paths = (
        sorted(path for path in folder.iterdir() if path.is_file() and only in ("", path.name))
        if folder.is_dir()
        else None
    )
    if paths is None:
        raise InputError(f"{folder}: is not a folder of measured tables")
    tables, skipped = [], {}
    for path in paths:
        found = _read_table(path, renamed, kinds) if path.suffix.lower() == ".csv" else "is no CSV file"
        if isinstance(found, str):
            skipped[path.name] = found
        else:
            tables.append(found)
    return tuple(tables), skipped


def _read_table(path: Path, renamed: Mapping[str, str], kinds: Sequence[type[Row]]) -> MeasuredTable | str:
    """A file's rows; or why it is passed over: its columns are of no kind, or it has no rows."""
    columns, lines = _cells(path, renamed)
    said = {
        number: sized({column: cell.strip() for column, cell in zip(columns, cells, strict=True) if cell.strip()})
        for number, cells in lines.items()
    }
    every = [*dict.fromkeys((*columns, *(name for one in said.values() for name in one)))]
    kind = kind_of(every, kinds)
    if kind is None:
        return _lacking(every, kinds)
    rows: dict[int, Row] = {}
    left_out: dict[str, int] = {}
    for number, cells in said.items():
        if why := _without_sizes(kind, columns, cells):
            left_out[why] = left_out.get(why, 0) + 1
        else:
            rows[number] = _beside(path.parent, _row(f"{path}: line {number}", kind, cells))
    if not rows:
        return next(iter(left_out), "has no rows")
    return MeasuredTable(path.stem, path, rows, left_out)


def _cells(path: Path, renamed: Mapping[str, str]) -> tuple[list[str], dict[int, list[str]]]:
    """The columns of a file, in our words, and the cells of its lines. Raises InputError."""
    try:
        text = read_bytes(path).decode("utf-8-sig")
        lines = list(csv.reader(text.splitlines(), strict=True))
    except (OSError, UnicodeDecodeError, csv.Error, ValueError) as error:
        said = (error.strerror or error) if isinstance(error, OSError) else error
        raise InputError(f"{path}: cannot be read as a CSV file: {said}") from None
    columns = in_our_words([renamed.get(column.strip(), column.strip()) for column in lines[0]] if lines else [])
    known = {name for kind in KINDS for name in kind.__struct_fields__}
    if doubled := [column for column in dict.fromkeys(columns) if column in known and columns.count(column) > 1]:
        raise InputError(f"{path}: line 1: column {doubled[0]} stands twice")
    found = {number: cells for number, cells in enumerate(lines[1:], start=2) if any(cells)}
    for number, cells in found.items():
        if len(cells) != len(columns):
            raise InputError(f"{path}: line {number} has {len(cells)} cells, and there are {len(columns)} columns")
    return columns, found


def _without_sizes(kind: type[Row], columns: Sequence[str], cells: Mapping[str, str]) -> str:
    """Why a line is no row: its table leaves sizes to the name of its network, which nobody knows; "" where it is one."""
    lacking = [name for name in needed(kind) if name not in columns and name not in cells]
    return f"its {', '.join(lacking)} are not said, nor known of {cells.get('model', '')!r}" if lacking else ""


def _beside(folder: Path, row: Row) -> Row:
    """A row whose files of machines and stacks are looked for in the folder of its table."""
    files = {name: folder / said for name in ("machine", "stack") if (said := getattr(row, name, "")).endswith(".toml")}
    return msgspec.structs.replace(row, **{name: str(file) for name, file in files.items() if file.exists()})


def _row(where: str, kind: type[Row], cells: Mapping[str, str]) -> Row:
    """A line's cells as a row; an empty cell is one that is not there."""
    said: dict[str, Any] = dict(cells)
    if "precision" in said:
        said["precision"] = said["precision"].split()[0]
    try:
        return msgspec.convert(said, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InputError(*(f"{where}: {told}" for told in explained(str(error), said, kind))) from None
