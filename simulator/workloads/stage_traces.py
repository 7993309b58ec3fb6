"""Stage traces: what the stages of a pipelined run took, from traces of torch.profiler.

Names of ranges: `torch/distributed/pipelining/schedules.py` of PyTorch 2.13. `_PipelineScheduleRuntime` calls an op `PP:2F0`
(stage 2, forward, micro-batch 0; B a full backward, I and W its halves), ScheduleGPipe `Forward 0` and `Backward 0`, of the stage
of its rank; Schedule1F1B names none. A range on the CPU begins with waiting for what the stage before has sent.

Megatron-Core names none (its NVTX ranges are phases: warmup, steady, cooldown), but a trace with stacks has the Python functions
that run: `forward_step` and `backward_step` of `megatron/core/pipeline_parallel/schedules.py` (d98e8a64), `forward_one_chunk` and
`backward_one_chunk` of torch's `stage.py`. They end before their kernels do, which their launches tell. Groups of ranks are those
of `distributedInfo.pg_config`; a pipeline's is described as Megatron's `parallel_state.py`, or torch's device mesh, describes it.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import msgspec

from hardware_profiles import at_most, brief, explained, read_bytes
from simulator.workloads.layers import Layer, Workload
from simulator.workloads.network_files import WorkloadFileError

MOST_TRACE_BYTES = 512 * 2**20
"""Of a trace, unpacked."""

MOST_FILES = 4096
"""Of a folder of traces."""

ENDINGS = (".json", ".json.gz")

_RUNTIME = re.compile(r"PP:([0-9]{1,4})(?:([FBIW])|SEND_([FB])|RECV_([FB]))([0-9]{1,9})")
_GPIPE = re.compile(r"(Forward|Backward) ([0-9]{1,9})")

_FUNCTION = re.compile(
    r"(?:.*/)?(?:megatron/core/pipeline_parallel/schedules|torch/distributed/pipelining/(?:schedules|stage))\.py"
    r"\([0-9]{1,9}\): ([a-z_]{1,99})"
)

_PASSES = {"forward_step": "F", "backward_step": "B", "forward_one_chunk": "F", "backward_one_chunk": "B"}
"""Functions that run a pass of a micro-batch: its letter."""

_TURNS = {"forward_backward_no_pipelining", "forward_backward_pipelining_without_interleaving", "_step_microbatches"}
"""Functions that run the micro-batches of an iteration."""

_INTERLEAVED = "forward_backward_pipelining_with_interleaving"

PIPELINES = ("PIPELINE_MODEL_PARALLEL_GROUP", "mesh_pp")
"""What a pipeline's group of ranks is called."""

LAUNCHES = ("cuda_runtime", "cuda_driver")
"""Categories of the calls that launch kernels."""

NAMES = (
    "names looked for are PP:2F0 (stage 2, forward, micro-batch 0; also B, I, W), as torch's _PipelineScheduleRuntime names its "
    "ops, and Forward 0, Backward 0 (ScheduleGPipe); Schedule1F1B and Megatron-Core name none, and are "
    "read by their functions in a trace with stacks (with_stack; --pytorch-profiler-collect-callstack)"
)


_Number = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _Arguments(msgspec.Struct, gc=False):
    """What an event tells beside; correlation: of a kernel, and of the call that launched it."""

    correlation: Any = None


