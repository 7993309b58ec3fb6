"""Prediction rule: which weights the forward and the backward of a micro-batch use in an asynchronous pipeline.

A rule is a frozen dataclass without state; what it must remember between calls (predicted copies, averages) it
keeps in the stage's `buffers`, so that copies can be counted. Symbols: stage k of N (0-based), T micro-batches a
mini-batch, s predicted steps, lr learning rate, W weights. Sources per rule; the family is compared in
XPipe (arXiv 1911.04610) and PipeOptim; version differences of the schedule are derived from its replay.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
"""Weights of one stage: (seeds, parameters), float32 or float64."""

Rounding = Literal["round", "half-even", "floor", "ceil"]
Correction = Literal["adam", "literal"]
Direction = Literal["step", "literal-step", "momentum"]
"""`step`: what the optimizer's next step would be a unit of lr, from its present moments; `literal-step`: the same
with XPipe's printed bias correction; `momentum`: the smoothed gradient only (SpecTrain)."""


def _half_up(value: float) -> int:
    return math.floor(value + 0.5)


ROUNDINGS: dict[str, Callable[[float], int]] = {
    "round": _half_up,
    "half-even": round,
    "floor": math.floor,
    "ceil": math.ceil,
}
"""How a formula's fractional number of steps becomes whole; `round` takes halves up.

Halves are common: (T + N - k/2 - 2) / T is one for every odd k at T = 1, and for k = 0 at N = 8, T = 4.
"""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a stage stands: stage k (0-based) of `stages` N, with `microbatches` T a mini-batch."""

    stage: int
    stages: int
    microbatches: int

    def mean_delay(self) -> float:
        """Mean updates between a forward and its backward on XPipe's staircase: (N-1-k)/T."""
        return (self.stages - 1 - self.stage) / self.microbatches


# ------------------------------------------------------------------------------------- predicted steps


def exact_forward_steps(position: Position) -> int:
    """Steps to the synchronous version from a bellwether's forward, ceil((N-1-k)/T); backward needs 0."""
    return math.ceil((position.stages - 1 - position.stage) / position.microbatches)


def xpipe_forward_steps(position: Position, rounding: Rounding = "round") -> int:
    """XPipe's printed forward steps, (T + N - k/2 - 2) / T rounded.

    0 for a pipeline of one stage, where no version difference exists (the printed formula, made for pipelines,
    would ask for one step when T > 1).
    """
    n, k, t = position.stages, position.stage, position.microbatches
    return 0 if n == 1 else ROUNDINGS[rounding]((t + n - k / 2 - 2) / t)


