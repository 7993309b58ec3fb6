"""Stack: constants by kind of layer and generation of accelerators, and one clear line for every mistake of a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hardware_profiles import (
    GENERIC,
    Constant,
    ProfileError,
    Runs,
    Stack,
    Work,
    check_file,
    load_accelerator,
    load_stack,
    schema,
    stack_names,
)

AMPERE, HOPPER = load_accelerator("a100-80"), load_accelerator("gh200")
PRODUCT = Work("linear", 2e12, 1e6, 1e6, 1_000_000)
ATTENTION = Work("attention", 2e12, 1e6, 1e6, 0, fused_pairs=0.5, head_size=128)
OTHER = Work("normalization", 0.0, 1e6, 1e6, 1000)

MINE = """
kind = "stack"
name = "mine"
[runs]
zero = [3]
tensor = false
[gradients]
precision = "fp32"
[weights]
gathered = "products"
[factors.products]
value = 1.25
source = "my runs"
fitted = ["mine.csv"]
[factors.products.generations.hopper]
value = 2
source = "my runs of a GH200"
[overheads.block_pass_us]
value = 500
source = "my runs"
[memory.context_gib]
value = 1.5
source = "my runs"
"""


def written(folder: Path, text: str, name: str = "mine.toml") -> Path:
    """A file of a folder."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_the_generic_stack_changes_nothing() -> None:
    """The file and the default are one stack, under which layers and casts take the accelerator's own seconds, to the bit."""
    assert load_stack("generic") == GENERIC
    for work in (PRODUCT, ATTENTION, OTHER):
        own = AMPERE.seconds(work, 3, "backward", "bf16")
        assert GENERIC.layer_seconds(AMPERE, work, 3, "backward", "bf16") == own
    own = HOPPER.seconds(Work("elementwise", 0.0, 1e6, 1e6, 0), 3, "forward", "bf16")
    assert GENERIC.cast_seconds(HOPPER, 1e6, 3, "fp8") == own
    assert GENERIC.sort_seconds(HOPPER, 1e6, 3, "bf16") == own
    board = load_accelerator("vcu118")  # layers that stream cast as they pass data on
    assert GENERIC.cast_seconds(board, 1e6, 3, "fp8") == 0.0


def test_seconds_are_times_those_of_the_accelerator() -> None:
    """By kind of layer; a head of 108 elements, which 8 does not divide, adds its own; boards that stream are left alone."""
    one = Stack(
        name="one",
        products=Constant(2.0, generations=(("hopper", Constant(4.0)),)),
        attention=Constant(3.0),
        odd_heads=Constant(0.5),
        elementwise=Constant(0.25),
        experts=Constant(1.5),
    )
    routed = replace(PRODUCT, experts=4)
    odd = Work("attention", 2e12, 1e6, 1e6, 0, fused_pairs=0.5, head_size=108)
    works = {PRODUCT: 2.0, routed: 3.0, ATTENTION: 3.0, odd: 3.5, OTHER: 0.25}
    assert {work: one.times(AMPERE, work) for work in works} == works
    assert one.times(HOPPER, PRODUCT) == 4.0
    assert one.times(load_accelerator("vcu118"), PRODUCT) == 1.0
    seconds = one.layer_seconds(AMPERE, PRODUCT, 2, "forward", "bf16")
    assert seconds == 2.0 * AMPERE.seconds(PRODUCT, 2, "forward", "bf16")


def test_stragglers_grow_with_servers() -> None:
    """A share more with every doubling, of layers and casts; nothing on one server, nor on boards that stream; never less."""
    one = Stack(name="one", products=Constant(2.0), stragglers=Constant(0.25, generations=(("hopper", Constant(0.0)),)))
    assert [one.waits(AMPERE, servers) for servers in (1, 2, 4, 16)] == [1.0, 1.25, 1.5, 2.0]
    rising = [one.waits(AMPERE, servers) for servers in range(1, 100)]
    assert rising == sorted(rising)
    assert {one.waits(device, 16) for device in (HOPPER, load_accelerator("vcu118"))} == {1.0}
    alone, spread = (one.layer_seconds(AMPERE, PRODUCT, 2, "forward", "bf16", servers) for servers in (1, 4))
    assert spread == 1.5 * alone == 3.0 * AMPERE.seconds(PRODUCT, 2, "forward", "bf16")
    wide = Stack(name="wide", stragglers=Constant(0.25))
    assert wide.cast_seconds(HOPPER, 1e6, 2, "fp8", 4) == 1.5 * wide.cast_seconds(HOPPER, 1e6, 2, "fp8")
    assert (one.straggles, GENERIC.straggles) == (True, False)


def test_three_figures_of_memory() -> None:
    """Reserved is times what is allocated, the driver counts the context beside; what may be allocated fills the device."""
    one = Stack(name="one", workspace=Constant(2e9), reserved=Constant(1.25), context=Constant(5e9))
    device = AMPERE.memory_bytes + AMPERE.reserve_bytes  # type: ignore[attr-defined]
    assert one.workspace_bytes(AMPERE) == 2e9
    assert one.reserved_bytes(AMPERE, 8e9) == 10e9
    assert one.driver_bytes(AMPERE, 8e9) == 15e9
    assert one.room_bytes(AMPERE) == (device - 5e9) / 1.25
    assert one.driver_bytes(AMPERE, one.room_bytes(AMPERE)) == pytest.approx(device, rel=1e-12)


