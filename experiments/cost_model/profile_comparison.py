"""Profile comparison: measured seconds of a network beside predicted ones, layer group by layer group."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Group:
    """A layer with parameters and the layers without that follow it, in seconds of forward plus backward."""

    name: str
    measured: float
    predicted: float


@dataclass(frozen=True, slots=True)
class ProfileComparison:
    """One profile against its analytic twin; seconds, and relative errors (predicted / measured - 1).

    share_distance: half the sum over groups of |predicted share - measured share|: the part of the time that
        the model puts in the wrong group, 0 to 1
    recorded_tokens, recorded_error: the sentence length of the recorded tensors and the total's error at it
    """

    name: str
    minibatch: int
    measured_forward: float
    measured_backward: float
    predicted_forward: float
    predicted_backward: float
    share_distance: float
    groups: tuple[Group, ...]
    recorded_tokens: int | None = None
    recorded_error: float | None = None

    @property
    def error(self) -> float:
        """Relative error of the total."""
        measured = self.measured_forward + self.measured_backward
        return (self.predicted_forward + self.predicted_backward) / measured - 1.0

    @property
    def worst_group(self) -> Group:
        """The group whose share is furthest off."""
        measured = sum(group.measured for group in self.groups)
        predicted = sum(group.predicted for group in self.groups)
        return max(self.groups, key=lambda g: abs(g.predicted / predicted - g.measured / measured))
