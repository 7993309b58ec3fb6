"""Forward pipeline: a trained network in stages on a row of devices, for inference: samples per second and latency.

Samples come in groups, one after the other, and pass the stages forward; nothing returns. A stage computes a group, then sends it
while it computes the next one, so that groups leave the pipeline every T seconds, T being the slowest stage or the slowest
transfer, and each takes the sum of all stages and transfers. Transfers that share a link are as fast as alone. Devices are taken
in their order; one that no stage needs is left out.

T is found by bisection: for a given T every stage takes as many layers as it can in that time, up to the last place whose
transfer takes no longer, which is the fewest stages if no more layers take less time.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from hardware_profiles import FieldProgrammableGateArray, brief, counted
from simulator import (
    Energy,
    Explained,
    InfeasiblePlanError,
    LayerCosts,
    Problem,
    TextTable,
    joules_by_part,
    moving_seconds,
    told_power,
)

CLOSE_ENOUGH = 1e-6
"""Relative width of the interval at which the bisection stops."""


@dataclass(frozen=True, slots=True)
class ForwardStage:
    """A stage of a forward pipeline.

    device, accelerator: its device and that one's name; first, last: its layers; seconds: of a group of samples
    send_seconds: to send a group on; sent_bytes: of a group; 0 for the last stage
    """

    device: int
    accelerator: str
    first: int
    last: int
    seconds: float
    send_seconds: float
    sent_bytes: float


@dataclass(frozen=True, slots=True, eq=False)
class ForwardPipeline(Explained):
    """A network in stages for inference; the samples of a group are `problem.batch`."""

    problem: Problem
    stages: tuple[ForwardStage, ...]

    def __repr__(self) -> str:
        return brief(self, self.words)

    @property
    def interval_seconds(self) -> float:
        """Seconds between groups that leave the pipeline."""
        return max(max(one.seconds, one.send_seconds) for one in self.stages)

    @property
    def latency_seconds(self) -> float:
        """Seconds from when a group enters until it has left."""
        return sum(one.seconds + one.send_seconds for one in self.stages)

    @property
    def samples_per_second(self) -> float:
        """Samples per second that leave the pipeline; infinite if it takes no time."""
        return self.problem.batch / self.interval_seconds if self.interval_seconds else float("inf")

    @property
    def energy(self) -> Energy | None:
        """Energy of a group, by the rules of `simulator.plan_energy`; None where the power of a device is not known."""
        costs, drawn, arriving = LayerCosts(self.problem), list[dict[str, float]](), 0.0
        batch, precision = self.problem.batch, self.problem.precision
        for stage in self.stages:
            device, working = self.problem.cluster.devices[stage.device], stage.seconds
            power, held = told_power(device), range(stage.first, stage.last + 1)
            if costs.streams(stage.device):
                if not isinstance(device, FieldProgrammableGateArray):
                    return None
                working = device.working_seconds(sum(costs.works[one].flop for one in held) * batch, precision)
            if power is None:
                return None
            moving = 0.0
            if power.memory is not None:
                moving = moving_seconds(device, costs.works, held, "forward", batch, precision, copies=1)
            drawn.append(power.joules(self.interval_seconds, working, moving, arriving + stage.send_seconds))
            arriving = stage.send_seconds
        return Energy(joules_by_part(drawn), self.interval_seconds, batch)

    @property
    def words(self) -> str:
        """Samples per second, latency and energy, in a line."""
        sample, devices = self.problem.workload.sample, counted(len(self.stages), self.problem.device_word)
        drawn = "" if self.energy is None else f", {self.energy.words}"
        return (
            f"{self.samples_per_second:,.4g} {sample}s/s on {devices}, latency {1e3 * self.latency_seconds:.4g} ms "
            f"({counted(self.problem.batch, sample)} at a time){drawn}"
        )

    def tables(self) -> tuple[TextTable, ...]:
        """A table with a row per stage."""
        layers, word = self.problem.workload.layers, self.problem.device_word
        rows = tuple(
            (
                str(number),
                f"{one.device} ({one.accelerator})",
                f"{layers[one.first].name} to {layers[one.last].name}",
                f"{1e3 * one.seconds:.4g}",
                f"{1e3 * one.send_seconds:.4g}" if one.sent_bytes else "",
                f"{one.sent_bytes / 1e6:.4g}" if one.sent_bytes else "",
            )
            for number, one in enumerate(self.stages)
        )
        title = f"{self.problem.workload.name} forward on {self.problem.cluster.name}, {self.problem.precision}"
        return (TextTable(title, ("stage", word, "layers", "ms", "ms to\nsend", "MB\nsent"), rows),)

    def remarks(self) -> tuple[str, ...]:
        """Lines for a report: what the pipeline reaches, and which stage or transfer sets the pace."""
        slowest = max(range(len(self.stages)), key=lambda one: self.stages[one].seconds)
        sending = self.stages[slowest].seconds < self.interval_seconds
        return self.words, f"the pace is set by {'a transfer' if sending else f'stage {slowest}'}"

    def record(self) -> dict[str, Any]:
        """The figures by name, in base units (seconds, bytes, joules)."""
        energy = self.energy
        return {
            "workload": self.problem.workload.name,
            "cluster": self.problem.cluster.name,
            "precision": self.problem.precision,
            "samples": self.problem.batch,
            "interval_seconds": self.interval_seconds,
            "latency_seconds": self.latency_seconds,
            "samples_per_second": self.samples_per_second,
            "joules_per_sample": energy and energy.joules_per_sample,
            "watts": energy and energy.watts,
            "joules_by_part": energy and dict(energy.parts),
            "stages": [asdict(one) for one in self.stages],
        }


def forward_pipeline(problem: Problem) -> ForwardPipeline:
    """The pipeline of a problem's network with the least seconds between groups of `problem.batch` samples.

    Raises InfeasiblePlanError where the weights and the features of a group do not fit on the devices.
    """
    return _ForwardSearch(problem).found()


class _ForwardSearch:
    """The search for the least interval; the seconds of stages are kept."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.costs = problem, LayerCosts(problem)
        self.devices, self.layers = problem.cluster.devices, len(problem.workload)
        self._known: dict[tuple[int, int, int], float] = {}
        width = problem.element_bytes
        works = self.costs.works
        self._weights = np.concatenate([[0.0], np.cumsum([one.parameters * width for one in works])])
        self._features = [(one.input_elements + one.output_elements) * width * problem.batch for one in works]

    def found(self) -> ForwardPipeline:
        """The pipeline with the least interval, by bisection between 0 and an interval that any stage and transfer meets."""
        low, high = 0.0, self._longest()
        ends = self._within(high)
        if ends is None:
            word = self.problem.device_word
            raise InfeasiblePlanError(
                f"{self.problem.workload.name}: weights and features of {self.problem.batch} samples do not fit into the memory "
                f"of {counted(len(self.devices), word)}"
            )
        while high - low > CLOSE_ENOUGH * high:
            middle = (low + high) / 2.0
            shorter = self._within(middle)
            if shorter is None:
                low = middle
            else:
                ends, high = shorter, min(middle, self._made(shorter).interval_seconds)
        return self._made(ends)

    def _longest(self) -> float:
        """Upper bound on the seconds of any stage and any transfer."""
        stages = max(self._seconds(device, 0, self.layers) for device in range(len(self.devices)))
        pairs, cuts = range(len(self.devices) - 1), range(1, self.layers)
        return stages + max((self._send_seconds(one, one + 1, cut) for one in pairs for cut in cuts), default=0.0)

    def _within(self, seconds: float) -> list[int] | None:
        """Ends of stages of which none, nor its transfer, takes longer than `seconds`; None where the devices are too few."""
        ends, begin = list[int](), 0
        for device in range(len(self.devices)):
            end = self._furthest(device, begin, seconds)
            ends.append(end)
            begin = end
            if end == self.layers:
                return ends
        return None

    def _furthest(self, device: int, begin: int, seconds: float) -> int:
        """The furthest end of a stage that begins at `begin` on a device, within `seconds` and memory; `begin` where it can hold
        no layer.
        """
        low, high = begin, self.layers
        while low < high:
            middle = (low + high + 1) // 2
            if self._fits(device, begin, middle) and self._seconds(device, begin, middle) <= seconds:
                low = middle
            else:
                high = middle - 1
        if low == self.layers or device + 1 == len(self.devices):
            return low
        places = range(low, begin, -1)
        return next((cut for cut in places if self._send_seconds(device, device + 1, cut) <= seconds), begin)

    def _fits(self, device: int, begin: int, end: int) -> bool:
        """Whether layers begin to end - 1 fit on a device: their weights, and the largest layer's features."""
        needed = self._weights[end] - self._weights[begin] + max(self._features[begin:end], default=0.0)
        return bool(needed <= self.devices[device].memory_bytes)

    def _seconds(self, device: int, begin: int, end: int) -> float:
        """Seconds of a group in a stage of layers begin to end - 1."""
        key = self.costs.kind_of_device(device), begin, end
        if key not in self._known:
            self._known[key] = self._stage_seconds(device, begin, end)
        return self._known[key]

    def _stage_seconds(self, device: int, begin: int, end: int) -> float:
        """Seconds of a group in a stage of layers begin to end - 1, without a look at those known."""
        accelerator, samples = self.devices[device], self.problem.batch
        if isinstance(accelerator, FieldProgrammableGateArray) and self.costs.streams(device):
            works = self.costs.works[begin:end]
            held = np.ones((1, len(works)), dtype=np.bool_)
            divided = accelerator.divided(works, held, self.problem.precision, copies=1)
            return float(divided.seconds(samples, "forward")[0])
        return self.costs.stage_seconds(device, np.arange(begin, end), samples, "forward")

    def _send_seconds(self, device: int, target: int, cut: int) -> float:
        """Seconds of a transfer of a group between two devices, at a cut."""
        return self.problem.cluster.transfer_seconds(device, target, self._sent_bytes(cut))

    def _sent_bytes(self, cut: int) -> float:
        """Bytes of a group that cross a cut."""
        return float(self.costs.cut_bytes[cut]) * self.problem.batch

    def _made(self, ends: list[int]) -> ForwardPipeline:
        """The pipeline whose stages have these ends, on the devices that have layers."""
        used = [(device, *own) for device, own in enumerate(pairwise([0, *ends])) if own[1] > own[0]]
        stages = []
        for number, (device, begin, end) in enumerate(used):
            sent = send = 0.0
            if number + 1 < len(used):
                sent, send = self._sent_bytes(end), self._send_seconds(device, used[number + 1][0], end)
            seconds = self._seconds(device, begin, end)
            stages.append(ForwardStage(device, self.devices[device].name, begin, end - 1, seconds, send, sent))
        return ForwardPipeline(self.problem, tuple(stages))
