"""FPGA: bounds of DSPs and DDR."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_profiles import (
    LAYER_KINDS,
    Accelerator,
    FieldProgrammableGateArray,
    Power,
    Precision,
    ProfileError,
    Work,
    load_accelerator,
)
from hardware_profiles.accelerator_files import FpgaFile
from hardware_profiles.fpga_division import divide

BOARDS = ("vcu118", "vcu129", "u280", "zcu102", "vck190")


def board(**changes: object) -> FieldProgrammableGateArray:
    """1,000 DSPs x 1 MAC at 100 MHz and half efficiency: 100 GFLOP/s; 1 MB on chip, 10 GB/s of DDR."""
    plain = FieldProgrammableGateArray(
        name="board",
        dsps=1000,
        clock=100e6,
        macs_per_cycle={"fp32": 1.0, "int8": 2.0},
        efficiency=0.5,
        on_chip_bytes=1e6,
        ddr_bytes=4e9,
        ddr_bandwidth=10e9,
        transceiver_bandwidth=1e9,
    )
    return replace(plain, **changes)


BOARD_FILE = """
kind = "fpga"
name = "b"
on_chip = {memory_mbit = 8}
ddr = {memory_gib = 1, bandwidth_gb_per_s = 10}
transceivers = {lanes = 1, gbps = 10}
[dsp]
count = 1000
clock_mhz = 100
macs_per_cycle_int8 = 1.0
macs_per_cycle_int4 = 2.0
[logic]
"""

SMALL = Work("convolution", 2e6, 1e3, 1e3, 1e4)
WEIGHTY = Work("linear", 2e3, 1e3, 1e3, 1e6)

works = st.builds(
    Work,
    kind=st.sampled_from(LAYER_KINDS),
    flop=st.floats(0.0, 1e12),
    input_elements=st.floats(1.0, 1e8),
    output_elements=st.floats(1.0, 1e8),
    parameters=st.one_of(st.just(0.0), st.floats(1.0, 1e9)),
)


def test_is_an_accelerator() -> None:
    """A board satisfies the protocol."""
    assert isinstance(board(), Accelerator)


def test_on_chip_layer_is_bound_by_its_dsps() -> None:
    """1e6 MACs per sample at 1,000 x 100 MHz x 0.5 take 20 us per sample; int8 packs two."""
    assert board().seconds(SMALL, 10, "forward", "fp32") == pytest.approx(200e-6)
    assert board().seconds(SMALL, 10, "forward", "int8") == pytest.approx(100e-6)


def test_backward_is_twice_the_macs() -> None:
    """Error and weight gradient take a forward's MACs each."""
    forward = board().seconds(SMALL, 1, "forward", "fp32")
    assert board().seconds(SMALL, 1, "backward", "fp32") == pytest.approx(2 * forward)


def test_weights_that_do_not_fit_stream_from_ddr() -> None:
    """4 MB of weights beside 1 MB on chip: 4 MB over 10 GB/s take 400 us, once a call."""
    assert board().seconds(WEIGHTY, 1, "forward", "fp32") == pytest.approx(400e-6)
    assert board().ddr_traffic(WEIGHTY, 8, "forward", "fp32") == 4e6


def test_weights_of_a_layer_alone_stream_and_those_of_a_stage_that_fits_stay() -> None:
    """A layer asked alone is one of a network that does not fit: 4 MB an op; 9 MB hold a stage of it, with its gradients."""
    roomy = board(on_chip_bytes=9e6)
    assert roomy.ddr_traffic(WEIGHTY, 8, "forward", "fp32") == 4e6
    assert roomy.stage_seconds([WEIGHTY], 8, "forward", "fp32") == pytest.approx(8 * 1e3 / 50e9)


def test_features_that_do_not_fit_move_for_every_sample() -> None:
    """8 MB of features a sample move over DDR, 40 kB of weights an op."""
    wide = Work("convolution", 2e6, 1e6, 1e6, 1e4)
    assert board().ddr_traffic(wide, 3, "forward", "fp32") == 4e4 + 3 * 8e6


