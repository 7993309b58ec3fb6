"""Rules of `export --to torch-csv`: torch's own reader takes what is written, with sends and receives too, and ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pipeplan as pp
from experiments.targets.target import NotLaunchableError
from experiments.targets.torch_csv import TORCH_CSV, csv_of, with_communication
from simulator import (
    Plan,
    Schedule,
    ScheduleError,
    Stage,
    build_schedule,
    from_text,
    from_torch_csv,
    to_text,
    to_torch_csv,
)


@pytest.fixture(scope="module")
def torch_schedules() -> Any:
    """Torch's schedules; the test is skipped where torch is absent."""
    return pytest.importorskip(
        "torch.distributed.pipelining.schedules", reason="torch is not installed: its orders are not at hand"
    )


def loaded(torch_schedules: Any, path: Path, schedule: Schedule, form: str) -> Any:
    """Torch's runtime with a CSV, without processes: what its constructor would ask a process group for is given."""
    runtime = object.__new__(torch_schedules._PipelineScheduleRuntime)
    runtime.pp_group_size, runtime._num_stages = schedule.ranks, schedule.stages
    runtime._n_microbatches, runtime._stages, runtime.pipeline_order = schedule.microbatches, [], {}
    runtime._defer_pp_recv = False
    runtime._load_csv(str(path), format=form)
    return runtime


FAMILIES = {
    "gpipe": (3, 4),
    "1f1b": (4, 6),
    "interleaved-1f1b": (8, 8),
    "looped-bfs": (6, 3),
    "interleaved-zb": (8, 4),
    "zb-h1": (3, 5),
    "zb-v": (8, 8),
    "hanayo": (8, 4),
    "dualpipev": (8, 8),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_torch_loads_and_ends(torch_schedules: Any, tmp_path: Path, name: str) -> None:
    """Both forms: the same stages on the same ranks; of ours with sends, torch's dry run comes to an end, every send received."""
    schedule = build_schedule(name, *FAMILIES[name])
    contents = {"compute_only": to_torch_csv(schedule), "compute_comms": with_communication(schedule)}
    places = []
    for form, content in contents.items():
        path = tmp_path / f"{form}.csv"
        path.write_text(content)
        runtime = loaded(torch_schedules, path, schedule, form)
        places.append(runtime.stage_index_to_group_rank)
    assert places[0] == places[1]
    flat: dict[int, list[Any]] = {}
    for rank, actions in runtime.pipeline_order_with_comms.items():
        single = [one for action in actions for one in action.sub_actions or (action,)]
        flat[rank] = [one for one in single if one.computation_type.value not in ("UNSHARD", "RESHARD", "REDUCE_GRAD")]
    if name != "dualpipev":  # its pairs wait for each other op by op, which torch's dry run cannot say
        torch_schedules._simulate_comms_compute(flat, places[0].__getitem__, schedule.stages)
    assert to_text(from_torch_csv(contents["compute_comms"])) == to_text(schedule)


def test_sends_stand_behind_what_they_send() -> None:
    """By hand: two ranks, one micro-batch; weights come before the first op, go behind the last."""
    assert with_communication(build_schedule("gpipe", 2, 1)) == (
        "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n1RECV_F0,1UNSHARD,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1RESHARD\n"
    )


def test_halves_of_backwards_and_stages_of_one_rank_send_once() -> None:
    """By hand: a gradient of weights goes nowhere, and in the middle of a V, on one rank, nothing is sent."""
    assert with_communication(from_text("0F0 0I0 0W0\n1F0 1I0 1W0\n")) == (
        "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0I0,0W0,0REDUCE_GRAD,0RESHARD\n"
        "1RECV_F0,1UNSHARD,1F0,1I0,1SEND_B0,1W0,1REDUCE_GRAD,1RESHARD\n"
    )
    assert with_communication(from_text("0F0 3F0 3B0 0B0\n1F0 2F0 2B0 1B0\n")) == (
        "0UNSHARD,0F0,0SEND_F0,3RECV_F0,3UNSHARD,3F0,3B0,3SEND_B0,3REDUCE_GRAD,3RESHARD,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n"
        "1RECV_F0,1UNSHARD,1F0,2UNSHARD,2F0,2SEND_F0,2RECV_B0,2B0,2REDUCE_GRAD,2RESHARD,1B0,1SEND_B0,1REDUCE_GRAD,1RESHARD\n"
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_every_tensor_of_a_boundary_is_sent_and_received_once(name: str) -> None:
    """Each way of each micro-batch, where the two stages are on two ranks, and nothing else; the ops are those of the order."""
    schedule = build_schedule(name, *FAMILIES[name])
    text = with_communication(schedule)
    assert to_text(from_torch_csv(text)) == to_text(schedule)
    rank_of = {op.stage: rank for rank in range(schedule.ranks) for ops in schedule.words(rank) for op in ops}
    meets = [stage for stage in range(schedule.stages - 1) if rank_of[stage] != rank_of[stage + 1]]
    sent = [f"{stage}SEND_F{batch}" for stage in meets for batch in range(schedule.microbatches)]
    sent += [f"{stage + 1}SEND_B{batch}" for stage in meets for batch in range(schedule.microbatches)]
    received = [f"{stage + 1}RECV_F{batch}" for stage in meets for batch in range(schedule.microbatches)]
    received += [f"{stage}RECV_B{batch}" for stage in meets for batch in range(schedule.microbatches)]
    words = text.replace("\n", ",").split(",")
    assert sorted(word for word in words if "SEND" in word or "RECV" in word) == sorted(sent + received)
    assert ("OVERLAP_F_B" in text) == (name == "dualpipev")


def test_an_order_that_waits_for_itself_has_no_sends() -> None:
    """A backward before the forward of the next stage."""
    with pytest.raises(ScheduleError, match="schedule 'text' waits for itself: no rank's next op can begin"):
        with_communication(from_text("0F0 0B0\n1B0 1F0\n"))


PROBLEM = pp.Problem("chain:4", "pipedream-b:1", 8)
GIVEN: dict[str, Any] = {
    "planner": "hand",
    "schedule": "1f1b",
    "stages": (Stage((0, 1), (0,)), Stage((2, 3), (1,))),
    "microbatches": (4, 4),
}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"order": ("0F0 0A0 0B0", "1F0 1B0"), "microbatches": (8,)}, ["ops but forwards and backwards (F, B, I, W)"]),
        ({"schedule": "pipedream"}, ["updates without a flush (schedule pipedream)"]),
        ({"microbatches": (3, 5)}, ["micro-batches of unlike sizes (3, 5)"]),
        (
            {"stages": (Stage((0, 1), (0,)), Stage((2,), (1,)), Stage((3,), (1,)))},
            ["ranks with unlike numbers of stages"],
        ),
        (
            {
                "stages": (Stage((0, 1), (0, 1)), Stage((2, 3), (1, 0))),
                "schedule": "chimera",
                "replication": "round-robin",
            },
            ["replicas that take whole micro-batches in turn", "devices that two ranks share"],
        ),
    ],
)
def test_all_that_it_lacks(changes: dict[str, Any], why: list[str]) -> None:
    """Every lack is told."""
    assert list(TORCH_CSV.lacks(PROBLEM, Plan(**(GIVEN | changes)))) == why


def test_ops_that_torch_cannot_run_are_one_line() -> None:
    """Those of a schedule that no rule knows, too."""
    with pytest.raises(
        NotLaunchableError, match="torchtitan cannot run plan 'hand': schedule 'pipedream' never flushes"
    ):
        csv_of(PROBLEM, Plan(**(GIVEN | {"schedule": "pipedream"})), "torchtitan")
