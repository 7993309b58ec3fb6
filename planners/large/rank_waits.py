"""Rank waits: seconds for which the ranks of a shape wait for transfers.

The fill takes the transfers from the first rank to the last and back. With one stage per device every round waits for one further
transfer; with several each further lap begins when the one before has come back from the last rank.
"""

from __future__ import annotations

from planners.estimate.pipeline_seconds import rounds_and_fill
from planners.estimate.stage_costs import StageCosts
from planners.large.rank_groups import RankGroups
from planners.large.shapes import Shape


class RankWaits:
    """Waits of the ranks of one shape.

    seconds: of an iteration, in which ranks wait for transfers
    crossing: seconds of a round for which the busiest card, or cable, of a rank sends in both directions, beside what rounds wait
    """

    def __init__(self, shape: Shape, devices: RankGroups, costs: StageCosts) -> None:
        self.shape, self.devices = shape, devices
        self.seconds = self.crossing = 0.0
        if shape.pipeline == 1:
            return
        problem = devices.problem
        self._sent = costs.sent_bytes(shape.parallel) * shape.samples
        self._unlike = devices.unlike_links(shape)
        count = shape.microbatches(problem.batch)
        waited = self._waited(count)
        self.seconds = 2 * sum(number * self.way(rank) for rank, number in self._unlike.items()) + waited
        if problem.contention and (rounds := rounds_and_fill(count, shape.chunks)[0]):
            self.crossing = max(0.0, self._busiest() - waited / rounds)

    def way(self, rank: int, *, alone: bool = False) -> float:
        """Seconds of a transfer from a rank to the next; alone: as of `RankGroups.link`"""
        flow = self.devices.link(self.shape, rank, alone=alone)
        return flow.latency + self._sent / flow.bandwidth

    def _waited(self, count: int) -> float:
        """Seconds for which stages wait for transfers, beside those of the first micro-batch's way down and the last one's way
        up.

        Replicas that have waited for each other's first transfers send at other times from then on. count: micro-batches
        """
        shape, alone = self.shape, {rank: self.way(rank, alone=True) for rank in self._unlike}
        if shape.chunks == 1:
            return (count - 1) * max(alone.values())
        ways = sum(number * alone[rank] for rank, number in self._unlike.items())
        return 2 * (shape.chunks - 1) * (ways + self.way(shape.pipeline - 1, alone=True))

    def _busiest(self) -> float:
        """Seconds of a round for which the busiest card, or cable, sends; of two servers, or racks, neither sends in both
        directions but where a lap comes back.
        """
        shape, devices = self.shape, self.devices
        sends = {rank: 2 * shape.chunks - (devices.parts(shape, rank) == 2) for rank in self._unlike}
        return max(number * self._sent / devices.link(shape, rank).bandwidth for rank, number in sends.items())