class _Event(msgspec.Struct, gc=False):
    """An event of a trace; ts, dur: microseconds."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: _Number | str = 0
    tid: _Number | str = 0
    ts: Annotated[float, msgspec.Meta(ge=-1e18, le=1e18)] = 0.0
    dur: Annotated[float, msgspec.Meta(ge=0.0, le=1e15)] = 0.0
    args: _Arguments | None = None


class _Distributed(msgspec.Struct, rename={"groups": "pg_config"}):
    rank: Annotated[int, msgspec.Meta(ge=0, le=9999)] | None = None
    groups: Any = None


class _Trace(msgspec.Struct, rename={"events": "traceEvents", "distributed": "distributedInfo"}):
    events: list[_Event]
    distributed: _Distributed | None = None


Seconds = dict[tuple[int, str], list[float]]
"""Of all ops, by stage and letter."""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Medians of what the ops of each stage took, in seconds of one micro-batch.

    forward, backward: per stage; of a backward that is split, the sum of its halves
    weight: per stage, the half that makes gradients of weights; 0 of a stage whose backward is not split; () where none is
    microbatches: of an iteration; ops: how many were timed; spread: the largest interquartile range over the median
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    weight: tuple[float, ...]
    microbatches: int
    ops: int
    spread: float

    def __repr__(self) -> str:
        return brief(self, f"{len(self.forward)} stages, {self.microbatches} micro-batches")

    @property
    def numbers(self) -> dict[str, Any]:
        """The arguments of `simulate` that they are."""
        split = {"weight": self.weight} if self.weight else {}
        weight = self.weight or (0.0,) * len(self.backward)
        return {
            "stages": len(self.forward),
            "microbatches": self.microbatches,
            "forward": self.forward,
            "backward": tuple(whole - half for whole, half in zip(self.backward, weight, strict=True)),
            **split,
        }

    def workload(self, name: str) -> Workload:
        """A chain whose layers are the stages; a sample is a micro-batch of the run. It has no bytes and no weights."""
        rows = zip(self.forward, self.backward, strict=True)
        layers = [
            Layer(f"stage {stage}", "elementwise", measured=((1.0, forward, backward),))
            for stage, (forward, backward) in enumerate(rows)
        ]
        edges = tuple((stage, stage + 1) for stage in range(len(layers) - 1))
        return Workload(name, tuple(layers), edges, "sample", self.microbatches, 4, "the traced devices")


def is_stage_trace(path: str | Path) -> bool:
    """Whether a path is a folder, or a file that looks like a trace; False for one that cannot be read."""
    path = Path(path)
    try:
        if path.is_dir() or path.name.endswith(".json.gz"):
            return True
        if not path.is_file():  # a pipe may never begin
            return False
        with path.open("rb") as file:
            return b'"traceEvents"' in file.read(2**20)
    except (OSError, ValueError):
        return False


def read_stage_times(path: str | Path) -> StageTimes:
    """The seconds of the stages of a run, from the trace of all its ranks, or from a folder with one of each.

    Of several iterations, and of replicas of a stage, the median is taken over all. On GPUs an op takes from its first kernel to
    its last; on CPUs from its first operator to the end of its range, without sends and receives.

    Raises WorkloadFileError (one line) for what cannot be read, is no trace, or has no such ranges for every stage.
    """
    path, seconds, neighbours = Path(path), defaultdict[tuple[int, str], list[float]](list), set[int]()
    microbatches = set[int]()
    for file in _files(path):
        for stage, letter, microbatch, took in _ops(file, _trace(file)):
            if letter in "FBIW":
                seconds[stage, letter].append(took)
                microbatches.add(microbatch)
            else:
                neighbours.add(stage)
    if not seconds:
        raise _error(path, f"has no range of an op of a pipeline; {NAMES}")
    return _times(path, seconds, neighbours, len(microbatches))


def _error(path: Path, complaint: str) -> WorkloadFileError:
    return WorkloadFileError(f"{path}: {complaint}", f"{path}: {complaint}")


def _files(path: Path) -> Sequence[Path]:
    if not path.is_dir():
        return [path]
    try:
        found = sorted(one for one in path.iterdir() if one.name.endswith(ENDINGS))
    except OSError as error:
        raise _error(path, f"cannot be read: {error.strerror or error}") from None
    if not 0 < len(found) <= MOST_FILES:
        raise _error(path, f"must have 1 to {MOST_FILES:,} files in {' or '.join(ENDINGS)}, has {len(found):,}")
    return found


def _trace(path: Path) -> _Trace:
    try:
        content = read_bytes(path, MOST_TRACE_BYTES)
        if path.suffix == ".gz":
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
                content = at_most(packed, MOST_TRACE_BYTES)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise _error(path, "is no gzip file, or not a whole one") from None
    except OSError as error:
        raise _error(path, f"cannot be read: {error.strerror or error}") from None
    try:
        if content.lstrip()[:1] == b"[":
            return _Trace(msgspec.json.decode(content, type=list[_Event]))
        return msgspec.json.decode(content, type=_Trace)
    except msgspec.ValidationError as error:
        raise WorkloadFileError(f"{path}: is no trace: {explained(str(error), {}, _Trace)[1]}") from None
    except msgspec.DecodeError:
        raise _error(path, "is not JSON, or not all of it") from None


def _ops(path: Path, trace: _Trace) -> Iterator[tuple[int, str, int, float]]:
    """Stage, letter, micro-batch and seconds of every range of a file; sends and receives with the letter S, of the stage that
    they are with.
    """
    computing = _computing(trace)
    silent = {(one.pid, one.tid) for one in trace.events if one.cat == "kernel" and not one.name.startswith("nccl")}
    gpu = [one for one in trace.events if one.cat == "gpu_user_annotation" and (one.pid, one.tid) in silent]
    named = [one for one in trace.events if _RUNTIME.fullmatch(one.name) or _GPIPE.fullmatch(one.name)]
    if not named:
        yield from _calls(path, trace, computing)
    on_gpu = any(_RUNTIME.fullmatch(one.name) or _GPIPE.fullmatch(one.name) for one in gpu)
    for event in named:
        if event.ph != "X" or event.cat == "cpu_op" or (event.cat == "gpu_user_annotation"):
            continue
        if (found := _RUNTIME.fullmatch(event.name)) and (direction := found[3] or found[4]):
            down = (direction == "F") == (found[3] is not None)
            yield int(found[1]) + (1 if down else -1), "S", int(found[5]), 0.0
        elif found and not on_gpu:
            yield int(found[1]), found[2], int(found[5]), computing(event)
        elif (found := _GPIPE.fullmatch(event.name)) and not on_gpu:
            yield _stage(path, trace), found[1][0], int(found[2]), computing(event)
    for event in gpu:
        if (found := _RUNTIME.fullmatch(event.name)) and found[2]:
            yield int(found[1]), found[2], int(found[5]), event.dur * 1e-6
        elif found := _GPIPE.fullmatch(event.name):
            yield _stage(path, trace), found[1][0], int(found[2]), event.dur * 1e-6


def _stage(path: Path, trace: _Trace) -> int:
    """The stage of a file of one rank: its place in the pipeline's group of ranks, or else its rank."""
    told = trace.distributed
    if told is None or told.rank is None:
        raise _error(path, "has ranges that tell no stage (Forward 0, or functions), and no distributedInfo.rank")
    for group in told.groups if isinstance(told.groups, list) else ():
        if isinstance(group, dict) and group.get("pg_desc") in PIPELINES:
            ranks = group.get("ranks")
            if isinstance(ranks, list) and told.rank in ranks:
                return ranks.index(told.rank)
    return told.rank


