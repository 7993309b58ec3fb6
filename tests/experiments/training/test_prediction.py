"""Prediction rules: steps, directions, and which weights each pass uses."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from experiments.training.optimizers import Adam, Array, Direction, OptimizerState
from experiments.training.prediction import PREDICTION_RULES, ROUNDINGS, PipeMare, XPipe
from experiments.training.stage import Position, predicted_weights


@dataclass
class FakeStage:
    """A stage whose weights after v updates are all v, and whose every prediction is exact."""

    position: Position
    version: int = 0
    entry_versions: list[int] = field(default_factory=list)
    buffers: dict[str, Array] = field(default_factory=dict)
    used: dict[int, Array] = field(default_factory=dict)
    asked: list[tuple[float, str]] = field(default_factory=list)

    @property
    def weights(self) -> Array:
        return self.weights_of(self.version)

    def missing_updates(self, microbatch: int) -> int:
        return microbatch // self.position.microbatches - self.version

    def weights_of(self, version: int) -> Array:
        return np.full((1, 1), float(version))

    def predict(self, steps: float, direction: Direction) -> Array:
        self.asked.append((steps, direction))
        return self.weights + steps


def value(weights: Array) -> float:
    return float(weights[0, 0])


def test_xpipe_steps_by_hand() -> None:
    """N=4, T=2: forward (T+N-k/2-2)/T = 2, 1.75, 1.5, 1.25; backward (T+floor(k/2)-1)/T = 0.5, 0.5, 1, 1."""
    positions = [Position(k, 4, 2) for k in range(4)]
    assert [XPipe().forward_steps(p) for p in positions] == [2, 2, 2, 1]
    assert [XPipe(forward_rounding="floor").forward_steps(p) for p in positions] == [2, 1, 1, 1]
    assert [XPipe(forward_rounding="ceil").forward_steps(p) for p in positions] == [2, 2, 2, 2]
    assert [XPipe().backward_steps(p) for p in positions] == [0, 0, 1, 1]
    assert [XPipe(backward_rounding="round").backward_steps(p) for p in positions] == [1, 1, 1, 1]


def test_rounding_of_halves() -> None:
    """`round` takes halves up, `half-even` to the even number."""
    values = (0.5, 1.5, 2.5, 1.25, 1.75)
    assert [ROUNDINGS["round"](x) for x in values] == [1, 2, 3, 1, 2]
    assert [ROUNDINGS["half-even"](x) for x in values] == [0, 2, 2, 1, 2]


def test_xpipe_at_one_microbatch_aims_where_spectrain_v1_does() -> None:
    """T=1: XPipe's printed steps, rounded down, are SpecTrain v1's floor(k/2)+N-k-1 and floor(k/2)."""
    for stages in range(2, 9):
        for k in range(stages):
            position = Position(k, stages, 1)
            expected = [k // 2 + stages - k - 1, k // 2]
            assert [
                XPipe(forward_rounding="floor").forward_steps(position),
                XPipe().backward_steps(position),
            ] == expected
            fake = FakeStage(position)
            PREDICTION_RULES["spectrain-v1"].forward(fake, 0)
            PREDICTION_RULES["spectrain-v1"].backward(fake, 0)
            assert fake.asked == [(steps, "momentum") for steps in expected]


@pytest.mark.parametrize("stages", range(1, 9))
def test_exact_steps_reach_the_synchronous_version(stages: int) -> None:
    """On the staircase a bellwether F_(T(m-1)+1) sees floor((T(m-1)+1-N+k)/T) updates; ceil((N-1-k)/T) more are m-1."""
    for per_minibatch in range(1, 9):
        for k in range(stages):
            for m in range(stages + 1, stages + 4):
                seen = (per_minibatch * (m - 1) + 1 - stages + k) // per_minibatch
                assert seen + XPipe("exact").forward_steps(Position(k, stages, per_minibatch)) == m - 1


def test_one_stage_needs_no_prediction() -> None:
    """A pipeline of one stage has no version difference: 0 steps for every T."""
    for per_minibatch in range(1, 9):
        position = Position(0, 1, per_minibatch)
        assert XPipe().forward_steps(position) == XPipe(backward_rounding="ceil").backward_steps(position) == 0
        assert XPipe("exact").forward_steps(position) == 0


def test_adam_direction_of_a_constant_gradient() -> None:
    """With gradient g always, Adam-consistent correction gives g / (|g| + eps) after any number of updates."""
    for updates in (1, 2, 10, 1000):
        first = np.full(3, (1 - 0.9**updates) * -2.0)
        second = np.full(3, (1 - 0.999**updates) * 4.0)
        result = Adam().direction(OptimizerState(updates, first, second), "step")
        assert result == pytest.approx(np.full(3, -1.0))


def test_literal_correction_is_wrong_by_the_published_factors() -> None:
    """XPipe's printed denominators: 2.06 times too long at update 10, 0.316 times in the limit."""
    for updates, factor in ((10, 2.06), (100_000, 0.316)):
        first = np.full(1, (1 - 0.9**updates) * 3.0)
        second = np.full(1, (1 - 0.999**updates) * 9.0)
        state = OptimizerState(updates, first, second)
        literal, adam = (Adam(epsilon=1e-12).direction(state, how) for how in ("literal-step", "step"))
        assert float(literal[0] / adam[0]) == pytest.approx(factor, abs=0.005)


