"""Energy: what the devices of a plan draw over an iteration.

Rules. Every device that the plan uses draws its idle power all the time, and what full load adds while it works: a GPU for the
seconds that its computing, forwards that run again and updates take alone; a board for the cycles in which its DSP blocks
multiply, so that an array in which few work draws little: the FLOP that it does over those that it could do at its peak. Devices
that the plan leaves out, hosts and switches draw nothing here. So the joules of a plan follow from its costs and its seconds: no
timeline is read.

Where a device's file says what its arithmetic, its memory or its links draw of what full load adds, these are told apart: memory
draws it while it moves at its full bandwidth what the layers read and write, links while they carry something.

    joules = sum over devices of idle * seconds + (full - idle) * seconds of work

The power of a ZCU102 and a ZCU104 rises with the images per second as this says (QutibenchWeb, c. 2020: 29 W idle, 40.6 W with
ResNet-50 on eight threads): see `pipeplan study fpga-truth`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hardware_profiles import (
    PRECISION_BYTES,
    Accelerator,
    FieldProgrammableGateArray,
    GraphicsProcessor,
    Phase,
    Power,
    Precision,
    Work,
    demand,
    optional_members,
    passes,
    percent,
)
from simulator.costs.plan_costs import PlanCosts
from simulator.costs.stand_ins import stand_ins
from simulator.lowering.fill import fill
from simulator.lowering.program import LaneKind
from simulator.plan_replay import plan_structure
from simulator.plans.plan import Plan, Problem
from simulator.results.time_split import computing_shares
from simulator.schedules.ops import OpKind


@dataclass(frozen=True, slots=True)
class Energy:
    """Energy of one iteration.

    parts: J of all devices in use by part: `idle`, what they would draw if they did nothing; `compute`, `memory` and `link`, each
        only where it is known of every device; `other`, the rest
    seconds: of the iteration; samples: in it
    """

    parts: Mapping[str, float]
    seconds: float
    samples: int

    @property
    def joules(self) -> float:
        """Joules of the iteration."""
        return sum(self.parts.values())

    @property
    def joules_per_sample(self) -> float:
        """Joules of one sample."""
        return self.joules / self.samples

    @property
    def watts(self) -> float:
        """Mean power of all devices in use; 0 for an iteration without time."""
        return self.joules / self.seconds if self.seconds else 0.0

    @property
    def words(self) -> str:
        """Energy of a sample and mean power, in words; of its parts where more are known than idle power."""
        told = f"{self.joules_per_sample:,.4g} J per sample, {self.watts:,.4g} W"
        shares = [
            f"{name} {percent(joules / self.joules, '.0f')}" for name, joules in self.parts.items() if joules > 0.0
        ]
        return f"{told} ({', '.join(shares)})" if len(self.parts) > NAMELESS else told


NAMELESS = 2
"""Parts that every device has: idle, and other."""


def joules_by_part(devices: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Sums over the parts of devices; what is not known of every one of them is `other`."""
    every = list(devices)
    common = [name for name in PARTS if all(name in one for one in every)]
    found = {name: sum(one[name] for one in every) for name in common}
    return {**found, "other": sum(joules for one in every for name, joules in one.items() if name not in common)}


PARTS = "idle", "compute", "memory", "link"
"""Parts of energy that have a name."""


def power_is_known(problem: Problem, plan: Plan) -> bool:
    """Whether every device in use has a `Power`; of one whose layers work at the same time it is known of boards alone."""
    devices = [problem.cluster.devices[one] for group in plan.groups.values() for one in group]
    return all(optional_members(one).power and _is_counted(one) for one in devices)


def _is_counted(device: Accelerator) -> bool:
    return isinstance(device, FieldProgrammableGateArray) or not device.streams


def energy(costs: PlanCosts, seconds: float) -> Energy:
    """The energy of an iteration of a plan on devices whose power is known.

    seconds: of the iteration, of an asynchronous plan in its steady state
    """
    devices, busy = costs.problem.cluster.devices, _busy_seconds(costs)
    work = {device: computing for device, (computing, _) in busy.items()}
    for device, flop in _board_flop(costs).items():
        board = devices[device]
        assert isinstance(board, FieldProgrammableGateArray)  # as its power is known
        work[device] = board.working_seconds(flop, costs.problem.precision)
    powers = {one: power for one in work if (power := told_power(devices[one])) is not None}  # all of them
    wanted = {one for one, power in powers.items() if power.memory is not None}
    moving = _memory_seconds(costs, wanted) if wanted else dict[int, float]()
    drawn = (power.joules(seconds, work[one], moving.get(one, 0.0), busy[one][1]) for one, power in powers.items())
    return Energy(joules_by_part(drawn), seconds, costs.problem.batch)


def told_power(device: Accelerator) -> Power | None:
    """The power of a device; that of its memory only where it is known how much that moves."""
    power = optional_members(device).power
    return power if power is None or _bandwidth(device) else power._replace(memory=None)


def _bandwidth(device: Accelerator) -> float:
    """Bytes/s of a device's memory; 0 of one whose traffic is not known."""
    if isinstance(device, FieldProgrammableGateArray):
        return device.ddr_bandwidth * device.share
    return device.memory_bandwidth if isinstance(device, GraphicsProcessor) else 0.0


