"""Efficiency: what an iteration computes, of what its devices could, and what training costs.

Rules
- Model FLOP are three times the forward FLOP of the network, one for the forward and two for the backward, without what runs
  again. Forward FLOP are those of products and convolutions, the scores of attention counted whole, whatever a causal mask hides,
  and convolutions as direct ones, whatever a fast algorithm saves: these may be above the peak.
- MFU (Chowdhery et al. 2022, "PaLM") is model FLOP over what all devices of the cluster, used or not, do at their dense peak of
  the problem's precision in an iteration. HFU counts recomputation, too.
- The 6 N rule counts 6 FLOP per token and weight; of routed experts those weights that a token uses.
- Prices are of all devices of the cluster, used or not; energy is of those in use (`simulator.plan_energy`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hardware_profiles import optional_members, percent, shown
from simulator import Energy, OpKind, Outcome, PlanCosts, Problem, Workload

TOKENS, SAMPLES = 10**12, 10**9
"""Of how many tokens, or samples where these have no tokens, hours and cost are told."""

HIGHEST_PRICE = 1e6
"""Highest price per device and hour, in any currency, as in a cluster's file."""

Price = float | Mapping[str, float]
"""Price per device and hour: one for all, or one per accelerator name."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Figures of one iteration.

    seconds: of it; samples; tokens: per sample, 0 where it has none; unit: tokens, or what samples are
    devices: of the cluster
    model_flop, causal_flop: as the rules say, and with half of the scores of causal attention; 0 where a profile tells none
    parameter_flop: by the 6 N rule; 0 without tokens; hardware_flop: with recomputation
    peak_flops: FLOP/s of all devices at the problem's precision; 0 where a device states none
    price: of all devices per hour, None where it is not known; currency
    energy: of the devices in use; None where their power is not known
    """

    seconds: float
    samples: int
    tokens: int
    unit: str
    devices: int
    model_flop: float
    causal_flop: float
    parameter_flop: float
    hardware_flop: float
    peak_flops: float
    price: float | None
    currency: str
    energy: Energy | None

    @property
    def units_per_device(self) -> float:
        """Tokens, or samples where these have none, a second and device."""
        return (self.tokens or 1) * self.samples / self.seconds / self.devices if self.seconds else math.inf

    @property
    def amount(self) -> int:
        """Tokens, or samples where these have none, whose hours and cost are told."""
        return TOKENS if self.tokens else SAMPLES

    @property
    def device_hours(self) -> float:
        """Hours of devices that `amount` tokens (or samples) take."""
        return self.amount / self.units_per_device / 3600.0

    @property
    def cost(self) -> float | None:
        """Of `amount` tokens (or samples), in `currency`."""
        return None if self.price is None else self.device_hours / self.devices * self.price

    def share_of_peak(self, flop: float) -> float | None:
        """FLOP per iteration as a share of what all devices could do in its time; None if either is unknown."""
        possible = self.peak_flops * self.seconds
        return flop / possible if flop and possible else None

    def words(self, device: str) -> str:
        """MFU, where it is known, and tokens (or samples) per second and device, whose word is given."""
        mfu = self.share_of_peak(self.model_flop)
        known = [] if mfu is None else [f"MFU {percent(mfu)}"]
        drawn = [] if self.energy is None else [self.energy.words]
        return ", ".join([*known, f"{self.units_per_device:,.4g} {self.unit}/s per {device}", *drawn])

    def record(self) -> dict[str, Any]:
        """The figures by name, in base units; None where one is not known."""
        return {
            "devices": self.devices,
            "tokens_per_sample": self.tokens or None,
            "tokens_per_second_per_device": self.units_per_device if self.tokens else None,
            "samples_per_second_per_device": self.units_per_device / (self.tokens or 1),
            "model_flop": self.model_flop or None,
            "hardware_flop": self.hardware_flop or None,
            "peak_flops": self.peak_flops or None,
            "mfu": self.share_of_peak(self.model_flop),
            "mfu_causal": self.share_of_peak(self.causal_flop),
            "mfu_6n": self.share_of_peak(self.parameter_flop),
            "hfu": self.share_of_peak(self.hardware_flop),
            "unit": self.unit,
            "amount": self.amount,
            "device_hours": self.device_hours,
            "price_per_hour": self.price,
            "cost": self.cost,
            "currency": self.currency if self.price is not None else None,
            "joules_per_sample": self.energy and self.energy.joules_per_sample,
            "watts": self.energy and self.energy.watts,
            "joules_by_part": self.energy and dict(self.energy.parts),
        }


