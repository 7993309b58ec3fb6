"""Tests of `simulator.schedules.checks`: every fault is named by device, position and op."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import OpKind, ScheduleError, build_schedule, check_schedule, from_text
from tests.simulator.strategies import Words, from_lists, from_words, op_lists, schedules

GOOD = "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1\n"


def fault(text: str) -> str:
    """The message about a faulty schedule, one line a device."""
    with pytest.raises(ScheduleError) as caught:
        check_schedule(from_text(text))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_good_schedule_passes() -> None:
    """Each op once, all of a stage on one device, in an order that runs; full and split backwards may mix."""
    check_schedule(from_text(GOOD))
    check_schedule(from_text("0F0 0F1 0I0 0B1 0W0\n1F0 1B0 1F1 1I1 1W1\n"))


@settings(max_examples=80, deadline=None)
@given(schedule=schedules())
def test_families_and_random_valid_orders_pass(schedule: object) -> None:
    """What a family builds, and any linear extension of the data dependencies, passes."""
    check_schedule(schedule)  # type: ignore[arg-type]


def test_missing_ops_are_named() -> None:
    """A forward, a backward, or half of a split backward that is not there is named with its device."""
    assert fault("0F0 0B0 0B1\n1F0 1B0 1F1 1B1") == "device 0: op 0F1 is missing"
    assert fault("0F0 0F1 0B0 0B1\n1F0 1B0 1F1") == "device 1: op 1B1 is missing (or 1I1 with 1W1)"
    assert fault("0F0 0B0\n1F0 1W0") == "device 1: op 1I0 is missing"


def test_an_input_gradient_without_its_weight_gradient_is_named() -> None:
    """I without W leaves the stage's weights without a gradient."""
    assert fault("0F0 0I0\n1F0 1B0") == "device 0: op 0W0 is missing"


def test_a_doubled_op_names_both_places() -> None:
    """The second copy is the fault, the first is told."""
    assert fault("0F0 0F1 0B0 0B1 0F1\n1F0 1B0 1F1 1B1") == (
        "device 0, position 4: op 0F1 is doubled, it stands at device 0, position 1 already"
    )
    assert fault("0F0 0B0 1B0\n1F0 1B0") == (
        "device 1, position 1: op 1B0 is doubled, it stands at device 0, position 2 already"
    )


def test_a_split_backward_beside_a_full_one_is_named() -> None:
    """B is I and W together: either, not both."""
    assert fault("0F0 0B0 0W0\n1F0 1B0") == "device 0, position 2: op 0W0 repeats the full backward 0B0"


def test_a_backward_on_another_device_than_its_forward_is_named() -> None:
    """What forward stashed lies on one device, so backward runs there."""
    assert fault("0F0 1B0 0B0\n1F0") == (
        "device 0, position 1: op 1B0 runs where its forward did not (1F0 is on device 1)"
    )


def test_a_stage_without_ops_is_named() -> None:
    """Stages are numbered without a gap."""
    assert fault("0F0 0B0\n2F0 2B0") == "stage 1 has no op on any device, but stages are numbered to 2"


def test_a_deadlock_within_a_device_is_named() -> None:
    """A backward before its own forward waits for ever."""
    assert fault("0B0 0F0") == "deadlock: device 0, position 0: op 0B0 waits for 0F0 (device 0, position 1)"


def test_a_deadlock_between_devices_names_every_device_in_it() -> None:
    """Device 0 wants the gradient before it gives the activation that it comes from."""
    assert fault("0F0 0B1 0F1 0B0\n1F0 1F1 1B0 1B1") == (
        "deadlock: device 0, position 1: op 0B1 waits for 0F1 (device 0, position 2); "
        "device 1, position 1: op 1F1 waits for 0F1 (device 0, position 2)"
    )


def test_a_weight_gradient_before_its_input_gradient_is_a_deadlock() -> None:
    """W takes the gradient that I passed on."""
    assert "op 0W0 waits for 0I0" in fault("0F0 0W0 0I0")


def test_a_long_deadlock_names_three_devices_and_counts_the_rest() -> None:
    """The message stays one line however many devices are stuck."""
    lists = [list(ops) for ops in build_schedule("1f1b", 6, 6).lists()]
    lists[5].reverse()
    with pytest.raises(ScheduleError, match=r"device 0, position .*device 2, .*; and 3 devices more$"):
        check_schedule(from_lists("stuck", lists))


@settings(max_examples=80, deadline=None)
@given(lists=op_lists(), data=st.data())
def test_a_valid_order_without_one_of_its_ops_is_refused(lists: Words, data: st.DataObject) -> None:
    """Any op taken away is noticed, be it of an overlapped pair, unless it leaves a smaller schedule that is complete."""
    check_schedule(from_words("whole", lists))
    rank = data.draw(st.integers(0, len(lists) - 1))
    position = data.draw(st.integers(0, len(lists[rank]) - 1))
    word = lists[rank].pop(position)
    lost = data.draw(st.sampled_from(word))
    lists[rank][position:position] = [(op,) for op in word if op is not lost]
    again = [
        op for words in lists for word in words for op in word if (op.stage, op.kind) == (lost.stage, OpKind.RECOMPUTE)
    ]
    if not any(lists) or (lost.kind is OpKind.RECOMPUTE and not again):
        return
    with pytest.raises(ScheduleError, match=str(lost)[:-1]):
        check_schedule(from_words("broken", [words for words in lists if words]))


def test_a_micro_batch_that_stands_in_one_op_is_named() -> None:
    """The last rank of torch 2.13's own list of 1F1B runs a micro-batch too late, up to one that no other rank has."""
    late = from_text("0F0 0F1 0B0 0B1\n1F1 1B0 1F2 1B1\n")
    with pytest.raises(
        ScheduleError, match=r"op 0F2 is missing; micro-batch 2 stands nowhere but in 1F2 \(device 1, position 2\)"
    ):
        check_schedule(late)
    with pytest.raises(ScheduleError, match=r"op 0F1 is missing$"):
        check_schedule(from_text("0F0 0B0 0B1\n1F0 1B0 1F1 1B1\n"))
