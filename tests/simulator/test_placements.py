"""Rules of placements: where stages lie, which families lie so, and what is refused."""

from __future__ import annotations

import pytest

from simulator import SCHEDULES, chains_of


@pytest.mark.parametrize(
    "name, stages, devices, chains",
    [
        ("straight", 3, 3, ((0, 1, 2),)),
        ("interleaved", 6, 3, ((0, 1, 2, 0, 1, 2),)),
        ("v", 6, 3, ((0, 1, 2, 2, 1, 0),)),
        ("wave", 8, 2, ((0, 1, 1, 0, 0, 1, 1, 0),)),
        ("bidirectional", 3, 3, ((0, 1, 2), (2, 1, 0))),
    ],
)
def test_placements(name: str, stages: int, devices: int, chains: tuple[tuple[int, ...], ...]) -> None:
    """Each placement puts its stages where its picture does."""
    assert chains_of(name, stages, devices) == chains


@pytest.mark.parametrize(
    "name, stages, devices, says",
    [
        ("spiral", 4, 4, "'spiral' is unknown; choices: straight, interleaved, v, wave, bidirectional"),
        ("straight", 8, 4, "'straight' has as many stages as devices, got 8 stages on 4 devices"),
        ("interleaved", 6, 4, "a whole number of stages per device"),
        ("v", 4, 4, "two stages per device"),
        ("wave", 12, 4, "an even number of stages per device"),
        ("bidirectional", 8, 4, "as many stages as devices"),
        ("straight", 10**9, 10**9, "a placement has at most 1,048,576 stages, got 1000000000"),
        ("straight", 0, 1, "^a placement has at least 1 stage and 1 device, got 0 stages and 1 devices$"),
        ("straight", 1, 0, "^a placement has at least 1 stage and 1 device, got 1 stages and 0 devices$"),
    ],
)
def test_placements_that_cannot_be(name: str, stages: int, devices: int, says: str) -> None:
    """A placement that the stages cannot have is refused in one line that says the rule."""
    with pytest.raises(ValueError, match=says):
        chains_of(name, stages, devices)


@pytest.mark.parametrize(
    ("placement", "stages", "devices", "names"),
    [
        ("straight", 3, 3, {"gpipe", "1f1b", "eager-1f1b", "seq1f1b", "zb-h1", "zb-h2", "1f1b-so"}),
        ("interleaved", 6, 3, {"interleaved-1f1b", "interleaved-zb", "looped-bfs"}),
        ("v", 6, 3, {"zb-v", "v-half", "v-min", "dualpipev", "hanayo"}),
        ("wave", 6, 3, {"zb-v", "v-half", "v-min", "dualpipev", "hanayo"}),
        ("wave", 12, 3, {"hanayo"}),
        ("bidirectional", 4, 4, {"chimera", "dualpipe"}),
    ],
)
def test_families_lie_where_their_placement_says(placement: str, stages: int, devices: int, names: set[str]) -> None:
    """With one stage per device none that is another family then; a wave of two stages per device is a V."""
    chains = chains_of(placement, stages, devices)
    overlapping = {
        name
        for name, family in SCHEDULES.items()
        if family.flush and not family.lanes and family.communication("overlapped") == "overlapped"
    }
    assert {name for name in overlapping if SCHEDULES[name].lies_on(chains)} == names