def test_half_a_board_takes_twice_as_long() -> None:
    """A share divides DSPs, memory and bandwidth."""
    half = board(share=0.5)
    assert half.seconds(SMALL, 4, "forward", "fp32") == pytest.approx(2 * board().seconds(SMALL, 4, "forward", "fp32"))
    assert half.memory_bytes == board().memory_bytes / 2


@settings(deadline=None, max_examples=100)
@given(
    name=st.sampled_from(BOARDS),
    work=works,
    samples=st.integers(1, 512),
    phase=st.sampled_from(["forward", "input_gradient", "weight_gradient"]),
    precision=st.sampled_from(["fp32", "fp16", "int8"]),
)
def test_no_layer_beats_its_dsps_or_its_ddr(name: str, work: Work, samples: int, phase: str, precision: str) -> None:
    """On every shipped board a pass takes at least its MACs on all DSPs, and at least its DDR bytes at full rate."""
    fpga = load_accelerator(name)
    assert isinstance(fpga, FieldProgrammableGateArray)
    precision = precision if precision in fpga.precisions else "fp32"
    seconds = fpga.seconds(work, samples, phase, precision)
    if work.kind not in ("input", "reshape", "embedding") and (phase == "forward" or work.parameters):
        most = 2 * fpga.dsps * fpga.macs_per_cycle[precision] * fpga.clock
        assert seconds >= work.flop * samples / most * (1 - 1e-12)
    assert seconds >= fpga.ddr_traffic(work, samples, phase, precision) / fpga.ddr_bandwidth * (1 - 1e-12)


@settings(deadline=None, max_examples=60)
@given(work=works, samples=st.integers(1, 512), more=st.integers(1, 512))
def test_never_falls_as_samples_rise(work: Work, samples: int, more: int) -> None:
    """More samples never take less time."""
    for phase in ("forward", "backward"):
        seconds = board().seconds(work, samples, phase, "fp32")
        assert board().seconds(work, samples + more, phase, "fp32") >= seconds


@pytest.mark.parametrize(
    "changes",
    [
        {"dsps": 0},
        {"clock": -1.0},
        {"efficiency": 1.1},
        {"share": 0.0},
        {"macs_per_cycle": {}},
        {"macs_per_cycle": {"fp99": 1}},
    ],
)
def test_refuses_impossible_boards(changes: dict[str, object]) -> None:
    """Figures are above 0, shares at most 1, precisions known."""
    with pytest.raises(ValueError, match="board: "):
        board(**changes)


def test_refuses_precisions_without_a_rate() -> None:
    """A precision that the profile does not list is an error that lists the choices."""
    with pytest.raises(ValueError, match="board: the profile gives no rate for precision 'bf16'; it has fp32, int8"):
        board().seconds(SMALL, 1, "forward", "bf16")


def test_weights_and_features_that_do_not_fit_both_move() -> None:
    """4 MB of weights once a call, and 8 MB of features a sample beside them; 0.8 MB of features stay."""
    both = Work("linear", 2e6, 1e6, 1e6, 1e6)
    assert board().ddr_traffic(both, 3, "forward", "fp32") == 4e6 + 3 * 8e6
    assert board().seconds(both, 3, "forward", "fp32") == pytest.approx((4e6 + 3 * 8e6) / 10e9)
    narrow = Work("linear", 2e6, 1e5, 1e5, 1e6)
    assert board().ddr_traffic(narrow, 3, "forward", "fp32") == 4e6


def test_features_of_a_layer_alone_stay_if_they_fit() -> None:
    """1 MB holds features of 1 MB, not of 1.004 MB; weights of 0.6 MB stream either way."""
    fits, spills = (Work("linear", 2e6, features, 5e4, 1.5e5) for features in (2e5, 2.01e5))
    assert board().ddr_traffic(fits, 2, "forward", "fp32") == 6e5
    assert board().ddr_traffic(spills, 2, "forward", "fp32") == 6e5 + 2 * 4 * (2.01e5 + 5e4)


