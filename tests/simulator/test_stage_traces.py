"""Rules of traces of torch.profiler: medians by stage and pass, waits and messages apart; every lack is told in a line."""

from __future__ import annotations

import errno
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

import pipeplan as pp
from simulator import is_stage_trace, read_any_profile, read_stage_times
from simulator.workloads.network_files import WorkloadFileError

Event = dict[str, Any]


def event(name: str, begin: float, end: float, cat: str = "user_annotation", **more: Any) -> Event:
    """A range in milliseconds, on the thread of its process."""
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 7,
        "tid": 7,
        "ts": 1e3 * begin,
        "dur": 1e3 * (end - begin),
        **more,
    }


def written(path: Path, events: list[Event], rank: int | None = None) -> Path:
    """A trace, packed where its name says so."""
    whole: dict[str, Any] = {
        "schemaVersion": 1,
        "traceEvents": [{"ph": "M", "name": "process_name", "args": {}}, *events],
    }
    if rank is not None:
        whole["distributedInfo"] = {"backend": "gloo", "rank": rank}
    content = json.dumps(whole).encode()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def split_run(folder: Path) -> Path:
    """Two ranks under torch's runtime. Rank 1: a forward waits 4 ms, computes 3; of three backwards, I takes 2, 9, 2 and W 1."""
    first = [event(f"PP:0F{one}", 2.0 * one, 2.0 * one + 1.0 + one) for one in range(3)]
    first += [event(f"PP:0B{one}", 20.0 + 5 * one, 24.0 + 5 * one) for one in range(3)]
    second = []
    for one, wide in enumerate((2.0, 9.0, 2.0)):
        begin = 100.0 * one
        second += [event(f"PP:1F{one}", begin, begin + 7.0), event("aten::linear", begin + 4.0, begin + 6.0, "cpu_op")]
        second += [event("c10d::recv_", begin, begin + 0.5, "cpu_op"), event(f"PP:1RECV_F{one}", begin, begin + 0.5)]
        second += [
            event(f"PP:1I{one}", begin + 10.0, begin + 10.0 + wide),
            event(f"PP:1W{one}", begin + 20.0, begin + 21.0),
        ]
    written(folder / "rank1.json.gz", second)
    return written(
        folder / "rank0.json", [*first, event("PP:0SEND_F0", 1.0, 1.5), event("ProfilerStep#1", 0.0, 90.0)]
    ).parent


def test_medians_by_stage_and_pass(tmp_path: Path) -> None:
    """A folder with a file of each rank: waits at the front are no computation; halves are told, and are the backward."""
    found = read_stage_times(split_run(tmp_path / "run"))
    assert found.forward == pytest.approx((0.002, 0.003))
    assert found.backward == pytest.approx((0.004, 0.003))
    assert found.weight == pytest.approx((0.0, 0.001))
    assert (found.microbatches, found.ops) == (3, 15)
    assert found.spread == pytest.approx(0.5)  # of the first stage's forwards: 1, 2, 3 ms
    assert found.numbers["backward"] == pytest.approx((0.004, 0.002))
    assert repr(found) == "StageTimes(2 stages, 3 micro-batches)"


def test_what_is_no_range_of_a_whole_op_is_passed_over(tmp_path: Path) -> None:
    """A flow's arrow and an operator of a range's name; a weight gradient of a stage whose backwards are whole."""
    folder = split_run(tmp_path / "run")
    more = [
        event("PP:0F0", 0.0, 50.0, ph="s"),
        event("PP:0F1", 0.0, 60.0, "cpu_op"),
        event("PP:0W0", 70.0, 75.0),
    ]
    path = folder / "rank0.json"
    whole = json.loads(path.read_bytes())
    path.write_text(json.dumps(whole | {"traceEvents": whole["traceEvents"] + more}))
    found = read_stage_times(folder)
    assert found.forward == pytest.approx((0.002, 0.003))
    assert found.backward == pytest.approx((0.004, 0.003))
    assert found.weight == pytest.approx((0.0, 0.001))
    assert found.ops == 16


def test_a_rank_that_no_group_tells_is_its_stage(tmp_path: Path) -> None:
    """Groups whose ranks are no list, or are others; kernels whose launch is not in the trace are passed over."""
    megatron_rank(tmp_path / "run", 0, [0], 4.0, backward=9.0)
    (path,) = (tmp_path / "run").iterdir()
    whole = json.loads(gzip.decompress(path.read_bytes()))
    named = [{"pg_desc": "PIPELINE_MODEL_PARALLEL_GROUP", "ranks": ranks} for ranks in ("all", [2, 1])]
    whole["distributedInfo"]["pg_config"] = ["nothing", *named]
    whole["traceEvents"].append(kernel(999, 0.0, 0.0, 9000.0)[1])
    path.write_bytes(gzip.compress(json.dumps(whole).encode()))
    found = read_stage_times(path)
    assert (found.forward, found.backward) == (pytest.approx((0.004,)), pytest.approx((0.009,)))