def test_no_direction_before_the_first_update() -> None:
    """Zero moments point nowhere, without a division by 1 - beta^0."""
    zero = np.zeros(2)
    assert Adam().direction(OptimizerState(0, zero, zero), "step").tolist() == [0.0, 0.0]


def test_predicted_weights_by_hand() -> None:
    """W - s * lr * direction: 1 - 3 * 0.1 * 2 = 0.4; the weights themselves stay."""
    weights = np.array([[1.0]])
    assert value(predicted_weights(weights, np.array([[2.0]]), 3, 0.1)) == pytest.approx(0.4)
    assert value(weights) == 1.0


def test_naive_and_stashing() -> None:
    """Naive: present weights twice; PipeDream: the backward takes what the forward used."""
    stage = FakeStage(Position(0, 4, 1), version=5, used={5: np.full((1, 1), 2.0)})
    assert value(PREDICTION_RULES["naive"].backward(stage, 5)) == 5.0
    assert value(PREDICTION_RULES["pipedream"].forward(stage, 5)) == 5.0
    assert value(PREDICTION_RULES["pipedream"].backward(stage, 5)) == 2.0


def test_vertical_sync_and_2bw_take_the_input_stages_version() -> None:
    """T=2, entries at versions 0 0 0 1: micro-batch 3 uses 1 under vertical sync, 0 under 2BW (its mini-batch began at 0)."""
    stage = FakeStage(Position(1, 2, 2), version=2, entry_versions=[0, 0, 0, 1])
    assert value(PREDICTION_RULES["vertical-sync"].forward(stage, 3)) == 1.0
    assert value(PREDICTION_RULES["2bw"].forward(stage, 3)) == 0.0


def test_2bw_needs_as_many_microbatches_as_stages() -> None:
    """T < N is refused."""
    PREDICTION_RULES["2bw"].check(4, 4)
    with pytest.raises(ValueError, match="T=3, N=4"):
        PREDICTION_RULES["2bw"].check(4, 3)


def test_only_the_bellwether_predicts() -> None:
    """XPipe, T=3: micro-batches 3 predicts, 4 and 5 reuse it although an update came in between."""
    rule = XPipe(steps="exact")
    stage = FakeStage(Position(0, 4, 3), version=0)
    first = rule.forward(stage, 3)
    stage.version = 1
    assert rule.forward(stage, 4) is first
    assert rule.forward(stage, 5) is first
    assert stage.asked == [(1, "step")]
    assert value(rule.backward(stage, 3)) == 1.0
    assert sorted(stage.buffers) == ["backward", "forward"]


