"""Prediction rule: which weights the forward and the backward of a micro-batch use in an asynchronous pipeline.

A rule is a frozen dataclass without state; what it must remember between calls (predicted copies, averages) it
keeps in the stage's `buffers`, so that copies can be counted. Symbols: stage k of N (0-based), T micro-batches per
mini-batch, s predicted steps, lr learning rate, W weights. Sources per rule; the family is compared in
XPipe (arXiv 1911.04610) and PipeOptim; version differences of the schedule are derived from its replay.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from experiments.training.optimizers import Array
from experiments.training.stage import Position, TrainedStage, predicted_weights

Rounding = Literal["round", "half-even", "floor", "ceil"]

ROUNDINGS: dict[str, Callable[[float], int]] = {
    "round": lambda value: math.floor(value + 0.5),
    "half-even": round,
    "floor": math.floor,
    "ceil": math.ceil,
}
"""How a formula's fractional number of steps becomes whole; `round` takes halves up.

Halves are common: (T + N - k/2 - 2) / T is one for every odd k at T = 1, and for k = 0 at N = 8, T = 4.
"""


@dataclass(frozen=True, slots=True)
class PredictionRule:
    """The weights of a forward and of a backward; called once per op, in the order of the replay.

    As it stands here: the present weights, nothing held, any N and T, the schedule's learning rate.

    stashes: whether the weights of a forward are held until its backward, which uses them
    holds_versions: whether the versions that micro-batches entered the pipeline with are held
    for_replicas: whether it uses a replica's own versions only, and so holds where replicas of a stage take
        mini-batches in turn
    """

    stashes: ClassVar[bool] = False
    holds_versions: ClassVar[bool] = False
    for_replicas: ClassVar[bool] = False

    def check(self, stages: int, microbatches: int) -> None:
        """ValueError if the rule is not defined for N `stages` and T `microbatches`."""
        return

    def forward(self, stage: TrainedStage, microbatch: int) -> Array:
        """Weights for the forward of `microbatch`."""
        return stage.weights

    def backward(self, stage: TrainedStage, microbatch: int) -> Array:
        """Weights for the backward of `microbatch` (its input gradient)."""
        return stage.used[microbatch] if self.stashes else stage.weights

    def updated(self, stage: TrainedStage, previous: Array) -> None:
        """Called after every update, with the weights before it."""
        return

    def learning_rate_factor(self, position: Position, update: int) -> float:
        """Factor on the learning rate of update `update` (0-based)."""
        return 1.0


@dataclass(frozen=True, slots=True)
class Naive(PredictionRule):
    """Naive pipelining: the weights present at forward and at backward; no gradient of any one weight vector."""

    for_replicas: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Synchronous(PredictionRule):
    """GPipe, 1F1B with flush, data parallelism: ValueError if the order shows any other than the synchronous version."""

    def forward(self, stage: TrainedStage, microbatch: int) -> Array:
        """The present weights, which must be those after every earlier mini-batch."""
        missing = stage.missing_updates(microbatch)
        if missing:
            raise ValueError(
                f"synchronous training needs an order that flushes after every mini-batch: stage {stage.position.stage} "
                f"starts micro-batch {microbatch} after {stage.version} updates, not {stage.version + missing}"
            )
        return stage.weights


@dataclass(frozen=True, slots=True)
class Stashing(PredictionRule):
    """PipeDream's weight stashing: the backward uses what its forward used (SOSP'19, section 3.3)."""

    stashes: ClassVar[bool] = True
    for_replicas: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class VerticalSync(PredictionRule):
    """PipeDream's vertical sync: every stage uses the version that the input stage had at the forward.

    whole_minibatches: PipeDream-2BW: a mini-batch uses throughout the version that the input stage had at its first
        forward, m-2 (1-based) where N > 1; needs T >= N, or two copies would not be enough
    """

    whole_minibatches: bool = False
    stashes: ClassVar[bool] = True
    holds_versions: ClassVar[bool] = True

    def check(self, stages: int, microbatches: int) -> None:
        """ValueError for whole mini-batches with T < N."""
        if self.whole_minibatches and microbatches < stages:
            raise ValueError(
                f"2bw needs at least as many micro-batches per mini-batch as stages, got T={microbatches}, N={stages}"
            )

    def forward(self, stage: TrainedStage, microbatch: int) -> Array:
        """The input stage's version at this micro-batch, or at the first of its mini-batch."""
        if self.whole_minibatches:
            microbatch -= microbatch % stage.position.microbatches
        return stage.weights_of(stage.entry_versions[microbatch])


