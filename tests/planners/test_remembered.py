"""Answers that an object keeps."""

from __future__ import annotations

from planners.search.remembered import remembered


class Squares:
    """Notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    @remembered
    def square(self, number: int) -> int:
        """Of a number."""
        self.asked.append(number)
        return number * number

    @remembered
    def _cube(self, number: int) -> int:
        return number * self.square(number)


def test_each_object_is_asked_once_for_each_choice_of_arguments() -> None:
    """Another object, and another method, keep answers of their own."""
    one, two = Squares(), Squares()
    assert [one.square(3), one._cube(3), one.square(3), two.square(3), one.square(4)] == [9, 27, 9, 9, 16]
    assert (one.asked, two.asked) == ([3, 4], [3])
