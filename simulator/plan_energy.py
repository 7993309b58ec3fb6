"""Energy: what the devices of a plan draw over an iteration.

Rules. Every device that the plan uses draws its idle power all the time, and what full load adds while it works: a GPU for the
seconds that its computing, forwards that run again and updates take alone; a board for the cycles in which its DSP blocks
multiply, so that an array in which few work draws little: the FLOP that it does over those that it could do at its peak. Devices
that the plan leaves out, hosts and switches draw nothing here. So the joules of a plan follow from its costs and its seconds: no
timeline is read.

    joules = sum over devices of idle * seconds + (full - idle) * seconds of work

The power of a ZCU102 and a ZCU104 rises with the images per second as this says (QutibenchWeb, c. 2020: 29 W idle, 40.6 W with
ResNet-50 on eight threads): see `pipeplan study fpga-truth`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hardware_profiles import Accelerator, FieldProgrammableGateArray, optional_members
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

    joules: of all devices in use; idle_joules: what of it they would draw if they did nothing
    seconds: of the iteration; samples: in it
    """

    joules: float
    idle_joules: float
    seconds: float
    samples: int

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
        """Energy of a sample and mean power, in words."""
        return f"{self.joules_per_sample:,.4g} J per sample, {self.watts:,.4g} W"

    def record(self) -> dict[str, Any]:
        """The figures by name, in base units."""
        return {
            "joules": self.joules,
            "idle_joules": self.idle_joules,
            "joules_per_sample": self.joules_per_sample,
            "watts": self.watts,
            "joule_seconds": self.joules * self.seconds,
        }


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
    devices = costs.problem.cluster.devices
    work = _computing_seconds(costs)
    for device, flop in _board_flop(costs).items():
        board = devices[device]
        assert isinstance(board, FieldProgrammableGateArray)  # as its power is known
        work[device] = board.working_seconds(flop, costs.problem.precision)
    powers = {device: optional_members(devices[device]).power for device in work}
    known = [(watts, work[device]) for device, watts in powers.items() if watts is not None]  # all of them
    joules = sum(watts.joules(seconds, own) for watts, own in known)
    idle = sum(watts.joules(seconds, 0.0) for watts, _ in known)
    return Energy(joules, idle, seconds, costs.problem.batch)


def _computing_seconds(costs: PlanCosts) -> dict[int, float]:
    """Seconds of an iteration that the computing of each device in use takes alone."""
    plan, standing = costs.plan, stand_ins(costs)
    schedule, structure = plan_structure(costs, stand_ins=standing)
    program = fill(structure, costs, standing)
    shares = computing_shares(costs, program)
    tasks = program.seconds * shares.working * shares.computing
    own = program.lane_kind == LaneKind.COMPUTE
    of_lanes = np.add.reduceat(np.append(tasks, 0.0), program.lane_offsets[:-1]) * (np.diff(program.lane_offsets) > 0)
    computed, devices = of_lanes[own], program.lane_device[own]
    # where lanes divide a device in fixed shares, each of their ops takes as long as the ops of all
    apart = np.bincount(devices[program.lane_sharing[own] < 0], minlength=devices.max() + 1)
    of_devices = np.bincount(devices, weights=computed) / np.maximum(apart, 1)
    iterations = 1.0 if schedule.flush else schedule.microbatches / len(plan.microbatches)
    groups = plan.groups if standing is None else standing.groups(plan)
    return {device: float(of_devices[lead]) / iterations for lead, group in groups.items() for device in group}


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
