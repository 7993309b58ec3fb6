"""Cluster plots: devices, switches and links of a cluster, by their bandwidths or by what a plan loads them with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import hypot
from typing import Any

import matplotlib as mpl
import networkx
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch

from experiments.report.drawn_cluster import DrawnCluster, DrawnLink, DrawnNode, drawn_cluster
from hardware_profiles import Cluster, counted, legible
from simulator import LinkLoads
from simulator.results.figures import BLUE, FAINT, GREEN, INK, ORANGE, legend_below, noted, panels

DEVICE_COLORS = (BLUE, GREEN, ORANGE, "#8e5aa8", "#c0395a", "#3fae8c", "#b08d1a")
"""Of kinds of accelerators; then again."""

LINK_COLORS = ("#5b6770", "#b3560f", "#2b7a4b", "#7b3f9d", "#a3283e", "#1f6f8b")
"""Of rates of links, the fastest first; then again."""

LOADS = "YlOrRd"
"""Colours of loads."""

IDLE_LINK = "#d0d5da"
WHITE = {"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}


def draw(cluster: Cluster, loads: LinkLoads | None = None) -> Figure:
    """A picture of a cluster: without loads links are coloured by their rates, with them by how busy a plan keeps them."""
    drawn = drawn_cluster(cluster, loads)
    left, right, low, high = _corners(drawn)
    scale = min(0.9, 15.0 / (right - left), 10.0 / (high - low))
    figure, ((axes,),) = panels(max(6.5, (right - left) * scale + 0.4), max(2.6, (high - low) * scale + 1.3))
    axes.set(xlim=(left, right), ylim=(low, high), aspect="equal")
    axes.set_axis_off()
    picture = _Picture(axes, drawn, max(0.45, min(1.0, scale / 0.75)))
    picture.servers()
    handles = picture.rates(cluster) if loads is None else picture.loads(figure)
    picture.named_rates()
    handles += picture.devices(cluster) + picture.switches()
    count = f"{cluster.counted_devices} in {counted(len(cluster.servers), 'server')}"
    title = legible(f"{cluster.name}: {count}, {counted(len(cluster.links), 'link')}", 110)
    figure.suptitle(f"{title}\n{drawn.note}" if drawn.note else title, x=0.01, ha="left", fontsize=10, color=INK)
    legend_below(figure, min(4, len(handles)), handles, [handle.get_label() for handle in handles])
    return figure


def _corners(drawn: DrawnCluster) -> tuple[float, float, float, float]:
    """Left, right, lower and upper end of all that is drawn, arcs among it."""
    places = {node.name: node.place for node in drawn.nodes}
    xs, ys = map(list, zip(*places.values(), strict=True))
    for link in drawn.links if any(link.bent for link in drawn.links) else ():
        (x0, y0), (x1, y1) = places[link.first], places[link.second]
        rise = _rise(x1 - x0, y1 - y0) if link.bent else 0.0
        xs.append((x0 + x1) / 2 - rise * (x0 == x1))
        ys.append((y0 + y1) / 2 + rise * (x0 != x1))
    for server in drawn.servers:
        xs += [server.low[0], server.high[0]]
        ys += [server.low[1] - 0.5 * (server.count > 1), server.high[1]]
    return min(xs) - 0.5, max(xs) + 0.9, min(ys) - 0.5, max(ys) + 0.5


def _rise(wide: float, tall: float) -> float:
    """How far the middle of an arc is from the straight line between its ends."""
    return 0.3 + 0.07 * hypot(wide, tall)


def _rate_words(bandwidth: float) -> str:
    rate = bandwidth / 1e9
    return f"{rate:,.0f} GB/s" if rate >= 1000 else f"{rate:.4g} GB/s"


class _Picture:
    """A drawing of a cluster in a panel; size: of marks and letters, 1 for few of them."""

    def __init__(self, axes: Axes, drawn: DrawnCluster, size: float) -> None:
        self.axes, self.drawn, self.size = axes, drawn, size
        self.places = {node.name: node.place for node in drawn.nodes}
        self.graph: networkx.Graph[str] = networkx.Graph([(link.first, link.second) for link in drawn.links])
        self.graph.add_nodes_from(self.places)
        self.kinds = sorted({(link.bandwidth, link.latency) for link in drawn.links}, key=lambda one: (-one[0], one[1]))

    def letters(self, points: float) -> float:
        """Size of letters that would be of so many points in a small picture."""
        return max(6.0, points * self.size)

    def _edges(self, links: Sequence[DrawnLink], colors: Sequence[Any], widths: Sequence[float]) -> None:
        """Draw links, those that would run through other nodes as arcs above, or to the left."""
        straight = [number for number, link in enumerate(links) if not link.bent]
        for chosen in (straight, *([number] for number, link in enumerate(links) if link.bent)):
            for number in chosen[:1]:
                link = links[number]
                first, second = sorted((link.first, link.second), key=lambda node: self.places[node])
                (x0, y0), (x1, y1) = self.places[first], self.places[second]
                bend = -2.0 * _rise(x1 - x0, y1 - y0) / max(0.1, hypot(x1 - x0, y1 - y0)) * link.bent
                ends = [(first, second)] if link.bent else [(links[one].first, links[one].second) for one in chosen]
                networkx.draw_networkx_edges(
                    self.graph,
                    self.places,
                    edgelist=ends,
                    edge_color=[colors[one] for one in chosen],
                    width=[widths[one] * (0.75 if link.bent else 1.0) for one in chosen],
                    alpha=0.75 if link.bent else 1.0,
                    arrows=True,
                    arrowstyle="-",
                    connectionstyle=f"arc3,rad={bend}" if link.bent else "arc3",
                    node_size=0,
                    ax=self.axes,
                )

    def rates(self, cluster: Cluster) -> list[Line2D]:
        """Draw links by their rates; of each, how many the cluster has, and on how many media that links share."""
        handles, counts = [], Counter((link.bandwidth, link.latency) for link in cluster.links)
        for number, (bandwidth, latency) in enumerate(self.kinds):
            own = [link for link in self.drawn.links if (link.bandwidth, link.latency) == (bandwidth, latency)]
            color, width = LINK_COLORS[number % len(LINK_COLORS)], max(1.0, 3.2 - 0.8 * number) * self.size
            self._edges(own, [color] * len(own), [width] * len(own))
            words = f"{counted(counts[bandwidth, latency], 'link')} of {_rate_words(bandwidth)}"
            words += f", {latency * 1e6:.3g} µs" * (latency > 0.0)
            media = {link.shared for link in cluster.links if (link.bandwidth, link.latency) == (bandwidth, latency)}
            words += f", on {len(media)} shared media" * (None not in media and len(media) < counts[bandwidth, latency])
            handles.append(Line2D([], [], color=color, linewidth=max(1.2, width), label=words))
        return handles

    def loads(self, figure: Figure) -> list[Line2D]:
        """Draw links by their loads, the busiest on top and widest, with a scale."""
        links = sorted(self.drawn.links, key=lambda link: link.busy or 0.0)
        most = (links[-1].busy if links else 0.0) or 1.0
        colors, shares = _shades(), [link.busy or 0.0 for link in links]
        shades = [colors(share / most) if share else IDLE_LINK for share in shares]
        self._edges(links, shades, [self.size * (1.0 + 5.0 * share / most) for share in shares])
        bar = figure.colorbar(ScalarMappable(Normalize(0.0, 100 * most), colors), ax=self.axes, shrink=0.8, pad=0.01)
        bar.set_label("part of an iteration for which\nthe link is busy, %", fontsize=9)
        idle = Line2D([], [], color=IDLE_LINK, linewidth=1.2, label="link that carries nothing")
        return [idle] if 0.0 in shares else []

    def named_rates(self) -> None:
        """Write each rate at one of its links."""
        for rate in self.kinds:
            own = [link for link in self.drawn.links if (link.bandwidth, link.latency) == rate]
            link = next((one for one in own if not one.bent), own[0])
            (x0, y0), (x1, y1) = self.places[link.first], self.places[link.second]
            look: dict[str, Any] = {"ha": "center", "va": "center", "bbox": WHITE, "zorder": 5, "color": INK}
            words = _rate_words(rate[0])
            self.axes.text((x0 + x1) / 2, (y0 + y1) / 2, words, fontsize=self.letters(8), **look)

    def servers(self) -> None:
        """Draw the frames of servers, and for how many each stands."""
        for server in self.drawn.servers:
            (x0, y0), (x1, y1) = server.low, server.high
            look: dict[str, Any] = {
                "boxstyle": "round,pad=0.02,rounding_size=0.15",
                "facecolor": "#f5f7f9",
                "edgecolor": "#c9d0d7",
            }
            self.axes.add_patch(FancyBboxPatch((x0, y0), x1 - x0, y1 - y0, linewidth=1, zorder=0, **look))
            if server.count > 1:
                below: dict[str, Any] = {"ha": "right", "va": "top", "color": INK}
                self.axes.text(x1, y0 - 0.08, f"× {server.count}", fontsize=self.letters(12), **below)

    def _times(self, node: DrawnNode) -> str:
        """For how many nodes of a server, or of all, one stands, if for several."""
        times = node.count // node.servers
        return f" × {times}" if times > 1 else ""

    def devices(self, cluster: Cluster) -> list[Line2D]:
        """Draw devices as squares with their ids, a colour for each kind."""
        ids = {node: number for number, node in enumerate(cluster.nodes)}
        handles = []
        kinds = dict.fromkeys(node.accelerator for node in self.drawn.nodes if node.accelerator)
        for number, kind in enumerate(kinds):
            own, color = [one for one in self.drawn.nodes if one.accelerator == kind], DEVICE_COLORS[number % 7]
            names, points = [one.name for one in own], 330 * self.size**2
            networkx.draw_networkx_nodes(
                self.graph, self.places, names, node_size=points, node_color=color, node_shape="s", ax=self.axes
            )
            for one in own:
                inside: dict[str, Any] = {"ha": "center", "va": "center", "color": "white", "zorder": 6}
                self.axes.text(*one.place, str(ids[one.name]), fontsize=max(5.0, 8 * self.size), **inside)
                look: dict[str, Any] = {
                    "fontsize": self.letters(9),
                    "ha": "left",
                    "va": "center",
                    "color": INK,
                    "bbox": WHITE,
                }
                if self._times(one):
                    noted(self.axes, self._times(one).strip(), one.place, (11 * self.size + 2, 0), zorder=7, **look)
            handles.append(Line2D([], [], color=color, marker="s", linestyle="", markersize=8, label=kind))
        return handles

    def switches(self) -> list[Line2D]:
        """Draw switches as discs with their names, below the disc where links lead up only."""
        own = [one for one in self.drawn.nodes if not one.accelerator]
        names, points = [one.name for one in own], 210 * self.size**2
        if own:
            networkx.draw_networkx_nodes(
                self.graph,
                self.places,
                names,
                node_size=points,
                node_color="white",
                edgecolors=FAINT,
                ax=self.axes,
            )
        for one in own:
            lower = all(self.places[other][1] > one.place[1] for other in self.graph.neighbors(one.name))
            look: dict[str, Any] = {"fontsize": self.letters(8), "color": FAINT, "bbox": WHITE, "zorder": 7}
            look |= {"va": "top", "ha": "center"} if lower else {"va": "center", "ha": "left"}
            off = (0.0, -9 * self.size) if lower else (10 * self.size + 1, 7 * self.size)
            words = one.name.partition(".")[2] or one.name
            noted(self.axes, legible(words, 18) + self._times(one), one.place, off, **look)
        mark: dict[str, Any] = {"marker": "o", "markerfacecolor": "white", "markersize": 8}
        return [Line2D([], [], color=FAINT, linestyle="", label="switch", **mark)] if own else []


def _shades() -> Colormap:
    """Colours of loads from none to the most, none of them as pale as the page."""
    whole = mpl.colormaps[LOADS]
    return ListedColormap(whole([0.2 + 0.8 * one / 255 for one in range(256)]))
