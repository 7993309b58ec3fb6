"""Execution traces: what each device of a plan does in an iteration, as Chakra traces for simulators of networks."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hardware_profiles import brief
from simulator.costs.plan_costs import PlanCosts, peers_of
from simulator.lowering.fill import collective_bytes, fill
from simulator.plan_replay import plan_structure
from simulator.plans.plan import Plan, Problem, flushes
from simulator.results.chakra_messages import COLLECTIVES, TraceNode, encoded
from simulator.schedules.ops import COLLECTIVE_KINDS, OpKind

MOST_NODES = 2**20
"""Of all traces of a plan."""

_TYPES = {OpKind.OFFLOAD: "MEM_STORE", OpKind.RELOAD: "MEM_LOAD"}
"""Type of the node of an op; every other computes."""

_COLLECTIVES = {OpKind.REDUCE: "ALL_REDUCE", OpKind.SCATTER: "REDUCE_SCATTER", OpKind.GATHER: "ALL_GATHER"}

Devices = tuple[int, ...]

Ends = dict[int, tuple[int, ...]]
"""Nodes by device."""

Said = Mapping[str, int | str]
"""Attributes of a node."""

NOTHING: Said = {}


@dataclass(frozen=True, slots=True, eq=False)
class ExecutionTraces:
    """The traces of a plan, one of each device that it uses: rank r is the r-th of them.

    Ranks wait for each other through messages and collectives alone; a node stands behind all that it waits for.

    name: of the plan; devices: rising; nodes: of each device
    groups: devices of each group that runs collectives, by its number, from 1; what one runs stands in one order, so that its
        devices agree on it
    stream: micro-batches of the stream that they are of, where the plan never flushes; else 0
    """

    name: str
    devices: Devices
    nodes: tuple[tuple[TraceNode, ...], ...]
    groups: Mapping[int, Devices]
    stream: int

    def __repr__(self) -> str:
        return brief(self, f"{sum(map(len, self.nodes))} nodes of {len(self.devices)} devices")

    def files(self) -> dict[str, str | bytes]:
        """Contents by what stands behind the files' common prefix: `.RANK.et`, and, where there are collectives, `.groups.json`:
        the ranks of each group. ValueError where protobuf is not installed.
        """
        ranks = {device: rank for rank, device in enumerate(self.devices)}
        traces = zip(self.devices, self.nodes, strict=True)
        files: dict[str, str | bytes] = {
            f".{ranks[device]}.et": encoded(nodes, {"plan": self.name, "device": device}) for device, nodes in traces
        }
        held = {str(number): [ranks[one] for one in members] for number, members in self.groups.items()}
        return {**files, ".groups.json": json.dumps(held) + "\n"} if held else files


def execution_traces(problem: Problem, plan: Plan) -> ExecutionTraces:
    """The traces of an iteration of a plan, or of a stream of micro-batches of one that never flushes.

    Each device of a tensor-parallel group has its own, with its part of what the group sends; what such a group reduces, and
    what experts exchange, is within the seconds of ops, as in every replay. Raises InfeasiblePlanError and ScheduleError as a
    replay does, and ValueError, in one line, for a plan that traces cannot say, or only with more than MOST_NODES nodes.
    """
    writer = _Writer(problem, plan)
    for task in writer.in_order():
        writer.write(task)
    return ExecutionTraces(
        name=f"{plan.planner}, {plan.schedule}, {plan.notation}",
        devices=tuple(writer.nodes),
        nodes=tuple(map(tuple, writer.nodes.values())),
        groups={number: ring for (_, ring), number in writer.groups.items()},
        stream=0 if flushes(plan) else writer.schedule.microbatches,
    )


class _Writer:
    """Writes the nodes of tasks, in an order in which nothing stands before what it waits for.

    ends: of each task, the nodes of each device that end with it
    arrived: receives of what a task sends, by the task, transfer class and receiving lane
    sent: what each send on a lane sends, to be received on a lane: receiver, name, message
    groups: numbers of groups, by lane and devices
    last: the nodes of each lane and device that its next one stands behind
    """

    def __init__(self, problem: Problem, plan: Plan) -> None:
        self.plan, self.costs = plan, PlanCosts(problem, plan)
        self.schedule, self.structure = plan_structure(self.costs)
        self.program = fill(self.structure, self.costs)
        self._refuse()
        self.lane = self.program.lane_of_task().tolist()
        self.deliveries, self.consumers = self.program.deliveries(), self.program.consumers()
        self.receives_block = bool((self.program.kind == OpKind.RECEIVE).any())
        self.bytes = collective_bytes(self.structure, self.costs)
        self.partners = self._partners()
        self.needed = self._needs()
        self.nodes: dict[int, list[TraceNode]] = {
            one: [] for one in sorted({device for stage in plan.stages for device in stage.devices})
        }
        self.ranks = {device: rank for rank, device in enumerate(self.nodes)}
        self.ends: list[Ends] = [{} for _ in self.lane]
        self.arrived: dict[tuple[int, int, int], Ends] = {}
        self.sent: dict[int, list[tuple[int, str, Said]]] = {}
        self.last: dict[tuple[int, int], tuple[int, ...]] = {}
        self.groups: dict[tuple[int, Devices], int] = {}
        self.tags: Counter[tuple[int, int]] = Counter()

    def _refuse(self) -> None:
        plan, program, forms = self.plan, self.program, self.structure.forms
        rules = {
            f"lists of ops that share a device (schedule {plan.schedule})": (program.lane_sharing >= 0).any(),
            "reductions of experts that replicas divide": any(forms) and plan.expert > 1,
            "ZeRO among part of the replicas": any(forms) and plan.shard,
        }
        if lacks := [words for words, so in rules.items() if so]:
            raise ValueError(
                f"traces cannot say plan {plan.planner!r} ({plan.notation}): they have no {'; no '.join(lacks)}"
            )
        widest = max(len(group) for stage in range(len(plan.stages)) for group in self.costs.places(stage).groups)
        count = widest * (len(program) + 2 * int(np.count_nonzero(program.transfer)))
        reduced = int(np.diff(program.lane_offsets)[len(self.structure.lane_first) :].sum())
        count += reduced * max(len(stage.devices) for stage in plan.stages)
        if count > MOST_NODES:
            raise ValueError(
                f"traces of plan {plan.planner!r} would have about {count:,} nodes; at most {MOST_NODES:,} are written"
            )

    # ---- order ------------------------------------------------------------------------------------------------------

    def _partners(self) -> dict[int, int]:
        """The task that each second op of an overlapped pair begins and ends with."""
        if (together := self.program.together) is None:
            return {}
        return {row: int(together[row]) for row in np.flatnonzero(together != np.arange(len(together))).tolist()}

    def _needs(self) -> list[list[tuple[int, int]]]:
        """Producer and transfer class of all that each task waits for; the first op of a pair waits for both."""
        program = self.program
        found: list[list[tuple[int, int]]] = [[] for _ in self.lane]
        rows = zip(self.consumers.tolist(), program.dependency.tolist(), program.transfer.tolist(), strict=True)
        for consumer, producer, transfer in rows:
            first = self.partners.get(consumer, consumer)
            if producer != first:
                found[first].append((producer, transfer))
        return found

    def in_order(self) -> Iterator[int]:
        """All tasks, each behind what it needs and what stands before it on its lane."""
        follow: list[list[int]] = [[] for _ in self.lane]
        missing = []
        for task, lane in enumerate(self.lane):
            before = [producer for producer, _ in self.needed[task]]
            if task and self.lane[task - 1] == lane:
                before.append(task - 1)
            missing.append(len(before))
            for one in before:
                follow[one].append(task)
        ready = deque(task for task, count in enumerate(missing) if not count)
        while ready:
            task = ready.popleft()
            yield task
            for one in follow[task]:
                missing[one] -= 1
                if not missing[one]:
                    ready.append(one)

    # ---- nodes ------------------------------------------------------------------------------------------------------

    def write(self, task: int) -> None:
        """The nodes of a task, and the messages that carry what it has made."""
        kind, waits, lane = OpKind(int(self.program.kind[task])), self._waits(task), self.lane[task]
        if kind in COLLECTIVE_KINDS:
            ends = self._collective(task, _COLLECTIVES[kind], waits)
        elif kind == OpKind.SEND:
            sends, receives = self._message(task, int(self.program.sends[task]), waits, in_lane=True)  # type: ignore[index]
            ends = sends | receives
        elif kind == OpKind.RECEIVE:
            ends = self._receive(task, self.sent[self.needed[task][0][0]])
        else:
            devices = self._devices(int(self.program.stage[task]), int(self.program.replica[task]))
            name, what = self.program.name_of(task), _TYPES.get(kind, "COMP")
            ends = {one: (self._add(one, name, what, self._seconds(task), waits, task),) for one in devices}
        self.ends[task] = ends
        self.last |= {(lane, device): nodes for device, nodes in ends.items()}
        begin, end = self.deliveries.offsets[task : task + 2].tolist()
        for one in range(begin, end):
            if transfer := int(self.deliveries.transfer[one]):
                consumer = self.consumers[self.deliveries.rows[self.deliveries.row_offsets[one]]]
                self.arrived[task, transfer, self.lane[consumer]] = self._message(task, transfer, ends)[1]

    def _seconds(self, task: int) -> float:
        return float(self.program.seconds[task])

    def _devices(self, stage: int, replica: int) -> Devices:
        return self.costs.places(stage).groups[replica]

    def _waits(self, task: int) -> Ends:
        """The nodes of each device that a task waits for."""
        found: dict[int, set[int]] = {}
        for producer, transfer in self.needed[task]:
            ends = self.arrived[producer, transfer, self.lane[task]] if transfer else self.ends[producer]
            for device, nodes in ends.items():
                found.setdefault(device, set()).update(nodes)
        return {device: tuple(nodes) for device, nodes in found.items()}

    def _add(
        self, device: int, name: str, kind: str, seconds: float, waits: Ends, task: int | None, said: Said = NOTHING
    ) -> int:
        """The number of a new node of a device, behind what stands before a task in its lane; None: beside all lanes."""
        nodes = self.nodes[device]
        behind = () if task is None else self.last.get((self.lane[task], device), ())
        after = tuple(sorted({*behind, *waits.get(device, ())}))
        nodes.append(TraceNode(len(nodes), name, kind, seconds, behind, after, said))
        return len(nodes) - 1

    def _collective(self, task: int, name: str, waits: Ends) -> Ends:
        """A node on each device of each ring, all rings at once."""
        ends: Ends = {}
        stage, size = int(self.program.stage[task]), round(self.bytes[int(self.structure.value[task])])
        for ring in self._rings(self.lane[task] - len(self.structure.lane_first), stage):
            group = self.groups.setdefault((self.lane[task], ring), len(self.groups) + 1)
            said: Said = {"comm_type": COLLECTIVES[name], "comm_size": size, "pg_name": str(group)}
            title = f"{stage}{name}{self.program.microbatch[task]}"
            for one in ring:
                made = self._add(one, title, "COMM_COLL", self._seconds(task), waits, task, said)
                ends[one] = (*ends.get(one, ()), made)
        return ends

    def _rings(self, number: int, stage: int) -> list[Devices]:
        """The devices of each ring that runs what stands on the lane of collectives with this number."""
        tie = number - sum(bool(form) and not form.units for form in self.structure.forms)
        if 0 <= tie < len(self.structure.ties):
            return peers_of(self.costs.groups_of(self.structure.ties[tie]))
        return self.costs.places(stage).rings

    # ---- messages ---------------------------------------------------------------------------------------------------

    def _message(self, task: int, transfer: int, waits: Ends, *, in_lane: bool = False) -> tuple[Ends, Ends]:
        """Sends of what a task has made, behind what they wait for, and their receives, unless these are tasks of lanes."""
        sends: Ends = {}
        receives: Ends = {}
        seconds = float(self.program.transfer_seconds[transfer])
        (source, target, _), number = self.structure.moves[transfer - 1], int(self.program.microbatch[task])
        letter = "F" if source[0] < target[0] else "B"
        for sender, receiver, said in self._pairs(source, target, float(self.program.transfer_bytes[transfer])):
            name = f"{source[0]}SEND_{letter}{number}"
            made = self._add(sender, name, "COMM_SEND", seconds, waits, task if in_lane else None, said)
            sends[sender] = (*sends.get(sender, ()), made)
            taken = receiver, f"{target[0]}RECV_{letter}{number}", said
            if in_lane and self.receives_block:
                self.sent.setdefault(task, []).append(taken)
            else:
                made = self._add(receiver, taken[1], "COMM_RECV", 0.0, {}, None, said)
                receives[receiver] = (*receives.get(receiver, ()), made)
        return sends, receives

    def _receive(self, task: int, taken: Sequence[tuple[int, str, Said]]) -> Ends:
        """Receives that occupy a lane, of what was sent to it."""
        ends: Ends = {}
        for device, name, said in taken:
            made = self._add(device, name, "COMM_RECV", self._seconds(task), {}, task, said)
            ends[device] = (*ends.get(device, ()), made)
        return ends

    def _pairs(self, source: tuple[int, int], target: tuple[int, int], size: float) -> Iterator[tuple[int, int, Said]]:
        """Sender, receiver and message of each device of the larger of two groups; size: bytes of one of the smaller."""
        senders, receivers = self._devices(*source), self._devices(*target)
        many, few = max(len(senders), len(receivers)), min(len(senders), len(receivers))
        for one in range(many):
            pair = senders[one * len(senders) // many], receivers[one * len(receivers) // many]
            tag = self.tags[pair]
            self.tags[pair] += 1
            ends = {"comm_src": self.ranks[pair[0]], "comm_dst": self.ranks[pair[1]], "comm_tag": tag}
            yield (*pair, {**ends, "comm_size": round(size * few / many)})
