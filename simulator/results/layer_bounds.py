"""Layer bounds: a roofline of every layer of a plan: whether FLOP, memory bandwidth, launches or links bound its seconds.

What a layer is bound by is that whose being free would save most of its seconds, in the replica's micro-batch, forward and
backward together; on a board one layer after the other, with weights on the chip where those of its stage stay there. Of a link
it is bound where the collectives of its tensor, context and expert groups take most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hardware_profiles import (
    Accelerator,
    FieldProgrammableGateArray,
    Floats,
    Phase,
    brief,
    cluster_of_one,
    freed,
    passes,
    percent,
)
from simulator.costs.layer_costs import LayerCosts
from simulator.costs.plan_costs import PlanCosts
from simulator.plans.plan import Plan, Problem
from simulator.results.text_tables import Explained, TextTable
from simulator.workloads.shares import Parallelism

BOUNDS = ("FLOP", "bandwidth", "launch", "link")
"""What a layer may be bound by."""

LEAST_TOLD = 0.01
"""Share of the seconds from which a sentence names what they are bound by."""

OTHERWISE = "measured"
"""What a layer is bound by of which nothing is known: one of a measured profile, or on a device with physics of its own."""

_PHASES: tuple[Phase, ...] = ("forward", "backward")


@dataclass(frozen=True, slots=True)
class LayerBound:
    """A layer of a stage.

    seconds: of a forward and a backward of a replica's micro-batch; of the slowest device, link included
    saves: seconds that each of BOUNDS would save, were it free
    """

    stage: int
    layer: str
    kind: str
    seconds: float
    saves: tuple[float, ...]

    @property
    def bound(self) -> str:
        """What it is bound by."""
        most = max(self.saves, default=0.0)
        return BOUNDS[self.saves.index(most)] if most > 0.0 else OTHERWISE


@dataclass(frozen=True, slots=True, eq=False)
class LayerBounds(Explained):
    """What all layers of a plan are bound by; layers that take no time are left out."""

    layers: tuple[LayerBound, ...]

    def __repr__(self) -> str:
        return brief(self, self.words)

    def shares(self, stage: int | None = None) -> dict[str, float]:
        """The share of seconds in layers that are bound by each, the largest first; of one stage, or all."""
        own = [one for one in self.layers if stage in (None, one.stage)]
        whole = sum(one.seconds for one in own)
        found: dict[str, float] = {}
        for one in own:
            found[one.bound] = found.get(one.bound, 0.0) + one.seconds / whole
        return dict(sorted(found.items(), key=lambda pair: -pair[1]))

    @property
    def words(self) -> str:
        """What bounds the largest shares, as part of a sentence; empty where nothing is known."""
        told = [(name, share) for name, share in self.shares().items() if name != OTHERWISE and share >= LEAST_TOLD]
        return "bound by " + ", ".join(f"{name} for {percent(share, '.0f')}" for name, share in told) if told else ""

    def record(self) -> dict[str, Any]:
        """The figures by name."""
        return {
            "shares": self.shares(),
            "stages": [
                {"stage": stage, "seconds": self._seconds(stage), "shares": self.shares(stage)}
                for stage in self._stages
            ],
            "layers": [
                {
                    "stage": one.stage,
                    "layer": one.layer,
                    "kind": one.kind,
                    "bound": one.bound,
                    "seconds": one.seconds,
                    "saves": dict(zip(BOUNDS, one.saves, strict=True)),
                }
                for one in self.layers
            ],
        }

    @property
    def _stages(self) -> list[int]:
        return sorted({one.stage for one in self.layers})

    def _seconds(self, stage: int) -> float:
        return sum(one.seconds for one in self.layers if one.stage == stage)

    def tables(self) -> tuple[TextTable, ...]:
        """Seconds by stage and bound, and by kind of layer and bound."""
        named = [name for name in (*BOUNDS, OTHERWISE) if name in self.shares()]
        rows = []
        for stage in self._stages:
            shares = self.shares(stage)
            cells = (f"{100 * shares.get(name, 0.0):.1f}" for name in named)
            rows.append((str(stage), f"{1e3 * self._seconds(stage):.4g}", *cells))
        columns = ("stage", "ms per\nmicro-batch", *(f"bound by\n{name}, %" for name in named))
        kinds: dict[tuple[str, str], list[float]] = {}
        for one in self.layers:
            kinds.setdefault((one.kind, one.bound), []).append(one.seconds)
        whole = sum(one.seconds for one in self.layers)
        by_kind = tuple(
            (kind, bound, str(len(own)), f"{1e3 * sum(own):.4g}", f"{100 * sum(own) / whole:.1f}")
            for (kind, bound), own in sorted(kinds.items(), key=lambda pair: -sum(pair[1]))
        )
        found = (
            TextTable("Roofline: seconds of a micro-batch in layers, by stage", columns, tuple(rows)),
            TextTable("By kind of layer", ("layers", "bound by", "number", "ms", "%"), by_kind),
        )
        return found if self.layers else ()

    def remarks(self) -> tuple[str, ...]:
        """What the seconds in layers are bound by, in a line."""
        return (f"the seconds in layers are {self.words}",) if self.words else ()


def layer_bounds(problem: Problem, plan: Plan) -> LayerBounds:
    """What each layer of a plan is bound by, on the first replica of its stage."""
    costs, found = PlanCosts(problem, plan), list[LayerBound]()
    problem, plan = costs.problem, costs.plan
    split = plan.replication == "split"
    known: dict[tuple[Accelerator, Parallelism, int, tuple[int, ...]], tuple[Floats, list[Floats]]] = {}
    for number, stage in enumerate(plan.stages):
        group, lead = costs.group(number, 0), costs.device(number, 0)
        samples = max(1, max(plan.microbatches) // (len(stage.leads) if split else 1))
        device = problem.cluster.devices[lead]
        key = device, group.parallel, samples, stage.layers if isinstance(device, FieldProgrammableGateArray) else ()
        if key not in known:
            known[key] = _of_device(problem, *key)
        seconds, saves = known[key]
        layers = costs.layers.at(group.parallel, group.rates) if any(group.rates) else None
        link = (
            np.zeros(len(seconds))
            if layers is None
            else _both(layers, lead, samples) - _both(layers.computing, lead, samples)
        )
        for layer in stage.layers:
            whole = float(seconds[layer] + link[layer])
            if whole > 0.0:
                one = problem.workload.layers[layer]
                saved = (*(float(of[layer]) for of in saves), float(link[layer]))
                found.append(LayerBound(number, one.name, one.part or one.kind, whole, saved))
    return LayerBounds(tuple(found))


def _of_device(
    problem: Problem, device: Accelerator, parallel: Parallelism, samples: int, stage: tuple[int, ...]
) -> tuple[Floats, list[Floats]]:
    """Seconds of every layer on a device, and what they would be less, were each of BOUNDS but links free; stage: layers of a
    board's stage, whose others count as if they were in it, too.
    """

    def of(one: Accelerator) -> Floats:
        layers = LayerCosts(replace(problem, cluster=cluster_of_one(one))).at(parallel)
        if isinstance(one, FieldProgrammableGateArray) and layers.streams(0):
            return _on_board(one, layers, samples, stage)
        return _both(layers, 0, samples)

    seconds, variants = of(device), freed(device)
    nothing = np.zeros(len(seconds))
    saves = [np.maximum(seconds - of(variants[name]), 0.0) if name in variants else nothing for name in BOUNDS[:-1]]
    return seconds, saves


def _on_board(board: FieldProgrammableGateArray, layers: LayerCosts, samples: int, stage: tuple[int, ...]) -> Floats:
    """Seconds of a forward and a backward of every layer on a board with this stage."""
    held = np.zeros((1, len(layers.works)), dtype=np.bool_)
    held[0, list(stage)] = True
    divided = board.divided(layers.works, held, layers.problem.precision)
    parts = [part for phase in _PHASES for part in passes(phase)]
    seconds: Floats = np.sum([divided.layer_seconds(samples, part)[0] for part in parts], axis=0)
    return seconds


def _both(layers: LayerCosts, device: int, samples: int) -> Floats:
    """Seconds of a forward and a backward of every layer."""
    forward, backward = (layers.seconds(device, samples, phase) for phase in _PHASES)
    return forward + backward