def test_a_gather_moves_rows() -> None:
    """An embedding whose table lies in DDR moves the rows that it uses; one on the chip nothing."""
    table = Work("embedding", 0.0, 10.0, 1000.0, 1e6)
    assert board().ddr_traffic(table, 2, "forward", "fp32") == 4 * 2 * (10 + 2 * 1000)


def test_short_sums_reach_less_of_the_array() -> None:
    """Sums of 9, 100 and 1,000 multiply-adds an output take 1 + 100 / 9, 2 and 1.1 times as long as endless ones."""
    device = board(reduction_half=100.0)
    for length, times in ((9, 1 + 100 / 9), (100, 2.0), (1000, 1.1)):
        work = Work("convolution", 2e6, 1e3, 1e6 / length, 1.0)
        endless = board().seconds(work, 1, "forward", "fp32")
        assert device.seconds(work, 1, "forward", "fp32") == pytest.approx(times * endless)
        assert device.stage_seconds([work], 3, "forward", "fp32") == pytest.approx(3 * times * endless)
        assert device.multiply_seconds(work, "backward", "fp32") == pytest.approx(2 * times * endless)


def test_dsps_go_where_sums_are_short() -> None:
    """Of two layers with as many multiply-adds the one with sums of 100 gets two DSPs for one of the one with endless sums."""
    works = [Work("convolution", 2e6, 1e3, 1e4, 1.0), Work("linear", 2e6, 1e3, 1.0, 1.0)]
    division = divide(board(dsps=300, reduction_half=100.0), works, "fp32")
    assert division.dsps.tolist() == [[200, 100]]


@pytest.mark.parametrize(
    ("precision", "size"), [("int8", 1.0), ("int4", 0.5), ("int3", 0.375), ("int2", 0.25), ("int1", 0.125)]
)
def test_narrow_elements_share_a_byte(precision: Precision, size: float) -> None:
    """Weights and features of less than eight bits: what moves, what stays on the chip, and the seconds of what DDR binds."""
    fpga = board(macs_per_cycle={precision: 1e6})
    assert fpga.ddr_traffic(WEIGHTY, 1, "forward", precision) == 1e6 * size
    assert fpga.seconds(WEIGHTY, 1, "forward", precision) == pytest.approx(1e6 * size / 10e9)
    assert divide(fpga, [WEIGHTY] * 3, precision, copies=1).on_chip.tolist() == [3e6 * size <= 1e6]


def test_look_up_tables_multiply_beside_the_dsps_and_without_them() -> None:
    """10,000 tables, 100 an int4 multiply-add beside two of each of 1,000 DSP blocks, 10 an int2 one that these do not have."""
    text = BOARD_FILE + "luts = 10_000\nluts_per_mac_int4 = 100\nluts_per_mac_int2 = 10\n"
    made = msgspec.toml.decode(text, type=FpgaFile).build()
    assert made.macs_per_cycle == {"int8": 1.0, "int4": pytest.approx(2.0 + 100 / 1000), "int2": pytest.approx(1.0)}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("ddr = {memory_gib = 1, bandwidth_gb_per_s = 10}\n", "", "$.ddr: a board has one of [ddr] and [hbm]"),
        (
            "ddr = ",
            "hbm = {memory_gib = 8, channels = 32, channel_gb_per_s = 14}\nddr = ",
            "$.ddr: a board has one of [ddr] and [hbm]",
        ),
        (
            "[logic]",
            "[engines]\ncount = 1\nclock_mhz = 100\nmacs_per_cycle_int8 = 1\n[logic]",
            "$.dsp: a board has one of [dsp] and [engines]",
        ),
        ("[logic]", "used = 1001\n[logic]", "$.dsp.used = 1001: must be at most count, 1000"),
        ("[logic]", "per_sample = 1001\n[logic]", "$.dsp.per_sample = 1001: must be at most those in use, 1000"),
        (
            "[logic]",
            "used = 800\nper_sample = 801\n[logic]",
            "$.dsp.per_sample = 801: must be at most those in use, 800",
        ),
        ("[logic]", "[logic]\nluts = 10_000", "$.logic: needs at least one rate, such as luts_per_mac_int4"),
    ],
)
def test_a_board_is_described_once_and_uses_what_it_has(old: str, new: str, said: str) -> None:
    """One line that names the key; all blocks may be in use, each sample on all of them."""
    assert old in BOARD_FILE
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        msgspec.toml.decode(
            BOARD_FILE.replace(old, new) + ("" if "luts" in new else "luts = 10\nluts_per_mac_int4 = 1\n"),
            type=FpgaFile,
        ).build()
    whole = BOARD_FILE.replace("[logic]", "used = 1000\nper_sample = 1000\n")
    assert msgspec.toml.decode(whole, type=FpgaFile).build().dsps == 1000