def _busy_seconds(costs: PlanCosts) -> dict[int, tuple[float, float]]:
    """Of each device in use the seconds of an iteration that its computing takes alone, and for which its links carry something:
    transfers, exchanges inside ops, and reductions, one after the other.
    """
    plan, standing = costs.plan, stand_ins(costs)
    schedule, structure = plan_structure(costs, stand_ins=standing)
    program = fill(structure, costs, standing)
    shares, lanes = computing_shares(costs, program), program.lane_kind == LaneKind.COMPUTE
    computing = shares.working * shares.computing
    most = int(program.lane_device.max()) + 1
    lane = np.repeat(np.arange(program.lanes), np.diff(program.lane_offsets))
    own = lanes[lane]
    # where lanes divide a device in fixed shares, each of their ops takes as long as the ops of all
    units = np.bincount(program.lane_device[lanes & (program.lane_sharing < 0)], minlength=most)
    both = np.stack([computing, 1.0 - computing]) * program.seconds
    ops = [np.bincount(program.lane_device[lane[own]], weights=one[own], minlength=most) for one in both]
    computed, carried = (one / np.maximum(units, 1) for one in ops)
    crossing = np.flatnonzero(program.transfer)
    ends = np.stack([lane[program.dependency[crossing]], lane[program.consumers()[crossing]]])
    _, first = np.unique(np.stack([program.dependency[crossing], ends[1]]), axis=1, return_index=True)
    for end in ends[:, first]:
        np.add.at(carried, program.lane_device[end], program.transfer_seconds[program.transfer[crossing[first]]])
    reducing = np.flatnonzero(~own & (program.lane_kind[lane] == LaneKind.COLLECTIVE))
    for stage, seconds in zip(program.stage[reducing].tolist(), program.seconds[reducing].tolist(), strict=True):
        carried[[lead for lead in plan.stages[stage].leads if lead < most]] += seconds
    iterations = 1.0 if schedule.flush else schedule.microbatches / len(plan.microbatches)
    groups = plan.groups if standing is None else standing.groups(plan)
    return {
        device: (float(computed[lead]) / iterations, float(carried[lead]) / iterations)
        for lead, group in groups.items()
        for device in group
    }


def _memory_seconds(costs: PlanCosts, wanted: Collection[int]) -> dict[int, float]:
    """Of some devices the seconds in which their memory moves at its full bandwidth what they read and write in an iteration."""
    plan, found, devices = costs.plan, dict.fromkeys(wanted, 0.0), costs.problem.cluster.devices
    split, precision = plan.replication == "split", costs.problem.stored_precision
    for number, stage in enumerate(plan.stages):
        copies = len(stage.replicas)
        own, again = (costs.layers_of(kind, number).tolist() for kind in (OpKind.FORWARD, OpKind.RECOMPUTE))
        ops: tuple[tuple[list[int], Phase], ...] = (own, "forward"), (own, "backward"), (again, "forward")
        for replica, group in enumerate(stage.replicas):
            works = costs.member_costs(number, replica).works
            for size, times in Counter(plan.microbatches).items():
                samples, often = (size / copies, times) if split else (size, times / copies)
                for one in found.keys() & group:
                    moved = (moving_seconds(devices[one], works, *op, samples, precision) for op in ops)
                    found[one] += often * sum(moved)
    return found


def moving_seconds(
    device: Accelerator,
    works: Sequence[Work],
    held: Sequence[int],
    phase: Phase,
    samples: float,
    precision: Precision,
    copies: int | None = None,
) -> float:
    """Seconds in which a device's memory moves at its full bandwidth what some layers of a stage read and write in a pass.

    works: of the network; held: the layers of the stage, of those; copies: of weights on a board, as of its `divided`
    """
    if isinstance(device, FieldProgrammableGateArray):
        mask = np.zeros((1, len(works)), dtype=np.bool_)
        mask[0, held] = True
        moved = float(device.divided(works, mask, precision, copies=copies).moved_bytes(samples, phase)[0])
    else:
        width = PRECISION_BYTES[precision]
        needs = [demand(works[layer], samples, part, width) for part in passes(phase) for layer in held]
        moved = sum(one.traffic + one.scratch * width for one in needs)
    return moved / _bandwidth(device)


def _board_flop(costs: PlanCosts) -> dict[int, float]:
    """FLOP of an iteration on each board in use, whose layers work at the same time; replicas share samples evenly."""
    plan, layers, found = costs.plan, costs.layers, dict[int, float]()
    for number, stage in enumerate(plan.stages):
        own = [layers.works[layer].flop for layer in costs.layers_of(OpKind.FORWARD, number).tolist()]
        again = [layers.works[layer].flop for layer in costs.layers_of(OpKind.RECOMPUTE, number).tolist()]
        flop = (3.0 * sum(own) + sum(again)) * costs.problem.batch / len(stage.replicas)
        for replica in stage.replicas:
            for device in filter(layers.streams, replica):
                found[device] = found.get(device, 0.0) + flop / len(replica)
    return found