@dataclass(frozen=True, slots=True)
class SpecTrainOne(PredictionRule):
    """SpecTrain v1: both passes aim at the version of the round trip's end on stage 0; v_(t-1) is the smoothed gradient.

    Forward s = floor(k/2) + N-k-1, backward s = floor(k/2), both from the present weights.
    """

    def forward(self, stage: TrainedStage, microbatch: int) -> Array:
        """Predicted by floor(k/2) + N-k-1 steps."""
        k = stage.position.stage
        return self._predicted(stage, k // 2 + stage.position.stages - k - 1)

    def backward(self, stage: TrainedStage, microbatch: int) -> Array:
        """Predicted by floor(k/2) steps."""
        return self._predicted(stage, stage.position.stage // 2)

    def _predicted(self, stage: TrainedStage, steps: int) -> Array:
        stage.buffers["predicted"] = predicted = stage.predict(steps, "momentum")
        return predicted


@dataclass(frozen=True, slots=True)
class SpecTrainTwo(PredictionRule):
    """SpecTrain v2: the forward predicts the synchronous version, the backward reuses that prediction.

    s is the version difference that the replay shows, which is the published N-k-1 on a straight pipeline at T = 1.
    """

    stashes: ClassVar[bool] = True

    def forward(self, stage: TrainedStage, microbatch: int) -> Array:
        """Predicted to the synchronous version."""
        return stage.predict(stage.missing_updates(microbatch), "momentum")


@dataclass(frozen=True, slots=True)
class XPipe(PredictionRule):
    """XPipe: the bellwether (first micro-batch of a mini-batch) predicts, at forward and at backward; the rest reuse.

    steps: `paper` for the printed formulas, `exact` for the synchronous version; 0 for a pipeline of one stage, where no
        version difference exists (the printed formulas, made for pipelines, would ask for one step when T > 1)
    forward_rounding, backward_rounding: of the printed formulas' fractions: round, half-even, floor or ceil
    correction: bias correction of the predicted Adam step: `adam` (1 - beta^t) or `literal` (1 - beta)
    ValueError: an unknown choice.
    """

    steps: Literal["paper", "exact"] = "paper"
    forward_rounding: Rounding = "round"
    backward_rounding: Rounding = "floor"
    correction: Literal["adam", "literal"] = "adam"

    def __post_init__(self) -> None:
        for what, value, choices in (
            ("steps", self.steps, ("paper", "exact")),
            ("forward rounding", self.forward_rounding, tuple(ROUNDINGS)),
            ("backward rounding", self.backward_rounding, tuple(ROUNDINGS)),
            ("bias correction", self.correction, ("adam", "literal")),
        ):
            if value not in choices:
                raise ValueError(f"XPipe's {what} must be one of {', '.join(choices)}, got {value!r}")

    def forward_steps(self, position: Position) -> int:
        """Steps that the bellwether's forward predicts: (T + N - k/2 - 2) / T rounded; exact: ceil((N-1-k)/T)."""
        n, k, t = position.stages, position.stage, position.microbatches
        if self.steps == "exact":
            return math.ceil((n - 1 - k) / t)
        return 0 if n == 1 else ROUNDINGS[self.forward_rounding]((t + n - k / 2 - 2) / t)

    def backward_steps(self, position: Position) -> int:
        """Steps that the bellwether's backward predicts: (T + floor(k/2) - 1) / T rounded; exact: 0."""
        n, k, t = position.stages, position.stage, position.microbatches
        return 0 if n == 1 or self.steps == "exact" else ROUNDINGS[self.backward_rounding]((t + k // 2 - 1) / t)

    def forward(self, stage: TrainedStage, microbatch: int) -> Array:
        """The mini-batch's forward prediction, made by its bellwether."""
        return self._prediction(stage, microbatch, "forward", self.forward_steps(stage.position))

    def backward(self, stage: TrainedStage, microbatch: int) -> Array:
        """The mini-batch's backward prediction, made by its bellwether."""
        return self._prediction(stage, microbatch, "backward", self.backward_steps(stage.position))

    def _prediction(self, stage: TrainedStage, microbatch: int, buffer: str, steps: int) -> Array:
        if microbatch % stage.position.microbatches == 0:
            stage.buffers[buffer] = stage.predict(steps, "step" if self.correction == "adam" else "literal-step")
        return stage.buffers[buffer]


@dataclass(frozen=True, slots=True)
class PipeOptim(PredictionRule):
    """PipeOptim: every forward predicts along the optimizer's own step, the backward uses the present weights.

    s is the version difference that the replay shows, which is the published N-1-k on a straight pipeline at T = 1.
    """

    def forward(self, stage: TrainedStage, microbatch: int) -> Array:
        """Predicted to the synchronous version."""
        stage.buffers["predicted"] = predicted = stage.predict(stage.missing_updates(microbatch), "step")
        return predicted


@dataclass(frozen=True, slots=True)
class PipeMare(PredictionRule):
    """PipeMare (arXiv 1910.05124): stale forward, corrected backward, a smaller learning rate while delays matter.

    With tau = tau_f - tau_b the stage's mean delay in updates, (N-1-k)/T:
    T1: lr / max(1, tau)^p with p = 1 - min(u / anneal_updates, 1) at update u after the warm-up
    T2: backward weights W - tau * delta, delta an exponential moving average of the weights' change with decay
        D^(1/tau), D = exp(-2): an estimate of what the forward used
    T3: `warmup_updates` first updates without T1 and T2, for an order that starts with synchronous mini-batches
        (`experiments.training.joined`)
    ValueError: anneal_updates < 1, or a negative warm-up.
    """

    anneal_updates: int = 110
    warmup_updates: int = 0

    def __post_init__(self) -> None:
        if self.anneal_updates < 1 or self.warmup_updates < 0:
            raise ValueError(
                f"PipeMare needs anneal_updates >= 1 and warmup_updates >= 0, got {self.anneal_updates} and "
                f"{self.warmup_updates}"
            )

    def backward(self, stage: TrainedStage, microbatch: int) -> Array:
        """The present weights moved back to where the forward was (T2)."""
        delta = stage.buffers.get("delta")
        in_warmup = microbatch // stage.position.microbatches < self.warmup_updates
        if delta is None or in_warmup:
            return stage.weights
        return predicted_weights(stage.weights, delta, stage.position.mean_delay(), 1.0)

    def updated(self, stage: TrainedStage, previous: Array) -> None:
        """Average the weights' change; the last stage has no delay and keeps none."""
        delay = stage.position.mean_delay()
        if delay == 0.0:
            return
        keep = math.exp(-2.0) ** (1.0 / delay)
        change = stage.weights - previous
        change *= 1.0 - keep
        if "delta" in stage.buffers:
            change += keep * stage.buffers["delta"]
        stage.buffers["delta"] = change

    def learning_rate_factor(self, position: Position, update: int) -> float:
        """T1: tau^-p, annealed to 1."""
        if update < self.warmup_updates:
            return 1.0
        power = 1.0 - min((update - self.warmup_updates) / self.anneal_updates, 1.0)
        return float(max(1.0, position.mean_delay()) ** -power)


PREDICTION_RULES: dict[str, PredictionRule] = {
    "synchronous": Synchronous(),
    "naive": Naive(),
    "pipedream": Stashing(),
    "vertical-sync": VerticalSync(),
    "2bw": VerticalSync(whole_minibatches=True),
    "spectrain-v1": SpecTrainOne(),
    "spectrain-v2": SpecTrainTwo(),
    "xpipe": XPipe(),
    "xpipe-exact": XPipe(steps="exact"),
    "pipeoptim": PipeOptim(),
    "pipemare": PipeMare(),
}
"""Method -> rule; options of a rule are fields (`dataclasses.replace(PREDICTION_RULES["xpipe"], ...)`)."""