MEGATRON = "/opt/megatron/core/pipeline_parallel/schedules.py(403): "


def python(name: str, begin: float, end: float) -> Event:
    return event(name, begin, end, "python_function")


def kernel(number: int, launch: float, begin: float, end: float, name: str = "gemm", thread: int = 7) -> list[Event]:
    """A kernel, and the call that launched it."""
    asked = {"args": {"correlation": number, "External id": "x"}}
    called = event("cudaLaunchKernel", launch, launch + 0.01, "cuda_runtime", tid=thread, args=asked["args"])
    return [called, event(name, begin, end, "kernel", pid=0, tid=20, args=asked["args"])]


def megatron_rank(folder: Path, rank: int, pipeline: list[int], forward: float, backward: float) -> None:
    """Two iterations of two micro-batches: kernels run long after the functions that launch them, an exchange among them."""
    events, number = [], 0
    for turn in range(2):
        at = 1000.0 * turn
        events.append(python(f"{MEGATRON}forward_backward_pipelining_without_interleaving", at, at + 20.0))
        for one in range(2):
            begin, gpu = at + 8.0 * one + 1.0, at + 300.0 * one + 50.0
            events += [
                python(f"{MEGATRON}forward_step", begin, begin + 1.0),
                python("train.py(9): step", begin, begin + 9.0),
            ]
            events += kernel(number + 1, begin + 0.1, gpu, gpu + 1.0)
            events += kernel(number + 2, begin + 0.5, gpu + 1.0, gpu + 90.0, "ncclDevKernel_SendRecv")
            events += kernel(number + 3, begin + 0.9, gpu + forward - 1.0, gpu + forward)
            events.append(python(f"{MEGATRON}backward_step", begin + 2.0, begin + 3.0))
            events += kernel(number + 4, begin + 2.5, gpu + 100.0, gpu + 100.0 + backward, thread=8)
            number += 4
    groups = [
        {"pg_desc": "default_pg", "ranks": [0, 1, 2, 3]},
        {"pg_desc": "PIPELINE_MODEL_PARALLEL_GROUP", "ranks": pipeline},
    ]
    file = written(folder / f"rank-{rank}.json.gz", events, rank)
    whole = json.loads(gzip.decompress(file.read_bytes()))
    whole["distributedInfo"]["pg_config"] = groups
    file.write_bytes(gzip.compress(json.dumps(whole).encode()))


def test_functions_of_megatron_are_passes(tmp_path: Path) -> None:
    """By their kernels, on stages by the pipeline's group: ranks 0 and 1 are replicas of the first."""
    for rank, pipeline, forward in [(0, [0, 2], 4.0), (1, [1, 3], 6.0), (2, [0, 2], 7.0), (3, [1, 3], 7.0)]:
        megatron_rank(tmp_path / "run", rank, pipeline, forward, backward=9.0)
    found = read_stage_times(tmp_path / "run")
    assert found.forward == pytest.approx((0.005, 0.007))
    assert found.backward == pytest.approx((0.009, 0.009))
    assert (found.weight, found.microbatches, found.ops) == ((), 2, 32)


def test_functions_of_torch_are_passes_on_cpus(tmp_path: Path) -> None:
    """From their first operator to their end; interleaved ranks of Megatron's tell no stages."""
    stage = "torch/distributed/pipelining/stage.py(700): "
    events = [python("torch/distributed/pipelining/schedules.py(9): _step_microbatches", 0.0, 90.0)]
    for begin in (1.0, 21.0, 41.0):
        events += [
            python(f"{stage}forward_one_chunk", begin, begin + 5.0),
            event("aten::mm", begin + 2.0, begin + 4.0, "cpu_op"),
        ]
        events.append(python(f"{stage}backward_one_chunk", begin + 10.0, begin + 16.0))
    found = read_stage_times(written(tmp_path / "run.json", events, rank=0))
    assert (found.forward, found.backward) == (pytest.approx((0.003,)), pytest.approx((0.006,)))
    assert found.microbatches == 3
    events.append(python(f"{MEGATRON}forward_backward_pipelining_with_interleaving", 0.0, 9.0))
    with pytest.raises(
        WorkloadFileError,
        match=(
            "has forward_backward_pipelining_with_interleaving, whose functions do not tell the stages of a rank apart"
        ),
    ):
        read_stage_times(written(tmp_path / "run.json", events, rank=0))


