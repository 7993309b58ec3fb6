"""Links: cables between devices and switches, and the channels that messages occupy on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from hardware_profiles.accelerator import Amount, Positive, ShareOfPeak, check_figures
from hardware_profiles.options import Bounds

Duplex = Literal["full", "half"]

Sharing = Literal["fair", "fifo"]
"""How messages that meet on a link share it: in equal parts for each pair of devices (max-min fair), those of one pair one after
the other; or all of them one after the other, first come, first served."""


@dataclass(frozen=True, slots=True)
class Link:
    """A cable between two nodes (devices or switches), named by the nodes' names.

    bandwidth: bytes/s of the medium in one direction; latency: seconds
    duplex: `full` is one channel each way, `half` one channel that both directions share
    point_to_point, collective: share of the bandwidth that a lone transfer, and an all-reduce, reach
    collective_latency: seconds that an all-reduce over such links takes beside its bytes, in one server or between two, and
        again whenever the servers double; 0: those of every hop of its ring, one after the other
    gather, gather_latency: the same of a reduce-scatter and an all-gather in passes of their own, together, and of exchanges;
        0: as of an all-reduce
    sharing: what meets on it shares it so; None: as the cluster says
    shared: links with the same label are one medium and share its channels (a PCIe bus, a server's network
        card); a channel then belongs to the direction first -> second of each of them, or to both
    """

    first: str
    second: str
    bandwidth: Positive
    latency: Amount = 0.0
    duplex: Duplex = "full"
    point_to_point: ShareOfPeak = 1.0
    collective: ShareOfPeak = 1.0
    shared: str | None = None
    collective_latency: Amount = 0.0
    gather: Annotated[float, Bounds(ge=0, le=1)] = 0.0
    gather_latency: Amount = 0.0
    sharing: Sharing | None = None

    @property
    def gathering(self) -> Link:
        """The link for whom scatters and gathers are what all-reduces are for others."""
        if not (self.gather or self.gather_latency):
            return self
        figures = self.gather or self.collective, self.gather_latency or self.collective_latency
        return replace(self, collective=figures[0], collective_latency=figures[1], gather=0.0, gather_latency=0.0)

    def __post_init__(self) -> None:
        label = f"link {self.first} - {self.second}"
        if self.first == self.second:
            raise ValueError(f"{label}: a link joins two different nodes")
        if self.duplex not in ("full", "half"):
            raise ValueError(f"{label}: duplex is full or half: {self.duplex!r}")
        if self.sharing not in ("fair", "fifo", None):
            raise ValueError(f"{label}: sharing is fair or fifo: {self.sharing!r}")
        check_figures(label, self)


@dataclass(frozen=True, slots=True)
class Channel:
    """One direction of a link (both of a half-duplex one): what a transfer occupies.

    bandwidth: bytes/s that a lone transfer reaches; collective_bandwidth: bytes/s of an all-reduce; latency: seconds
    collective_latency, sharing: as of a `Link`
    """

    name: str
    bandwidth: float
    latency: float
    collective_bandwidth: float
    collective_latency: float = 0.0
    sharing: Sharing | None = None


def channels_of(links: Sequence[Link]) -> tuple[tuple[Channel, ...], dict[tuple[str, str], int]]:
    """Channels of the links, and the channel of each directed hop between two nodes."""
    channels: list[Channel] = []
    hops: dict[tuple[str, str], int] = {}
    media: dict[str, tuple[Link, int, int]] = {}
    for link in links:
        if link.shared is not None and link.shared in media:
            model, forth, back = media[link.shared]
            agreed = (
                *("bandwidth", "latency", "duplex", "point_to_point"),
                *("collective", "collective_latency", "gather", "gather_latency", "sharing"),
            )
            differing = [figure for figure in agreed if getattr(model, figure) != getattr(link, figure)]
            if differing:
                raise ValueError(
                    f"links that share {link.shared!r} are one medium, but {link.first} - {link.second} has another "
                    f"{differing[0]}: {getattr(link, differing[0])} against {getattr(model, differing[0])}"
                )
        else:
            label = link.shared or f"{link.first}-{link.second}"
            names = (label,) if link.duplex == "half" else (f"{label}:forth", f"{label}:back")
            forth, back = len(channels), len(channels) + len(names) - 1
            for name in names:
                figures = link.bandwidth * link.point_to_point, link.latency, link.bandwidth * link.collective
                channels.append(Channel(name, *figures, link.collective_latency, link.sharing))
            if link.shared is not None:
                media[link.shared] = (link, forth, back)
        hops[link.first, link.second] = forth
        hops[link.second, link.first] = back
    return tuple(channels), hops
