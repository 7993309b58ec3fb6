"""Timing of passes, on a fake device with a fake clock: what counts, what does not, and what is said of many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from experiments.profiling.pass_timing import (
    LayerWeights,
    PassSeconds,
    TimedPass,
    divided_weights,
    kind_of,
    relative_spread,
    run_spread,
    time_pass,
)
from hardware_profiles import LAYER_KINDS


@dataclass
class FakeDevice:
    """Work is queued, and the clock moves when the device is asked to finish it; making inputs ready takes 100 s.

    forward, backward: seconds of each run, in order
    """

    forward: list[float]
    backward: list[float]
    now: float = 0.0
    queued: float = 0.0
    log: list[str] = field(default_factory=list)

    def synchronize(self) -> None:
        self.now += self.queued
        self.queued = 0.0

    def ready(self) -> str:
        self.queued += 100.0
        return "inputs"

    def run(self, inputs: str) -> str:
        assert inputs == "inputs"
        self.log.append("forward")
        self.queued += self.forward.pop(0)
        return "result"

    def gradients(self, result: str) -> Callable[[], object] | None:
        assert result == "result"
        self.queued += 10.0  # gradients of the outputs are made ready
        return self.back if self.backward else None

    def back(self) -> None:
        self.log.append("backward")
        self.queued += self.backward.pop(0)

    def timed(self, warm_up: int, repeats: int) -> PassSeconds:
        passes = TimedPass(self.ready, self.run, self.gradients)
        return time_pass(passes, warm_up=warm_up, repeats=repeats, synchronize=self.synchronize, clock=lambda: self.now)


def test_only_the_pass_itself_is_timed_until_the_device_is_done() -> None:
    """Neither inputs nor output gradients count, and work that is only queued does; the first two runs warm up."""
    device = FakeDevice([50.0, 40.0, 1.0, 2.0, 6.0], [70.0, 60.0, 3.0, 5.0, 4.0])
    seconds = device.timed(2, 3)
    assert seconds == PassSeconds((1.0, 2.0, 6.0), (3.0, 5.0, 4.0))
    assert device.log == ["forward", "backward"] * 5


def test_a_layer_without_gradients_has_no_backward() -> None:
    """Nothing is run, and no time is made up."""
    device = FakeDevice([1.0, 2.0], [])
    assert device.timed(0, 2) == PassSeconds((1.0, 2.0), (0.0, 0.0))
    assert device.log == ["forward", "forward"]


def test_a_row_has_medians_and_relative_quartiles() -> None:
    """Of 1, 2, 3, 4, 10: median 3, quartiles 2 and 4; backward of equal seconds has no spread."""
    row = PassSeconds((10.0, 1.0, 3.0, 2.0, 4.0), (7.0,) * 5).row(8)
    assert row == {
        "samples": 8,
        "forward_seconds": 3.0,
        "backward_seconds": 7.0,
        "forward_spread": pytest.approx(2 / 3),
        "backward_spread": 0.0,
    }
    assert PassSeconds((10.0, 1.0, 3.0, 2.0, 4.0), (7.0,) * 5).medians(8) == {
        "samples": 8,
        "forward_seconds": 3.0,
        "backward_seconds": 7.0,
    }
    assert relative_spread([5.0]) == relative_spread([0.0, 0.0, 9.0, 0.0]) == 0.0


def test_the_spread_of_a_run_is_that_of_its_worst_column() -> None:
    """Two layers at two sizes: sums of ranges over sums of medians, by size and direction; the largest of four."""
    steady = {"forward_seconds": 4.0, "forward_spread": 0.0, "backward_seconds": 4.0, "backward_spread": 0.1}
    shaky = {"forward_seconds": 1.0, "forward_spread": 0.5, "backward_seconds": 4.0, "backward_spread": 0.3}
    assert run_spread([[steady, steady], [steady, shaky]]) == pytest.approx((4.0 * 0.1 + 4.0 * 0.3) / 8.0)
    assert run_spread([[{**steady, "backward_spread": 0.0}], [shaky]]) == pytest.approx(4.0 * 0.3 / 8.0)
    assert run_spread([[{**shaky, "backward_spread": 0.0}], [steady]]) == pytest.approx(0.1)
    assert run_spread([[dict.fromkeys(steady, 0.0)]]) == 0.0


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Conv2d", "convolution"),
        ("LazyLinear", "linear"),
        ("BatchNorm2d", "normalization"),
        ("AdaptiveAvgPool2d", "pooling"),
        ("MultiheadAttention", "attention"),
        ("GELU", "activation"),
        ("CrossEntropyLoss", "loss"),
        ("Flatten", "reshape"),
    ],
)
def test_kinds_follow_the_name_of_the_class(name: str, kind: str) -> None:
    """The first part that the name holds decides, not the weights."""
    assert kind_of(name, True) == kind_of(name, False) == kind
    assert kind in LAYER_KINDS


def test_an_unknown_class_is_linear_with_weights_and_elementwise_without() -> None:
    """What is not known by name."""
    assert (kind_of("Fancy", True), kind_of("Fancy", False)) == ("linear", "elementwise")


def test_a_weight_belongs_to_its_first_user_and_ties_the_others() -> None:
    """A head on the embedding's matrix has its bias alone; a module that runs twice owns its weights once."""
    calls = [{"matrix": 100}, {"kernel": 8, "bias": 2}, {"kernel": 8, "bias": 2}, {"matrix": 100, "head bias": 5}]
    assert divided_weights(calls) == [
        LayerWeights(100),
        LayerWeights(10),
        LayerWeights(0, tied_to=1, tied=10),
        LayerWeights(5, tied_to=0, tied=100),
    ]


def test_ties_to_one_owner_are_as_large_as_the_largest() -> None:
    """Of several owners the one with most of what is shared; all tied to one owner share one weight."""
    calls = [{"a": 100, "b": 10}, {"c": 50}, {"b": 10}, {"a": 100, "b": 10, "c": 50}]
    assert divided_weights(calls) == [
        LayerWeights(110),
        LayerWeights(50),
        LayerWeights(0, tied_to=0, tied=110),
        LayerWeights(0, tied_to=0, tied=110),
    ]