def test_one_file_of_several_processes(tmp_path: Path) -> None:
    """Ranges say their stage, whichever process has them; a bare list of events is a trace, too."""
    events = [event("PP:0F0", 0, 1), event("PP:0B0", 5, 7), event("PP:1F0", 1, 2, pid=8), event("PP:1B0", 2, 5, pid=8)]
    path = tmp_path / "all.json"
    path.write_text(json.dumps([*events, {"name": "traceEvents"}]).replace('"name": "traceEvents"', '"traceEvents": 1'))
    assert read_stage_times(path).backward == pytest.approx((0.002, 0.003))


def test_ranges_of_gpipe_are_of_the_stage_of_their_rank(tmp_path: Path) -> None:
    """Sends and receives inside them do not count."""
    for rank in range(2):
        events = [event("Forward 0", 0, 10), event("c10d::recv_", 0, 5, "cpu_op"), event("aten::mm", 6, 7, "cpu_op")]
        events += [
            event("Backward 0", 20, 30),
            event("aten::mm", 20, 25, "cpu_op"),
            event("c10d::send", 27, 29, "cpu_op"),
        ]
        written(tmp_path / "run" / f"{rank}.json", events, rank)
    found = read_stage_times(tmp_path / "run")
    assert (found.forward, found.backward) == (pytest.approx((0.004,) * 2), pytest.approx((0.008,) * 2))


def test_on_gpus_kernels_are_timed(tmp_path: Path) -> None:
    """Of a range's two forms that on the stream that computes, not the CPU's, nor that of NCCL."""
    events = [event("PP:0F0", 0, 1), event("PP:0B0", 1, 2)]
    for stream, called, long in ((5, "sgemm", 4), (9, "ncclDevKernel_SendRecv", 50)):
        events += [event(called, 0, 1, "kernel", pid=0, tid=stream)]
        events += [
            event(name, 10, 10 + long, "gpu_user_annotation", pid=0, tid=stream) for name in ("PP:0F0", "PP:0B0")
        ]
    assert read_stage_times(written(tmp_path / "gpu.json", events)).numbers == {
        "stages": 1,
        "microbatches": 1,
        "forward": pytest.approx((0.004,)),
        "backward": pytest.approx((0.004,)),
    }
    ranges = [
        event(name, 10, 10 + long, "gpu_user_annotation", pid=0, tid=stream)
        for stream, long in ((5, 6), (9, 50))
        for name in ("Forward 0", "Backward 0")
    ]
    hosts = [event("Forward 0", 0, 1), event("Backward 0", 1, 2)]
    kernels = [one for one in events if one["cat"] == "kernel"]
    found = read_stage_times(written(tmp_path / "gpipe.json", [*hosts, *kernels, *ranges], rank=0))
    assert (found.forward, found.backward) == (pytest.approx((0.006,)), pytest.approx((0.006,)))
    hidden = [
        one for one in events if one["cat"] == "user_annotation"
    ]  # no forms on streams: by what the host's launch
    hidden += [*kernel(1, 0.5, 20.0, 23.0), *kernel(2, 0.7, 23.0, 80.0, "ncclKernel"), *kernel(3, 1.5, 30.0, 37.0)]
    found = read_stage_times(written(tmp_path / "hidden.json", hidden))
    assert (found.forward, found.backward) == (pytest.approx((0.003,)), pytest.approx((0.007,)))


