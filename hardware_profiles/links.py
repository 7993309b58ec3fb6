"""Links: cables between devices and switches, and the channels that messages occupy on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Literal

from hardware_profiles.accelerator import Amount, Positive, ShareOfPeak, check_figures
from hardware_profiles.fabrics import FABRICS, Fabric, FabricName, Operation, Protocol
from hardware_profiles.option_declarations import Bounds

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
    fabric: its kind, whose protocols and latencies collectives have; None: each step of a ring takes the latencies of its links
    collective_latency: seconds that an all-reduce over such links takes beside its bytes, in one server or between two, in place
        of its fabric's; 0: those
    gather, gather_latency: the same of a reduce-scatter and an all-gather in passes of their own, together, and of exchanges;
        0: as of an all-reduce
    sharing: what meets on it shares it so; None: as the cluster says
    scatter: the share that a reduce-scatter reaches; 0: as of an all-gather
    in_switch: the share of the bandwidth that sums inside the switch reach; 0: it cannot add
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
    fabric: FabricName | None = None
    scatter: Annotated[float, Bounds(ge=0, le=1)] = 0.0
    in_switch: Annotated[float, Bounds(ge=0, le=1)] = 0.0

    @property
    def shares(self) -> tuple[float, float, float]:
        """Share of the bandwidth that an all-reduce, a reduce-scatter and an all-gather reach."""
        gather = self.gather or self.collective
        return self.collective, self.scatter or gather, gather

    @property
    def latencies(self) -> tuple[float, float, float]:
        """Latency in seconds of an all-reduce, a reduce-scatter and an all-gather, as the link states them; 0: it states none."""
        half = (self.gather_latency or self.collective_latency) / 2
        return self.collective_latency, half, half

    def __post_init__(self) -> None:
        label = f"link {self.first} - {self.second}"
        if self.first == self.second:
            raise ValueError(f"{label}: a link joins two different nodes")
        if self.duplex not in ("full", "half"):
            raise ValueError(f"{label}: duplex is full or half: {self.duplex!r}")
        if self.sharing not in ("fair", "fifo", None):
            raise ValueError(f"{label}: sharing is fair or fifo: {self.sharing!r}")
        if self.fabric is not None and self.fabric not in FABRICS:
            raise ValueError(f"{label}: fabric is one of {', '.join(FABRICS)}: {self.fabric!r}")
        check_figures(label, self)


@dataclass(frozen=True, slots=True)
class Channel:
    """One direction of a link (both of a half-duplex one): what a transfer occupies.

    bandwidth: bytes/s that a lone transfer reaches; collective_bandwidths: bytes/s of a ring, by operation; latency: seconds
    latencies, sharing: as of a `Link`; fabric: its constants; in_switch: bytes/s of sums inside the switch, 0 where it cannot add
    """

    name: str
    bandwidth: float
    latency: float
    collective_bandwidths: tuple[float, float, float]
    latencies: tuple[float, float, float] = (0.0, 0.0, 0.0)
    sharing: Sharing | None = None
    fabric: Fabric | None = None
    in_switch: float = 0.0

    @property
    def collective_bandwidth(self) -> float:
        """Bytes/s of an all-reduce over a ring."""
        return self.collective_bandwidths[Operation.ALL_REDUCE]

    def protocol(self, operation: Operation, number: int, *, between: bool) -> Protocol | None:
        """Latencies of a protocol in a server, or between two; None where only the latency of a message is known."""
        if told := self.latencies[operation]:
            a_pass = told / operation.passes
            return Protocol(hop=a_pass, tree_hop=a_pass) if between else Protocol(base=a_pass)
        return None if self.fabric is None else self.fabric.protocol(operation, number)

    @property
    def own_fabric(self) -> Fabric | None:
        """The fabric that says its latencies; None if the link states its own."""
        return None if any(self.latencies) else self.fabric


def channels_of(links: Sequence[Link]) -> tuple[tuple[Channel, ...], dict[tuple[str, str], int]]:
    """Channels of the links, and the channel of each directed hop between two nodes."""
    channels: list[Channel] = []
    hops: dict[tuple[str, str], int] = {}
    media: dict[str, tuple[Link, int, int]] = {}
    for link in links:
        if link.shared is not None and link.shared in media:
            model, forth, back = media[link.shared]
            agreed = [one.name for one in fields(Link) if one.name not in ("first", "second", "shared")]
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
                channels.append(_channel(name, link))
            if link.shared is not None:
                media[link.shared] = (link, forth, back)
        hops[link.first, link.second] = forth
        hops[link.second, link.first] = back
    return tuple(channels), hops


def _channel(name: str, link: Link) -> Channel:
    """A channel of a link."""
    reduced, scattered, gathered = (link.bandwidth * share for share in link.shares)
    return Channel(
        name,
        link.bandwidth * link.point_to_point,
        link.latency,
        (reduced, scattered, gathered),
        link.latencies,
        link.sharing,
        link.fabric and FABRICS[link.fabric],
        link.bandwidth * link.in_switch,
    )