_Places = dict[tuple[int | str, int | str], list[tuple[float, float]]]
"""Begin and end of operators, by process and thread, rising."""


def _calls(path: Path, trace: _Trace, computing: Callable[[_Event], float]) -> Iterator[tuple[int, str, int, float]]:
    """What functions of a schedule took, as `_ops`."""
    functions = [one for one in trace.events if one.cat == "python_function" and one.ph == "X"]
    calls = [(one, found[1]) for one in functions if (found := _FUNCTION.fullmatch(one.name))]
    if any(name == _INTERLEAVED for _, name in calls):
        raise _error(path, f"has {_INTERLEAVED}, whose functions do not tell the stages of a rank apart")
    turns = sorted(one.ts for one, name in calls if name in _TURNS)
    passes = sorted(((one, _PASSES[name]) for one, name in calls if name in _PASSES), key=lambda row: row[0].ts)
    count = Counter[tuple[int, str]]()
    for event, letter in passes:
        turn = bisect_right(turns, event.ts), letter
        yield _stage(path, trace), letter, count[turn], computing(event)
        count[turn] += 1


def _kernels(trace: _Trace) -> list[tuple[float, ...]]:
    """When each kernel that computes was launched, began and ended, by its launch."""
    told = [(one, one.args.correlation) for one in trace.events if one.args is not None and one.args.correlation]
    launched = {str(key): one.ts for one, key in told if one.cat in LAUNCHES}
    computing = [(one, str(key)) for one, key in told if one.cat == "kernel" and not one.name.startswith("nccl")]
    return sorted((launched[key], one.ts, one.ts + one.dur) for one, key in computing if key in launched)


