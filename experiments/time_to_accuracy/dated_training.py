"""Dated training: cases, the clocks of their updates on a cluster, and when they reach a target."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.terminal.output import UsageError
from experiments.training.clocks import ClusterClock, MethodCase
from experiments.training.method_throughput import BATCH, DEVICES, balanced_stages, cluster_problem, data_parallel_plan
from experiments.training.seed_grid import CaseResult, TrainingSetting, rule_with
from hardware_profiles import Floats
from simulator import LayerCosts, Plan, equal_microbatches, simulate

OTHER_CLUSTERS = ("dapple-c", "dgx-a100:1")
"""Clusters that the same trainings are dated on beside the chosen one: 10 Gb/s between V100, and NVSwitch between A100."""

EVALUATE_EVERY = 11
"""Updates between evaluations on the test samples: a quarter of an epoch of the digits."""

WARMUP = 110
"""Synchronous mini-batches of PipeMare's warm-up (T3): a quarter of 10 epochs."""

DATA_PARALLEL = "data parallel"

CASES = (
    MethodCase(DATA_PARALLEL, "synchronous", 1),
    MethodCase("GPipe T=4", "synchronous", 4, flushed="gpipe"),
    MethodCase("GPipe T=8", "synchronous", 8, flushed="gpipe"),
    MethodCase("1F1B T=8", "synchronous", 8, flushed="1f1b"),
    MethodCase("PipeDream T=1", "pipedream", 1),
    MethodCase("2BW T=8", "2bw", 8),
    MethodCase("SpecTrain v2 T=1", "spectrain-v2", 1),
    MethodCase("PipeOptim T=1", "pipeoptim", 1),
    MethodCase("PipeOptim T=4", "pipeoptim", 4),
    MethodCase("PipeMare T=1", "pipemare", 1),
    MethodCase("PipeMare T=4, warm-up", "pipemare", 4, rule_with("pipemare", warmup_updates=WARMUP), warmup=WARMUP),
    MethodCase("XPipe T=1", "xpipe", 1),
    MethodCase("XPipe T=2", "xpipe", 2),
    MethodCase("XPipe T=4", "xpipe", 4),
    MethodCase("XPipe T=8", "xpipe", 8),
)  # fmt: skip


class MachineClock:
    """Seconds and memory of the methods for one workload on one cluster.

    Made once a cluster: partitions the workload; then dates orders of updates, and tells what fits.
    """

    def __init__(self, cluster: str, workload: str) -> None:
        self.problem = cluster_problem(DEVICES, workload, cluster)
        self.stages = balanced_stages(self.problem)
        if len(self.stages) != DEVICES:
            raise UsageError(f"--workload {workload}: {len(self.stages)} stages, {DEVICES} are needed")
        self.clock = ClusterClock(self.problem, self.stages, LayerCosts(self.problem))

    def update_seconds(self, case: MethodCase, setting: TrainingSetting, minibatches: int) -> Floats:
        """When each update was done, float64 [minibatches]."""
        if case.label == DATA_PARALLEL:
            seconds = simulate(self.problem, data_parallel_plan(self.problem)).iteration_seconds
            return np.arange(1, minibatches + 1, dtype=np.float64) * seconds
        found = setting.order(case, self.clock, minibatches)
        return np.maximum.accumulate(found.order.update_seconds)

    def memory(self, case: MethodCase) -> dict[str, Any]:
        """Peak bytes of the fullest device, and whether it fits; of the asynchronous part where there is a warm-up."""
        plan = data_parallel_plan(self.problem)
        if case.label != DATA_PARALLEL:
            schedule = case.flushed if case.method == "synchronous" else case.method
            plan = Plan("clock", schedule, self.stages, equal_microbatches(BATCH, case.per_minibatch))
        outcome = simulate(self.problem, plan, engine="recurrence", layer_costs=self.clock.layer_costs)
        return {"peak_memory_bytes": outcome.fullest.peak_bytes, "fits": outcome.fits}


def target_record(result: CaseResult, seconds: Floats, target: float, updates_per_epoch: int) -> dict[str, Any]:
    """Epochs and seconds until the test accuracy is first at the target: median over the seeds that reach it, and how many do."""
    reached = [
        int(run.evaluated_updates[np.argmax(run.evaluated_accuracy >= target)])
        for run in result.runs
        if (run.evaluated_accuracy >= target).any()
    ]
    record = result.record()
    return {
        **{key: value for key, value in record.items() if key not in ("train_losses", "test_accuracies")},
        "seconds_per_minibatch": float(seconds[-1] / len(seconds)),
        "seeds_at_target": len(reached),
        "epochs_to_target": float(np.median(reached)) / updates_per_epoch if reached else None,
        "seconds_to_target": float(np.median(seconds[np.array(reached) - 1])) if reached else None,
    }
