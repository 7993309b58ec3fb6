"""Energy: what the devices of a plan draw over an iteration.

Rules. Every device that the plan uses draws its idle power all the time, and what full load adds while it works: a GPU for the
seconds in which it computes, runs forwards again and updates, as the time split tells them; a board for the cycles in which its
DSP blocks multiply, so that an array in which few work draws little: the FLOP that it does over those that it could do at its
peak. Devices that the plan leaves out, hosts and switches draw nothing here.

    joules = sum over devices of idle * seconds + (full - idle) * seconds of work

The power of a ZCU102 and a ZCU104 rises with the images per second as this says (QutibenchWeb, c. 2020: 29 W idle, 40.6 W with
ResNet-50 on eight threads): see `pipeplan study fpga-truth`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hardware_profiles import Accelerator, FieldProgrammableGateArray, optional_members
from simulator.costs.plan_costs import PlanCosts
from simulator.plans.plan import Plan, Problem
from simulator.results.time_split import TIME_PARTS, TimeSplit
from simulator.schedules.ops import OpKind

WORKING = ("computation", "recomputation", "optimizer")
"""Time parts in which a device that runs one layer after the other is at full load."""


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


def energy(costs: PlanCosts, split: TimeSplit, seconds: float) -> Energy:
    """The energy of an iteration of so many seconds, whose split is given, on devices whose power is known."""
    devices, groups = costs.problem.cluster.devices, costs.plan.groups
    power = {one: optional_members(devices[one]).power for group in groups.values() for one in group}
    working = split.seconds[:, [TIME_PARTS.index(part) for part in WORKING]].sum(axis=1).tolist()
    of_group = dict(zip(split.devices.tolist(), working, strict=True))
    work = {device: own for first, own in of_group.items() for device in groups[first]}
    for device, flop in _board_flop(costs).items():
        board = devices[device]
        assert isinstance(board, FieldProgrammableGateArray)  # as its power is known
        work[device] = board.working_seconds(flop, costs.problem.precision)
    known = [(watts, work[device]) for device, watts in power.items() if watts is not None]  # all of them
    joules = sum(watts.joules(seconds, own) for watts, own in known)
    idle = sum(watts.joules(seconds, 0.0) for watts, _ in known)
    return Energy(joules, idle, seconds, costs.problem.batch)


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