def test_a_stack_that_tells_no_context_leaves_the_reserve() -> None:
    """The generic one to the bit what the accelerator has for plans; boards that stream run no framework."""
    assert GENERIC.room_bytes(AMPERE) == AMPERE.memory_bytes
    assert GENERIC.driver_bytes(AMPERE, 1e9) == 1e9 + AMPERE.reserve_bytes  # type: ignore[attr-defined]
    board = load_accelerator("vcu118")
    one = Stack(name="one", workspace=Constant(2e9), reserved=Constant(1.25), context=Constant(5e9))
    assert (one.room_bytes(board), one.workspace_bytes(board)) == (board.memory_bytes, 0.0)


def test_a_file_is_a_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by path, and by name in a folder of one's own; constants in base units, with what they rest on."""
    found = load_stack(written(tmp_path, MINE))
    assert (found.runs, found.gradient_bytes) == (Runs(zero=(3,), tensor=False), 4)
    assert (found.gathered, found.narrow_copy) == ("products", True)
    assert (found.products.on(AMPERE), found.products.on(HOPPER), found.block_pass.value) == (1.25, 2.0, 5e-4)
    assert (found.context.value, found.reserved) == (1.5 * 2**30, GENERIC.reserved)
    assert (found.products.source, found.products.fitted) == ("my runs", ("mine.csv",))
    assert found.attention == GENERIC.attention
    (tmp_path / "stacks").mkdir()
    written(tmp_path / "stacks", MINE)
    monkeypatch.setenv("PIPEPLAN_PROFILES", str(tmp_path))
    assert {"mine", "generic"} <= set(stack_names())
    assert load_stack("mine") == found
    assert "stack mine: 3 constants of its own; runs ZeRO 3; no tensor" in check_file(tmp_path / "mine.toml")
    assert "odd_heads" in str(schema("stack"))


@pytest.mark.parametrize("name", stack_names())
def test_every_constant_says_what_it_rests_on(name: str) -> None:
    """One that changes anything has a source and tables that it was fitted on, or says that it is assumed."""
    for constant in load_stack(name).constants().values():
        for one in (constant, *(other for _, other in constant.generations)):
            assert one.source or one in GENERIC.constants().values()
            assert one.fitted or one.value in (0.0, 1.0) or "assumed" in one.source


@pytest.mark.parametrize(
    ("said", "instead", "words"),
    [
        ("tensor = false", "tensors = false", "$.runs.tensors = False: unknown key (did you mean tensor?)"),
        ("value = 1.25", "value = 0", "stack mine: products must be from 0.05 to 100, got 0.0; check the unit"),
        (
            "value = 2\n",
            "value = 2e6\n",
            "stack mine: products of hopper must be from 0.05 to 100, got 2000000.0; check the unit",
        ),
        (
            "value = 1.5",
            "value = 1500",
            "stack mine: context must be from 0 to 6.87195e+10, got 1610612736000.0; check the unit",
        ),
        ("value = 500", "value = 5e8", "stack mine: block_pass must be from 0 to 10, got 500.0; check the unit"),
        (
            "block_pass_us]\nvalue = 500",
            "stragglers]\nvalue = 3",
            "stack mine: stragglers must be from 0 to 1, got 3.0; check the unit",
        ),
        ('source = "my runs"\nfitted', "fitted", "source"),
        ("zero = [3]", "zero = [4]", "$.runs.zero"),
        ('precision = "fp32"', 'precision = "fp33"', "$.gradients.precision"),
        ('kind = "stack"', 'kind = "gpu"', 'a stack\'s file says kind = "stack"'),
        ("overheads.block_pass_us", "overheads.block_pass", "unknown key (did you mean block_pass_us?)"),
    ],
)
def test_what_a_file_cannot_say_is_one_line(tmp_path: Path, said: str, instead: str, words: str) -> None:
    """File, key, value and rule."""
    path = written(tmp_path, MINE.replace(said, instead))
    with pytest.raises(ProfileError) as told:
        load_stack(path)
    assert str(told.value).startswith(f"{path}: ")
    assert words in str(told.value)
    assert "\n" not in str(told.value)


def test_an_unknown_name_lists_the_choices() -> None:
    """As of accelerators and clusters."""
    with pytest.raises(ProfileError, match=r"stack 'megatron-cor' is not known.*megatron-core"):
        load_stack("megatron-cor")


@pytest.mark.parametrize(
    ("names", "least", "most"),
    [
        (
            (
                "products",
                "attention",
                "elementwise",
                "experts",
                "launches",
                "tensor_collectives",
                "replica_collectives",
            ),
            0.05,
            100.0,
        ),
        (("odd_heads", "casts"), 0.0, 100.0),
        (("block_pass",), 0.0, 10.0),
        (("exposed", "stragglers"), 0.0, 1.0),
        (("logits",), 0.25, 10.0),
        (("workspace", "context"), 0.0, 64.0 * 2**30),
        (("reserved",), 1.0, 4.0),
    ],
)
def test_a_constant_is_within_its_range(names: tuple[str, ...], least: float, most: float) -> None:
    """Its ends are taken: factors of a twentieth to a hundred, 10 s, shares, 64 GiB; nothing beyond them, on no generation."""
    for name in names:
        for value in (least, most):
            assert getattr(Stack(name="s", **{name: Constant(value)}), name).value == value  # type: ignore[arg-type]
        for value in (least - 1e-6, most * (1 + 1e-9)):
            for constant in (Constant(value), Constant(least, generations=(("ampere", Constant(value)),))):
                with pytest.raises(ValueError, match=r"check the unit|not negative"):
                    Stack(name="s", **{name: constant})  # type: ignore[arg-type]