def xpipe_backward_steps(position: Position, rounding: Rounding = "floor") -> int:
    """XPipe's printed backward steps, (T + floor(k/2) - 1) / T, floored; 0 for a pipeline of one stage."""
    n, k, t = position.stages, position.stage, position.microbatches
    return 0 if n == 1 else ROUNDINGS[rounding]((t + k // 2 - 1) / t)


# ------------------------------------------------------------------------------------------ directions


def adam_direction(
    first: Array, second: Array, updates: int, beta1: float, beta2: float, epsilon: float, correction: Correction
) -> Array:
    """Adam's step a unit of learning rate from its moments after `updates` updates; the moments' shape.

    correction: `adam` divides by 1 - beta^updates; `literal` by 1 - beta, as XPipe prints it (2.06 times too long
    at update 10, tending to 0.316 times).
    """
    if updates == 0:
        return np.zeros_like(first)
    power = updates if correction == "adam" else 1
    result = np.sqrt(second)
    result *= 1.0 / math.sqrt(1.0 - beta2**power)
    result += epsilon
    np.divide(first, result, out=result)
    result *= 1.0 / (1.0 - beta1**power)
    return result


def predicted_weights(weights: Array, direction: Array, steps: float, learning_rate: float) -> Array:
    """Weights after `steps` further steps along `direction`: W - s * lr * direction."""
    step = direction * (steps * learning_rate)
    np.subtract(weights, step, out=step)
    return step


# ----------------------------------------------------------------------------------------------- rules


class StageWeights(Protocol):
    """What a rule may ask of a stage in training (one stage, all seeds at once)."""

    @property
    def position(self) -> Position:
        """Where the stage stands."""

    @property
    def weights(self) -> Array:
        """Weights present now."""

    @property
    def version(self) -> int:
        """Updates applied so far."""

    @property
    def buffers(self) -> dict[str, Array]:
        """Copies that the rule keeps on this stage, by name."""

    def used_by_forward(self, microbatch: int) -> Array:
        """Weights that the forward of a micro-batch in flight used."""

    def entry_version(self, microbatch: int) -> int:
        """Version that the input stage had when it forwarded the micro-batch."""

    def weights_of(self, version: int) -> Array:
        """Weights of an older version that is still held."""

    def predict(self, steps: float, direction: Direction) -> Array:
        """The present weights `steps` further along the optimizer's direction (the very same array at 0 steps)."""


@dataclass(frozen=True, slots=True)
class PredictionRule(ABC):
    """The weights of a forward and of a backward; called once per op, in the order of the replay.

    As it stands here: nothing held, any N and T, the schedule's learning rate.
    """

    @property
    def stashes(self) -> bool:
        """Whether the weights of a forward are held until its backward."""
        return False

    @property
    def holds_versions(self) -> bool:
        """Whether the versions that micro-batches entered the pipeline with are held."""
        return False

    def check(self, stages: int, microbatches: int) -> None:
        """ValueError if the rule is not defined for N `stages` and T `microbatches`."""
        return

    @abstractmethod
    def forward(self, stage: StageWeights, microbatch: int) -> Array:
        """Weights for the forward of `microbatch`."""

    @abstractmethod
    def backward(self, stage: StageWeights, microbatch: int) -> Array:
        """Weights for the backward of `microbatch` (its input gradient)."""

    def updated(self, stage: StageWeights, previous: Array) -> None:
        """Called after every update, with the weights before it."""
        return

    def learning_rate_factor(self, position: Position, update: int) -> float:
        """Factor on the learning rate of update `update` (0-based)."""
        return 1.0


@dataclass(frozen=True, slots=True)
class Naive(PredictionRule):
    """Naive pipelining: the weights present at forward and at backward; no gradient of any one weight vector."""

    def forward(self, stage: StageWeights, microbatch: int) -> Array:
        """The present weights."""
        return stage.weights

    def backward(self, stage: StageWeights, microbatch: int) -> Array:
        """The present weights, newer than the forward's."""
        return stage.weights


@dataclass(frozen=True, slots=True)
class Synchronous(PredictionRule):
    """GPipe, 1F1B with flush, data parallelism: ValueError if the order shows any other than the synchronous version."""

    def forward(self, stage: StageWeights, microbatch: int) -> Array:
        """The present weights, which must be those after every earlier mini-batch."""
        expected = microbatch // stage.position.microbatches
        if stage.version != expected:
            raise ValueError(
                f"synchronous training needs an order that flushes after every mini-batch: stage "
                f"{stage.position.stage} starts micro-batch {microbatch} after {stage.version} updates, not {expected}"
            )
        return stage.weights

    def backward(self, stage: StageWeights, microbatch: int) -> Array:
        """The present weights, which are still the same."""
        return stage.weights


@dataclass(frozen=True, slots=True)
class Stashing(PredictionRule):
    """PipeDream's weight stashing: the backward uses what its forward used (SOSP'19, section 3.3)."""

    @property
    def stashes(self) -> bool:
        """Each micro-batch in flight holds its version."""
        return True

    def forward(self, stage: StageWeights, microbatch: int) -> Array:
        """The present weights."""
        return stage.weights

    def backward(self, stage: StageWeights, microbatch: int) -> Array:
        """The forward's weights."""
        return stage.used_by_forward(microbatch)


@dataclass(frozen=True, slots=True)
class VerticalSync(PredictionRule):
    """PipeDream's vertical sync: every stage uses the version that the input stage had at the forward.

    whole_minibatches: PipeDream-2BW: a mini-batch uses throughout the version that the input stage had at its first
        forward, m-2 (1-based) where N > 1; needs T >= N, or two copies would not be enough
    """

    whole_minibatches: bool = False

    @property
    def stashes(self) -> bool:
        """Each micro-batch in flight holds its version."""
        return True

    @property
    def holds_versions(self) -> bool:
        """Later stages hold older versions until the micro-batches that need them arrive."""
        return True

    def check(self, stages: int, microbatches: int) -> None:
        """ValueError for whole mini-batches with T < N."""
        if self.whole_minibatches and microbatches < stages:
            raise ValueError(
                f"2bw needs at least as many micro-batches a mini-batch as stages, got T={microbatches}, N={stages}"
            )

    def forward(self, stage: StageWeights, microbatch: int) -> Array:
        """The input stage's version at this micro-batch, or at the first of its mini-batch."""
        if self.whole_minibatches:
            microbatch -= microbatch % stage.position.microbatches
        return stage.weights_of(stage.entry_version(microbatch))

    def backward(self, stage: StageWeights, microbatch: int) -> Array:
        """The forward's weights."""
        return stage.used_by_forward(microbatch)


@dataclass(frozen=True, slots=True)
class SpecTrainOne(PredictionRule):
    """SpecTrain v1: both passes aim at the version of the round trip's end on stage 0; v_(t-1) is the smoothed gradient.

    Forward s = floor(k/2) + N-k-1, backward s = floor(k/2), both from the present weights.
    """

    def forward(self, stage: StageWeights, microbatch: int) -> Array:
        """Predicted by floor(k/2) + N-k-1 steps."""
        k = stage.position.stage
        return self._predicted(stage, k // 2 + stage.position.stages - k - 1)

    def backward(self, stage: StageWeights, microbatch: int) -> Array:
        """Predicted by floor(k/2) steps."""
        return self._predicted(stage, stage.position.stage // 2)

    def _predicted(self, stage: StageWeights, steps: int) -> Array:
        stage.buffers["predicted"] = predicted = stage.predict(steps, "momentum")
        return predicted


@dataclass(frozen=True, slots=True)
class SpecTrainTwo(PredictionRule):
    """SpecTrain v2: the forward predicts the synchronous version, the backward reuses that prediction.

    s is the version difference that the replay shows, which is the published N-k-1 on a straight pipeline at T = 1.
    """

    @property
    def stashes(self) -> bool:
        """Each micro-batch in flight holds its prediction."""
        return True

    def forward(self, stage: StageWeights, microbatch: int) -> Array:
        """Predicted to the synchronous version."""
        return stage.predict(_missing_updates(stage, microbatch), "momentum")

    def backward(self, stage: StageWeights, microbatch: int) -> Array:
        """The forward's prediction."""
        return stage.used_by_forward(microbatch)


@dataclass(frozen=True, slots=True)
class XPipe(PredictionRule):
    """XPipe: the bellwether (first micro-batch of a mini-batch) predicts, at forward and at backward; the rest reuse.

    steps: `paper` for the printed formulas, `exact` for the synchronous version (ceil((N-1-k)/T) and 0)
    forward_rounding, backward_rounding: of the printed formulas' fractions: round, half-even, floor or ceil
    correction: bias correction of the predicted Adam step: `adam` (1 - beta^t) or `literal` (1 - beta)
    ValueError: an unknown choice.
    """

    steps: Literal["paper", "exact"] = "paper"
    forward_rounding: Rounding = "round"
    backward_rounding: Rounding = "floor"
    correction: Correction = "adam"

    def __post_init__(self) -> None:
        _one_of("XPipe's steps", self.steps, ("paper", "exact"))
        _one_of("XPipe's forward rounding", self.forward_rounding, tuple(ROUNDINGS))
        _one_of("XPipe's backward rounding", self.backward_rounding, tuple(ROUNDINGS))
        _one_of("XPipe's bias correction", self.correction, ("adam", "literal"))

    def forward_steps(self, position: Position) -> int:
        """Steps that the bellwether's forward predicts."""
        if self.steps == "exact":
            return exact_forward_steps(position)
        return xpipe_forward_steps(position, self.forward_rounding)

    def backward_steps(self, position: Position) -> int:
        """Steps that the bellwether's backward predicts."""
        return 0 if self.steps == "exact" else xpipe_backward_steps(position, self.backward_rounding)

    def forward(self, stage: StageWeights, microbatch: int) -> Array:
        """The mini-batch's forward prediction, made by its bellwether."""
        return self._prediction(stage, microbatch, "forward", self.forward_steps(stage.position))

    def backward(self, stage: StageWeights, microbatch: int) -> Array:
        """The mini-batch's backward prediction, made by its bellwether."""
        return self._prediction(stage, microbatch, "backward", self.backward_steps(stage.position))

    def _prediction(self, stage: StageWeights, microbatch: int, buffer: str, steps: int) -> Array:
        if microbatch % stage.position.microbatches == 0:
            stage.buffers[buffer] = stage.predict(steps, "step" if self.correction == "adam" else "literal-step")
        return stage.buffers[buffer]


@dataclass(frozen=True, slots=True)
class PipeOptim(PredictionRule):
    """PipeOptim: every forward predicts along the optimizer's own step, the backward uses the present weights.

    s is the version difference that the replay shows, which is the published N-1-k on a straight pipeline at T = 1.
    """

    def forward(self, stage: StageWeights, microbatch: int) -> Array:
        """Predicted to the synchronous version."""
        stage.buffers["predicted"] = predicted = stage.predict(_missing_updates(stage, microbatch), "step")
        return predicted

    def backward(self, stage: StageWeights, microbatch: int) -> Array:
        """The present weights."""
        return stage.weights


@dataclass(frozen=True, slots=True)
class PipeMare(PredictionRule):
    """PipeMare (arXiv 1910.05124): stale forward, corrected backward, a smaller learning rate while delays matter.

    With tau = tau_f - tau_b the stage's mean delay in updates, (N-1-k)/T:
    T1: lr / max(1, tau)^p with p = 1 - min(u / anneal_updates, 1) at update u after the warm-up
    T2: backward weights W - tau * delta, delta an exponential moving average of the weights' change with decay
        D^(1/tau): an estimate of what the forward used
    T3: `warmup_updates` first updates without T1 and T2, for an order that starts with synchronous mini-batches
        (`simulator.training.joined`)
    ValueError: decay outside (0, 1), anneal_updates < 1, or a negative warm-up.
    """

    decay: float = math.exp(-2.0)
    anneal_updates: int = 110
    warmup_updates: int = 0

    def __post_init__(self) -> None:
        if not 0.0 < self.decay < 1.0:
            raise ValueError(f"PipeMare's decay must lie between 0 and 1, got {self.decay}")
        if self.anneal_updates < 1 or self.warmup_updates < 0:
            raise ValueError(
                f"PipeMare needs anneal_updates >= 1 and warmup_updates >= 0, got {self.anneal_updates} and "
                f"{self.warmup_updates}"
            )

    def forward(self, stage: StageWeights, microbatch: int) -> Array:
        """The present weights."""
        return stage.weights

    def backward(self, stage: StageWeights, microbatch: int) -> Array:
        """The present weights moved back to where the forward was (T2)."""
        delta = stage.buffers.get("delta")
        in_warmup = microbatch // stage.position.microbatches < self.warmup_updates
        if delta is None or in_warmup:
            return stage.weights
        return predicted_weights(stage.weights, delta, stage.position.mean_delay(), 1.0)

    def updated(self, stage: StageWeights, previous: Array) -> None:
        """Average the weights' change; the last stage has no delay and keeps none."""
        delay = stage.position.mean_delay()
        if delay == 0.0:
            return
        keep = self.decay ** (1.0 / delay)
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


def _missing_updates(stage: StageWeights, microbatch: int) -> int:
    """Updates between the present weights and the synchronous version of a micro-batch."""
    return microbatch // stage.position.microbatches - stage.version


def _one_of(what: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{what} must be one of {', '.join(choices)}, got {value!r}")


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