def test_its_stages_are_layers(tmp_path: Path) -> None:
    """`pp.read_profile`: seconds of a plan are those of the trace; a plan file names the folder, and reads back."""
    workload = pp.read_profile(split_run(tmp_path / "run"))
    problem = pp.Problem(workload, "pipedream-b:1", 3, devices=2)
    plan = pp.Plan("hand", "gpipe", (pp.Stage((0,), (0,)), pp.Stage((1,), (1,))), (1,) * 3)
    seconds = pp.simulate(problem, plan).makespan_seconds
    assert seconds == pytest.approx(0.002 + 3 * 0.003 + 0.003 + 3 * 0.004, abs=1e-4)
    pp.PlanFile(problem, plan).write(tmp_path / "plan.json")
    assert pp.PlanFile.read_plan(tmp_path / "plan.json")[0].workload == workload


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([event("aten::mm", 0, 1)], "has no range of an op of a pipeline; names looked for are PP:2F0"),
        ([event("PP:(1F0;0B0)OVERLAP_F_B", 0, 1)], "has no range of an op of a pipeline"),
        ([event("PP:0F0", 0, 1), event("PP:0B0", 0, 1), event("PP:0SEND_F0", 0, 1)], "lacks stage 1 of the run"),
        ([event("PP:2F0", 0, 1)], "lacks stages 0, 1 of the run"),
        ([event("PP:0F0", 0, 1)], "has no backward of stage 0 (B, or I and W)"),
        *(
            ([event("PP:0F0", 0, 1), event(f"PP:0{half}0", 0, 1)], "has no backward of stage 0 (B, or I and W)")
            for half in "IW"
        ),
        ([event("PP:0I0", 0, 1), event("PP:0W0", 0, 1)], "has no forward of stage 0"),
        ([event("PP:0F0", 0, 0), event("PP:0B0", 0, 0)], "take no time"),
        ([event("Forward 0", 0, 1)], "tell no stage"),
        ([{"ph": "X", "ts": "soon"}], "is no trace: $.traceEvents[1].ts"),
        ([event("PP:0F0", 1, 0)], "is no trace: $.traceEvents[1].dur"),
    ],
)
def test_what_is_told_of_other_traces(tmp_path: Path, events: list[Event], said: str) -> None:
    """One line with the file."""
    path = written(tmp_path / "trace.json", events)
    with pytest.raises(WorkloadFileError) as error:
        read_any_profile(path)
    assert str(error.value).startswith(f"{path}: ")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_told_of_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty folders, files that are not packed, or not to their ends, or no JSON; what is no file, and a folder that is shut."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "plain.json.gz").write_text("{}")
    packed = written(tmp_path / "whole.json.gz", [event("PP:0F0", 0, 1)]).read_bytes()
    (tmp_path / "half.json.gz").write_bytes(packed[:-9])
    (tmp_path / "half.json").write_text('{"traceEvents": [')
    os.mkfifo(tmp_path / "pipe.json")
    for name, said in {
        "empty": "must have 1 to 4,096 files",
        "plain.json.gz": "is no gzip file",
        "half.json.gz": "is no gzip file, or not a whole one",
        "half.json": "is not JSON, or not all of it",
        "pipe.json": "pipe.json: cannot be read: is no regular file",
    }.items():
        with pytest.raises(WorkloadFileError, match=said):
            read_any_profile(tmp_path / name)
    (tmp_path / "run").mkdir()
    os.mkfifo(tmp_path / "run" / "rank0.json")
    with pytest.raises(WorkloadFileError, match=r"run/rank0.json: cannot be read: is no regular file, but a pipe"):
        read_stage_times(tmp_path / "run")

    def shut(path: Path) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", shut)
    with pytest.raises(WorkloadFileError, match=r"run: cannot be read: Permission denied$"):
        read_stage_times(tmp_path / "run")
    assert not is_stage_trace("x" * 5000)  # the system refuses to look


RUN = """
import sys, torch, torch.distributed as dist, torch.multiprocessing as processes
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleavedZeroBubble
from torch.profiler import profile, ProfilerActivity

def linear(count):
    return torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(count)))

def run(rank, folder, name):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    loss = lambda out, wanted: (out - wanted).square().mean()
    numbers = [rank, rank + 2] if name == "zero bubble" else [rank]
    count = 4 if name == "zero bubble" else 2
    stages = [PipelineStage(linear(2 + 6 * one), one, count, torch.device("cpu")) for one in numbers]
    if name != "zero bubble":
        schedule = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[name](stages[0], 4, loss_fn=loss)
    else:
        schedule = ScheduleInterleavedZeroBubble(stages, 4, loss_fn=loss)
    samples = torch.randn(256, 256)

    def step():
        schedule.step(*([samples] if rank == 0 else []), **({"target": samples, "losses": []} if rank else {}))

    step()
    with profile(activities=[ProfilerActivity.CPU], with_stack=name == "1f1b") as found:
        for _ in range(3):
            step()
    found.export_chrome_trace(f"{folder}/traces/rank{rank}.json.gz")
    dist.destroy_process_group()

if __name__ == "__main__":
    processes.spawn(run, sys.argv[1:], nprocs=2)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zero bubble"])
def test_a_run_of_torch(tmp_path: Path, name: str) -> None:
    """Two processes on the CPU, traced by torch's own profiler: every stage and pass is there, every micro-batch three times."""
    pytest.importorskip("torch.distributed.pipelining", reason="torch is not installed: its traces are not at hand")
    (tmp_path / "traces").mkdir()
    (tmp_path / "run.py").write_text(RUN)
    subprocess.run([sys.executable, str(tmp_path / "run.py"), str(tmp_path), name], check=True, timeout=300)
    found = read_stage_times(tmp_path / "traces")
    stages, passes = (4, 3) if name == "zero bubble" else (2, 2)
    assert (len(found.forward), found.microbatches) == (stages, 4)
    assert found.ops == 3 * 4 * stages * passes
    assert bool(found.weight) == (name == "zero bubble")
    assert min(found.forward + found.backward) > 0
