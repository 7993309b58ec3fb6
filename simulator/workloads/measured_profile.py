"""Measured profile: the JSON file that `pipeplan profile` writes, and the workload that it describes.

One sample is the unit of sizes, seconds are of one pass over `samples` samples:

    {"format": "pipeplan-profile-1", "name": "mlp", "sample": "sample", "minibatch": 8, "bytes_per_element": 4,
     "measurement": {"device": "cpu", ...},
     "layers": [{"name": "0_Linear", "kind": "linear", "parameters": 2112, "flop": 4096, "output_elements": 64,
                 "stashed_elements": 32, "timings": [{"samples": 8, "forward_seconds": 1e-5,
                 "backward_seconds": 2e-5, "forward_spread": 0.03, "backward_spread": 0.04}]}],
     "edges": [[0, 1]]}
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from hardware_profiles import LAYER_KINDS, explained, read_bytes, shown
from simulator.workloads.layers import Layer, Workload
from simulator.workloads.network_files import WorkloadFileError, read_json

PROFILE_FORMAT = "pipeplan-profile-1"

STEADY_SPREAD = 0.2
"""Largest spread (as in `ProfileMeasurement`) of a steady run."""

# The upper end keeps sums finite.
_Amount = Annotated[float, msgspec.Meta(ge=0.0, le=1e18)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
_Index = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]


class _Table(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A JSON object that refuses keys it does not know."""


class LayerTiming(_Table, frozen=True, kw_only=True):
    """One layer at one size: medians over the repeats, and their interquartile range over the median."""

    samples: _Count
    forward_seconds: _Amount
    backward_seconds: _Amount
    forward_spread: _Amount
    backward_spread: _Amount


class ProfiledLayer(_Table, frozen=True, kw_only=True):
    """One layer; elements and FLOP per sample, as in `simulator.workloads.layers.Layer`."""

    name: _Text
    kind: Literal[LAYER_KINDS]  # type: ignore[valid-type]
    parameters: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    flop: _Amount
    output_elements: _Amount
    stashed_elements: _Amount
    timings: Annotated[list[LayerTiming], msgspec.Meta(min_length=1)]
    tied_to: Annotated[str, msgspec.Meta(max_length=500)] = ""
    tied_parameters: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0


_OF_LAYER = tuple(field.name for field in fields(Layer) if field.name in ProfiledLayer.__struct_fields__)
"""Fields that a layer has both in the file and in a workload."""


class WholePass(_Table, frozen=True, kw_only=True):
    """The whole model at one size, for comparison with the sum of its layers."""

    samples: _Count
    forward_seconds: _Amount
    backward_seconds: _Amount


class ProfileMeasurement(_Table, frozen=True, kw_only=True):
    """How it was measured.

    model: what was asked for; device, device_name: `cpu` or `cuda`, and what it calls itself
    input_shape: of one sample
    warm_up, repeats: passes of each layer before and during measurement
    spread: the largest, over sizes and directions, of (sum of the layers' interquartile ranges) / (sum of their medians)
    steady: whether `spread` is at most STEADY_SPREAD
    whole: medians of passes over the whole model
    """

    model: _Text
    device: _Text
    device_name: Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
    torch: _Text
    input_shape: list[_Count]
    warm_up: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    repeats: _Count
    spread: _Amount
    steady: bool
    whole: list[WholePass]


class MeasuredProfile(_Table, frozen=True, kw_only=True):
    """One file: the network's layers in topological order, what each took, and the edges between them."""

    format: Literal["pipeplan-profile-1"]
    name: _Text
    sample: _Text
    minibatch: _Count
    bytes_per_element: _Count
    measurement: ProfileMeasurement
    layers: Annotated[list[ProfiledLayer], msgspec.Meta(min_length=1)]
    edges: list[tuple[_Index, _Index]]

    def workload(self) -> Workload:
        """The profile as a workload of measured layers. ValueError if the layers and edges are no such graph."""
        layers = tuple(
            Layer(
                **{field: getattr(layer, field) for field in _OF_LAYER},
                measured=tuple((one.samples, one.forward_seconds, one.backward_seconds) for one in layer.timings),
            )
            for layer in self.layers
        )
        workload = Workload(
            self.name,
            layers,
            tuple(self.edges),
            self.sample,
            self.minibatch,
            self.bytes_per_element,
            measured_on=self.measurement.device_name,
        )
        if not workload.takes_time:
            raise ValueError("$.layers: no layer takes any time; at least one of its seconds must be above 0")
        return workload

    def to_json(self) -> str:
        """The file's text."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode() + "\n"


def read_measured_profile(path: str | Path) -> Workload:
    """Read a profile that `pipeplan profile` wrote as a workload of measured layers.

    Seconds between two measured sizes are interpolated (see `LayerCosts`). Raises WorkloadFileError (one line: file, key,
    value, rule) for a file that is missing, a directory, not JSON, or breaks a rule.
    """
    profile = load_measured_profile(path)
    try:
        return profile.workload()
    except ValueError as error:
        raise WorkloadFileError(f"{path}: {error}") from error


def load_measured_profile(path: str | Path) -> MeasuredProfile:
    """The file's content, measurement included. Raises WorkloadFileError."""
    document = read_json(Path(path))
    if not isinstance(document, dict) or document.get("format") != PROFILE_FORMAT:
        found = document.get("format", "(absent)") if isinstance(document, dict) else type(document).__name__
        rule = f"must be {PROFILE_FORMAT!r}, as pipeplan profile writes it"
        raise WorkloadFileError(f"{path}: $.format = {shown(found)}: {rule}", f"{path}: $.format: {rule}")
    try:
        return checked_profile(document)
    except WorkloadFileError as error:
        raise WorkloadFileError(f"{path}: {error}", f"{path}: {error.untold}") from None


def is_measured_profile(path: str | Path) -> bool:
    """Whether a file is a profile of `pipeplan profile`; False for a file that cannot be read."""
    try:
        return b'"pipeplan-profile-' in read_bytes(Path(path))[:1000]
    except OSError:
        return False


def checked_profile(document: dict[str, object]) -> MeasuredProfile:
    """A document in the file's form as a profile. Raises WorkloadFileError, without a file's name."""
    try:
        return msgspec.convert(document, MeasuredProfile)
    except msgspec.ValidationError as error:
        raise WorkloadFileError(*explained(str(error), document, MeasuredProfile)) from error
