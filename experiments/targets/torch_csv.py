"""torch.distributed.pipelining: a plan's ops as the CSV that its runtime loads, with or without sends and receives.

What it can run: `torch/distributed/pipelining/schedules.py` of PyTorch 2.13 (`_PipelineScheduleRuntime._load_csv`,
`_validate_schedule`); one shape of tensors for all micro-batches (pytorch#126600).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import simulator
from experiments.targets.pipelines import equal_pipelines, pipelines_of
from experiments.targets.target import NotLaunchableError, Target, Written
from hardware_profiles import Runs, blaming, counted

if TYPE_CHECKING:
    from simulator import Op, Plan, Problem, Schedule

_OTHER_OPS = re.compile(r"[0-9][AUPOL][0-9]")


def with_communication(schedule: Schedule) -> str:
    """The CSV with sends and receives (torch's format "compute_comms").

    A send stands behind the op that makes the tensor, its receive then on the other rank: both agree on their order.
    Weights are gathered before a stage's first op, and freed, with its gradients reduced, behind its last one.

    ScheduleError as `to_torch_csv`, and for an order that waits for itself.
    """
    simulator.to_torch_csv(schedule)
    starts, weight = simulator.OpKind.FORWARD, simulator.OpKind.WEIGHT_GRADIENT
    rows = [
        [ops for ops in schedule.words(rank) if ops[0].kind in simulator.COMPUTE_KINDS]
        for rank in range(schedule.ranks)
    ]
    rank_of = {op.stage: rank for rank, row in enumerate(rows) for ops in row for op in ops}
    held = Counter(op.stage for row in rows for ops in row for op in ops)
    left = held.copy()
    written: list[list[str]] = [[] for _ in rows]
    arrived, forwarded = set[tuple[int, bool, int]](), set[tuple[int, int]]()
    places, last = [0] * len(rows), schedule.stages - 1

    def ready(op: Op) -> bool:
        if op.kind == starts:
            return op.stage == 0 or (op.stage, True, op.microbatch) in arrived
        made = (op.stage, op.microbatch) in forwarded
        return made and (op.kind == weight or op.stage == last or (op.stage, False, op.microbatch) in arrived)

    def sends(op: Op) -> Iterator[tuple[int, int, str]]:
        """The two ranks of a transfer and its letter; nothing where what an op makes goes nowhere."""
        forward, step = op.kind == starts, 1 if op.kind == starts else -1
        if forward:
            forwarded.add((op.stage, op.microbatch))
        if op.kind == weight or not 0 <= op.stage + step <= last:
            return
        arrived.add((op.stage + step, forward, op.microbatch))
        if rank_of[op.stage + step] != rank_of[op.stage]:
            yield rank_of[op.stage + step], op.stage + step, "F" if forward else "B"

    while any(place < len(row) for place, row in zip(places, rows, strict=True)):
        moved = False
        for rank, row in enumerate(rows):
            if places[rank] == len(row) or not all(map(ready, row[places[rank]])):
                continue
            ops, moved = row[places[rank]], True
            places[rank] += 1
            written[rank] += [f"{op.stage}UNSHARD" for op in ops if left[op.stage] == held[op.stage]]
            written[rank].append(str(ops[0]) if len(ops) == 1 else f"({';'.join(map(str, ops))})OVERLAP_F_B")
            for op in ops:
                for other, stage, letter in sends(op):
                    written[rank].append(f"{op.stage}SEND_{letter}{op.microbatch}")
                    written[other].append(f"{stage}RECV_{letter}{op.microbatch}")
                left[op.stage] -= 1
                if not left[op.stage]:
                    written[rank] += [f"{op.stage}REDUCE_GRAD", f"{op.stage}RESHARD"]
        if not moved:
            raise simulator.ScheduleError(f"schedule {schedule.name!r} waits for itself: no rank's next op can begin")
    return "".join(f"{','.join(row)}\n" for row in written)


def torch_rules(problem: Problem, plan: Plan) -> Iterator[str]:
    """What no list says: one list of forwards and backwards on each rank, as many stages on each."""
    yield from equal_pipelines(problem, plan)
    family = None if plan.order else simulator.schedule_families().get(plan.schedule)
    if family is not None and family.lanes:
        yield f"two lists of ops at once on a device (schedule {plan.schedule})"
    if any(_OTHER_OPS.search(line) for line in plan.order):
        yield "ops but forwards and backwards (F, B, I, W)"
    if len(set(Counter(stage.devices for stage in plan.stages).values())) > 1:
        yield "ranks with unlike numbers of stages"


def csv_of(problem: Problem, plan: Plan, target: str, write: Callable[[Schedule], str] = simulator.to_torch_csv) -> str:
    """The CSV of a plan's ops; NotLaunchableError for those that torch cannot run."""
    with blaming(NotLaunchableError, f"{target} cannot run plan {plan.planner!r}", of=simulator.ScheduleError):
        return write(simulator.build_program(problem, plan)[1])


def _write(problem: Problem, plan: Plan, file: str, *, with_sends: bool = False) -> Written:
    found = pipelines_of(plan)
    content = csv_of(problem, plan, "torch-csv", with_communication if with_sends else simulator.to_torch_csv)
    count, ranks = found.data * found.tensor * found.context, found.ranks
    note = (
        f"the CSV is of one of {count} equal pipelines: launch {count} × {ranks} processes, a pipeline group of {ranks} ranks "
        f"per replica, {counted(found.microbatch, 'sample')} per micro-batch in each, DistributedDataParallel over the replicas "
        "of a stage"
    )
    return Written({"": content}, (note,) * (count > 1))


TORCH_CSV = Target(
    summary="CSV of ops for torch.distributed.pipelining (_PipelineScheduleRuntime._load_csv)",
    runs=Runs(unequal=False, further=(torch_rules,)),
    write=_write,
    options=("with_sends",),
)
