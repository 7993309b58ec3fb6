"""Paths: which value each names, what it is set to, and the one line about those that name none."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
import pytest

from hardware_profiles import SettingError, addresses_of, find_address, read_setting, set_in, settings_of, values_in
from hardware_profiles.addresses import _list


class Wire(msgspec.Struct, kw_only=True):
    one_of: ClassVar[tuple[tuple[str, ...], ...]] = (("bits", "bytes"),)
    bits: float | None = None
    bytes: float | None = None
    delay: Annotated[float, msgspec.Meta(ge=0)] = 0.5


class Rack(msgspec.Struct, kw_only=True):
    count: int = 1
    kind: str | None = None
    wire: Wire | None = None


class Site(msgspec.Struct, kw_only=True):
    name: str
    racks: list[Rack]
    wire: Wire | None = None
    level: Literal[0, 1, 2] = 0
    sizes: tuple[int, ...] = ()
    open: bool = True
    extras: dict[str, int | float | str] = {}


def test_a_setting_may_stand_alone() -> None:
    """A text is one setting, and no series of letters."""
    assert settings_of("a=1") == settings_of(["a=1"]) == (read_setting("a=1"),)


class Flat(msgspec.Struct, kw_only=True):
    factor: FlatConstant
    cost: float = 2.0


class FlatConstant(msgspec.Struct, kw_only=True):
    value: float
    eras: dict[str, EraConstant] = {}


class EraConstant(msgspec.Struct, kw_only=True):
    value: float


KNOWN = addresses_of({"site": (Site,), "chip[]": (Flat,)})


def tables() -> dict[str, Any]:
    """A site of two racks with two chips."""
    return {
        "site": {
            "name": "s",
            "racks": [{"count": 2, "wire": {"bits": 8.0}}, {"count": 3}],
            "wire": {"bytes": 1.0, "delay": 4},
            "extras": {"depth": 4},
        },
        "chip": {"a.1": {"factor": {"value": 1.0, "eras": {"new": {"value": 3.0}}}}, "b": {"factor": {"value": 5.0}}},
    }


def after(setting: str) -> tuple[dict[str, Any], list[str]]:
    """The tables after a setting, and its changes."""
    found, one = tables(), read_setting(setting)
    return found, [str(change) for change in set_in(found, find_address(one.path, KNOWN), one)]


@pytest.mark.parametrize(
    ("setting", "changes"),
    [
        ("site.wire.delay=+10%", ["site.wire.delay: 4 -> 4.4"]),
        (
            "wire.delay=*2",
            ["site.wire.delay: 4 -> 8"],
        ),  # of the site, which leaves out one key; the racks' leave out two
        ("racks.wire.delay=1", ["site.racks.0.wire.delay: 0.5 -> 1", "site.racks.1.wire.delay: 0.5 -> 1"]),
        ("racks.0.wire.bits=/4", ["site.racks.0.wire.bits: 8 -> 2"]),
        ("racks=+1", ["site.racks.0.count: 2 -> 3", "site.racks.1.count: 3 -> 4"]),
        ("racks[1]=-1", ["site.racks.1.count: 3 -> 2"]),
        ("racks.count=7", ["site.racks.0.count: 2 -> 7", "site.racks.1.count: 3 -> 7"]),
        (
            "factor=*2",
            [
                "chip[a.1].factor.value: 1 -> 2",
                "chip[a.1].factor.eras.new.value: 3 -> 6",
                "chip.b.factor.value: 5 -> 10",
            ],
        ),
        ("chip.factor.value=9", ["chip[a.1].factor.value: 1 -> 9", "chip.b.factor.value: 5 -> 9"]),
        ("chip[a.1].cost=*2", ["chip[a.1].cost: 2 -> 4"]),
        ("factor.eras.new.value=7", ["chip[a.1].factor.eras.new.value: 3 -> 7"]),
        ("sizes=1,2,3", ["site.sizes: [] -> [1, 2, 3]"]),
        ("sizes=[4]", ["site.sizes: [] -> [4]"]),
        ("sizes=0-2,7", ["site.sizes: [] -> [0, 1, 2, 7]"]),
        ("level=5", ["site.level: 0 -> 5"]),
        ("open=false", ["site.open: True -> False"]),
        ("name=7", ["site.name: s -> 7"]),
        ("level=2", ["site.level: 0 -> 2"]),
        ("extras.depth=*2", ["site.extras.depth: 4 -> 8"]),
        ("extras.width=wide", ["site.extras.width: none -> wide"]),
        ("racks.0.kind=b:2", ["site.racks.0.kind: none -> b:2"]),
    ],
)
def test_a_path_names_one_place(setting: str, changes: list[str]) -> None:
    """The address that leaves out fewest keys; every member of a list, or the chosen one; a table by its main key."""
    assert after(setting)[1] == changes


def test_a_value_takes_the_place_of_its_rival() -> None:
    """A wire says bits or bytes; what it is set to is what it says."""
    found, _ = after("site.wire.bits=16")
    assert found["site"]["wire"] == {"bits": 16, "delay": 4}


def test_only_whole_numbers_are_written_as_ranges() -> None:
    """Of texts `0-2` is one."""
    assert _list("0-2, 5", whole=True) == [0, 1, 2, 5]
    assert _list("0-2, 5", whole=False) == ["0-2", 5]


def test_a_whole_number_stays_whole() -> None:
    """Half as many racks again are three, not 3.0; of five there would be seven and a half."""
    assert after("racks.0.count=+50%")[0]["site"]["racks"][0] == {"count": 3, "wire": {"bits": 8.0}}
    with pytest.raises(SettingError, match=r"racks.1.count=\+50%: 3 becomes 4.5, where a whole number is wanted"):
        after("racks.1.count=+50%")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("delay", "'delay' must be PATH=VALUE"),
        ("=3", "must be PATH=VALUE"),
        ("wire.delay=", "must be PATH=VALUE"),
        ("wire.dely=3", "'wire.dely' names no value; near it: site.racks.wire.delay, site.wire.delay"),
        ("zzz=3", "'zzz' names no value; the first key is one of site, chip"),
        ("racks.wire=3", "'racks.wire' names no value, but a table: site.racks.wire.bits"),
        ("racks.0.wire=3", "'racks.0.wire' names no value, but a table: site.racks.wire.bits"),
        ("chip.zzz=3", "'chip.zzz' names no value; near it: chip.factor.value, chip.factor.eras.value, chip.cost"),
        *(
            (f"{path}=3", f"'{path}' is no path, as a.b or a[member].b; near it: site.level")
            for path in (".level", "level.")
        ),
        ("site..level=3", "'site..level' is no path, as a.b or a[member].b; near it: site.level"),
        ("[level]=3", "'[level]' is no path"),
        ("racks.[0].count=3", "'racks.[0].count' is no path, as a.b or a[member].b; near it: site.racks.count"),
        ("racks[0]count=3", "'racks[0]count' is no path"),
        ("racks[].count=3", "'racks[].count' is no path"),
        ("racks[0.count=3", "'racks[0.count' is no path"),
        ("racks]0[.count=3", "'racks]0[.count' is no path"),
        ("racks[[0]].count=3", "'racks[[0]].count' is no path"),
        ("..=3", "'..' is no path, as a.b or a[member].b; the first key is one of site, chip"),
        ("racks. count=3", "'racks. count' names no value; near it: site.racks.count"),
        ("racks [0].count=3", "'racks [0].count' names no value; near it: site.racks.count"),
        ("racks.-1.count=3", "'racks.-1.count' names no value; near it: site.racks.count"),
        ("racks.\u0661.count=3", "racks.١.count=3: site.racks has no '١'; there: 0, 1"),
        ("racks.01.count=3", "racks.01.count=3: site.racks has no '01'; there: 0, 1"),
        ("level.0=3", "'level.0' names no value; near it: site.level"),
        ("racks.5.count=3", "racks.5.count=3: site.racks has no '5'; there: 0, 1"),
        ("chip[c].cost=3", "chip[c].cost=3: chip has no 'c'; there: a.1, b"),
        (
            "site.wire.bits=*2",
            "site.wire.bits=*2: there is no number to change, its file says bytes; give the value itself",
        ),
        (
            "racks.1.wire.bits=*2",
            "racks.1.wire.bits=*2: there is no number to change, its file says none; give the value itself",
        ),
        ("name=", "must be PATH=VALUE"),
        ("wire.delay=*x", "wire.delay=*x: a change is +10%, -10%, *2, /2, +8 or -8: 'x' is not a number"),
        ("wire.delay=/0", "wire.delay=/0: divides by 0"),
    ],
)
def test_what_names_nothing_is_told(setting: str, said: str) -> None:
    """One line with the path, and the nearest choices."""
    with pytest.raises(SettingError) as caught:
        after(setting)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["1_000", "0x10", "1_0.5", "٣"])
def test_a_number_is_in_plain_digits(text: str) -> None:
    """Any other is a text, which the file's type refuses."""
    tables = after(f"site.wire.delay={text}")[0]
    assert tables["site"]["wire"]["delay"] == text


def test_values_are_read_by_the_paths_that_set_them() -> None:
    """Every path that is listed names the value that is listed beside it: setting it to that changes nothing."""
    found = tables()
    listed = values_in(found, KNOWN)
    assert listed["site.racks.0.wire.bits"] == 8.0
    assert listed["site.wire.bits"] is None
    assert listed["chip[a.1].cost"] == 2.0
    for path, value in listed.items():
        if value is not None:
            (setting,) = settings_of({path: value})
            for change in set_in(found, find_address(path, KNOWN), setting):
                assert (change.address, change.before) == (path, change.after)