def efficiency(outcome: Outcome, price: Price | None = None) -> Efficiency:
    """The figures of a plan.

    price: in place of the cluster's, in its currency; ValueError for a negative one, and unless it names every accelerator
    """
    problem, workload = outcome.problem, outcome.problem.workload
    causal = sum(layer.flop for layer in workload.layers if layer.causal_tokens) / 2.0
    forward = workload.flop()
    return Efficiency(
        seconds=outcome.iteration_seconds,
        samples=problem.batch,
        tokens=workload.tokens,
        unit="tokens" if workload.tokens else f"{workload.sample}s",
        devices=len(problem.cluster.devices),
        model_flop=3.0 * forward * problem.batch,
        causal_flop=3.0 * (forward - causal) * problem.batch,
        parameter_flop=6.0 * used_parameters(workload) * workload.tokens * problem.batch,
        hardware_flop=3.0 * forward * problem.batch + _flop_again(outcome),
        peak_flops=peak_flops(problem),
        price=price_of_all(problem, price),
        currency=problem.cluster.currency or "USD",
        energy=outcome.energy,
    )


def used_parameters(workload: Workload) -> float:
    """Weights that a token uses: all, but of routed experts those that it is sent to; 0 without tokens."""
    if not workload.tokens:
        return 0.0
    routed = sum(layer.flop for layer in workload.layers if layer.experts) / (2.0 * workload.tokens)
    return routed + sum(layer.parameters for layer in workload.layers if not layer.experts)


def peak_flops(problem: Problem) -> float:
    """FLOP/s of all devices together at the problem's precision, as on their data sheets; 0 where one states none."""
    peaks = [optional_members(device).peak_flops.get(problem.precision, 0.0) for device in problem.cluster.devices]
    return float(sum(peaks)) if all(peaks) else 0.0


def _flop_again(outcome: Outcome) -> float:
    """FLOP per iteration of recomputed forwards."""
    costs, found = PlanCosts(outcome.problem, outcome.plan), 0.0
    flop = np.array([work.flop for work in costs.layers.works])  # of parts of layers that stages share, too
    for stage in range(len(outcome.plan.stages)):
        share = costs.layers.runs_again(costs.recomputation(stage))
        found += float((flop * share)[costs.layers_of(OpKind.RECOMPUTE, stage)].sum())
    return found * outcome.problem.batch


def price_of_all(problem: Problem, price: Price | None) -> float | None:
    """Of all devices per hour, None where nobody says; ValueError as in `efficiency`."""
    cluster = problem.cluster
    if price is None:
        return sum(cluster.prices) if cluster.prices else None
    names = dict.fromkeys(device.name for device in cluster.devices)
    each: Mapping[str, Any] = price if isinstance(price, Mapping) else dict.fromkeys(names, price)
    if set(each) != set(names):
        raise ValueError(
            f"price: needs one number, or one for each of {', '.join(names)}; got {', '.join(each) or 'none'}"
        )
    if wrong := [
        one for one in each.values() if not isinstance(one, int | float | np.number) or not 0 <= one <= HIGHEST_PRICE
    ]:
        said = f"{wrong[0]:g}" if isinstance(wrong[0], float) else shown(wrong[0])
        raise ValueError(f"price: must be from 0 to {HIGHEST_PRICE:g} per device and hour, got {said}")
    of_all: float = sum(each[device.name] for device in cluster.devices)
    return of_all