def _operators(trace: _Trace) -> tuple[_Places, _Places]:
    """Operators that compute, and those that send and receive."""
    begins, moves = defaultdict[Any, list[tuple[float, float]]](list), defaultdict[Any, list[tuple[float, float]]](list)
    for one in trace.events:
        if one.cat == "cpu_op":
            (moves if one.name.startswith("c10d::") else begins)[one.pid, one.tid].append((one.ts, one.ts + one.dur))
    for held in (begins, moves):
        for rows in held.values():
            rows.sort()
    return begins, moves


def _computing(trace: _Trace) -> Callable[[_Event], float]:
    """What says for how many seconds a range of the host computes: from the first kernel that it launches to the last; in a trace
    without kernels, from its first operator that computes, without those that send and receive.
    """
    (begins, moves), kernels = _operators(trace), _kernels(trace)

    def on_gpu(event: _Event) -> float:
        own = kernels[bisect_left(kernels, (event.ts,)) : bisect_left(kernels, (event.ts + event.dur,))]
        return (max(one[2] for one in own) - min(one[1] for one in own)) * 1e-6 if own else 0.0

    def on_cpu(event: _Event) -> float:
        end, place = event.ts + event.dur, (event.pid, event.tid)
        rows = begins.get(place, [])
        first = bisect_left(rows, (event.ts, 0.0))
        begin = rows[first][0] if first < len(rows) and rows[first][0] < end else event.ts
        moved = moves.get(place, [])
        inside = moved[bisect_left(moved, (begin, 0.0)) : bisect_left(moved, (end, 0.0))]
        return max(end - begin - sum(last - start for start, last in inside), 0.0) * 1e-6

    return on_gpu if kernels else on_cpu


def _times(path: Path, seconds: Seconds, neighbours: set[int], microbatches: int) -> StageTimes:
    """The medians; WorkloadFileError where a stage, or one of its passes, is missing."""
    timed = {stage for stage, _ in seconds}
    missing = sorted({*range(max(timed) + 1), *neighbours} - timed)
    if missing:
        raise _error(
            path,
            f"lacks {'stage' if len(missing) == 1 else 'stages'} {', '.join(map(str, missing[:8]))} of the run: name the folder "
            "with the traces of all ranks",
        )
    for stage in sorted(timed):
        if (stage, "F") not in seconds:
            raise _error(path, f"has no forward of stage {stage} (F)")
        if (stage, "B") not in seconds and not ((stage, "I") in seconds and (stage, "W") in seconds):
            raise _error(path, f"has no backward of stage {stage} (B, or I and W)")
    middle = {key: median(held) for key, held in seconds.items()}
    if not any(middle.values()):
        raise _error(path, "has ops that take no time")
    halves = {stage: middle[stage, "W"] for stage in timed if (stage, "W") in middle and (stage, "I") in middle}
    backward = {
        stage: middle[stage, "I"] + halves[stage] if stage in halves else middle[stage, "B"] for stage in sorted(timed)
    }
    return StageTimes(
        forward=tuple(middle[stage, "F"] for stage in sorted(timed)),
        backward=tuple(backward.values()),
        weight=tuple(halves.get(stage, 0.0) for stage in sorted(timed)) if halves else (),
        microbatches=microbatches,
        ops=sum(map(len, seconds.values())),
        spread=max(_spread(held) for held in seconds.values()),
    )


def _spread(held: list[float]) -> float:
    """Interquartile range over the median; 0 for equal values."""
    ordered, count = sorted(held), len(held)
    wide = ordered[3 * (count - 1) // 4] - ordered[(count - 1) // 4]
    return wide / median(held) if wide else 0.0