def test_parts_of_power_are_within_what_full_load_adds() -> None:
    """10 W idle and 30 W of parts want 40 W at least."""
    text = BOARD_FILE.replace("[logic]\n", "[power]\nidle_w = 10\ncompute_w = 20\nlink_w = 10\nfull_w = ")
    power = msgspec.toml.decode(f"{text}40", type=FpgaFile).build().power
    assert power == Power(10.0, 40.0, compute=20.0, link=10.0)
    for full, least in ((39, "idle_w and the parts together, 40"), (9, "idle_w, 10")):
        with pytest.raises(ValueError, match=rf"^\$\.power\.full_w = {full}: must be at least {least}$"):
            msgspec.toml.decode(f"{text}{full}", type=FpgaFile).build()


def test_peak_is_every_dsp_in_every_cycle() -> None:
    """1,000 DSPs x 1 MAC at 100 MHz: 200 GFLOP/s, twice that in int8, half of it for half a board."""
    assert board().peak_flops == {"fp32": 200e9, "int8": 400e9}
    assert board(share=0.5).peak_flops == {"fp32": 100e9, "int8": 200e9}


BY_PARTS = """
kind = "fpga"
name = "mine"
[dsp]
count = 1000
clock_mhz = 200
macs_per_cycle_int8 = 2
[on_chip]
{on_chip}
[ddr]
memory_gib = 4
bandwidth_gb_per_s = 19.2
[transceivers]
lanes = 4
gbps = 10
{link}
"""


@pytest.mark.parametrize(
    ("on_chip", "bits"),
    [("memory_mbit = 38", 38e6), ("bram_mbit = 11\nuram_mbit = 27", 38e6), ("uram_mbit = 27", 27e6)],
)
@pytest.mark.parametrize(("link", "share"), [("", 64 / 66), ('kind = "pcie"', 128 / 130), ("encoding = 0.8", 0.8)])
def test_memory_and_links_of_a_board_are_told_by_their_parts(
    on_chip: str, bits: float, link: str, share: float, tmp_path: Path
) -> None:
    """Block RAM and UltraRAM apart or together; the code of a link by its kind, or itself."""
    path = tmp_path / "board.toml"
    path.write_text(BY_PARTS.format(on_chip=on_chip, link=link))
    board = load_accelerator(path)
    assert isinstance(board, FieldProgrammableGateArray)
    assert board.on_chip_bytes == bits / 8.0
    assert board.transceiver_bandwidth == pytest.approx(4 * 10e9 * share / 8.0)


@pytest.mark.parametrize("on_chip", ["", "memory_mbit = 38\nuram_mbit = 27"])
def test_memory_of_a_board_is_said_once(on_chip: str, tmp_path: Path) -> None:
    """In one line that names the keys."""
    path = tmp_path / "board.toml"
    path.write_text(BY_PARTS.format(on_chip=on_chip, link=""))
    with pytest.raises(
        ProfileError, match=r"\$\.on_chip: says memory_mbit, or bram_mbit and uram_mbit, of which it has one"
    ):
        load_accelerator(path)