def test_literal_correction_is_asked_for() -> None:
    """XPipe(correction="literal") predicts along the literal step."""
    stage = FakeStage(Position(0, 4, 1))
    XPipe(correction="literal").forward(stage, 0)
    assert stage.asked == [(3, "literal-step")]


def test_pipeoptim_and_spectrain_v2_predict_the_synchronous_version() -> None:
    """With version 2 present, micro-batch 5 at T=1 is 3 updates away; both aim at 5; only PipeOptim's backward is present."""
    stage = FakeStage(Position(0, 4, 1), version=2, used={5: np.full((1, 1), 5.0)})
    assert value(PREDICTION_RULES["pipeoptim"].forward(stage, 5)) == 5.0
    assert value(PREDICTION_RULES["spectrain-v2"].forward(stage, 5)) == 5.0
    assert [direction for _, direction in stage.asked] == ["step", "momentum"]
    stage.version = 4
    assert value(PREDICTION_RULES["pipeoptim"].backward(stage, 5)) == 4.0
    assert value(PREDICTION_RULES["spectrain-v2"].backward(stage, 5)) == 5.0


def test_synchronous_refuses_a_stale_version() -> None:
    """Micro-batch 4 at T=2 needs exactly 2 updates."""
    stage = FakeStage(Position(0, 2, 2), version=2)
    assert value(PREDICTION_RULES["synchronous"].forward(stage, 4)) == 2.0
    with pytest.raises(
        ValueError,
        match=(
            "synchronous training needs an order that flushes after every mini-batch: stage 0 starts "
            "micro-batch 6 after 2 updates, not 3"
        ),
    ):
        PREDICTION_RULES["synchronous"].forward(stage, 6)


def test_pipemare_discrepancy_correction() -> None:
    """Weights that grow by 1 an update: delta tends to 1, and the corrected backward is tau updates back."""
    rule = PipeMare()
    stage = FakeStage(Position(0, 4, 1))
    for _ in range(200):
        previous = stage.weights
        stage.version += 1
        rule.updated(stage, previous)
    assert value(stage.buffers["delta"]) == pytest.approx(1.0)
    assert value(rule.backward(stage, 200)) == pytest.approx(200.0 - 3.0)
    assert value(rule.forward(stage, 200)) == 200.0


def test_pipemare_decay_by_hand() -> None:
    """tau = 2, D = e^-2: the average keeps e^-1 of itself an update."""
    rule, stage = PipeMare(), FakeStage(Position(1, 4, 1))
    stage.version = 1
    rule.updated(stage, stage.weights_of(0))
    assert value(stage.buffers["delta"]) == pytest.approx(1 - math.exp(-1))


def test_pipemare_learning_rate_and_warmup() -> None:
    """T1: 1/tau at first, 1/sqrt(tau) half way, 1 after; T3: 1 during the warm-up; the last stage is never slowed."""
    rule = PipeMare(anneal_updates=10, warmup_updates=5)
    position = Position(0, 5, 1)
    factors = [rule.learning_rate_factor(position, update) for update in (0, 4, 5, 10, 15, 99)]
    assert factors == pytest.approx([1.0, 1.0, 0.25, 0.5, 1.0, 1.0])
    assert rule.learning_rate_factor(Position(4, 5, 1), 5) == 1.0
    stage = FakeStage(position, version=3, buffers={"delta": np.ones((1, 1))})
    assert value(rule.backward(stage, 4)) == 3.0
    assert value(rule.backward(stage, 5)) == -1.0


def test_bad_options_are_refused() -> None:
    """Unknown choices name the choices; numbers out of range name the rule."""
    with pytest.raises(ValueError, match="one of round, half-even, floor, ceil, got 'up'"):
        replace(XPipe(), forward_rounding="up")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one of adam, literal"):
        XPipe(correction="none")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="PipeMare needs anneal_updates >= 1 and warmup_updates >= 0, got 0 and 0"):
        PipeMare(anneal_updates=0)
