"""Words: names and values as messages and figures show them, fit to print on one line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

MOST_MEANT = 100
"""Most characters of a name that are compared with known ones."""


def one_line(text: str) -> str:
    """The text with single spaces for all white space."""
    return " ".join(text.split())


def printable(text: str) -> str:
    """The text with what would move a cursor, ring a bell or reverse a line written as an escape: `\\x1b`."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def legible(name: str, most: int = 60) -> str:
    """A name as a figure or a line shows it: on one line, control characters written out, the middle left out of a long one."""
    text = printable(one_line(name))
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-(most // 2 - 1) :]}"


GIB = 2**30
"""Bytes of a GiB."""


def gibibytes(amount: float) -> str:
    """So many bytes in GiB, in four figures."""
    return f"{amount / GIB:.4g} GiB"


def percent(share: float, form: str = ".1f") -> str:
    """A share of 1 in per cent, `53.2 %`, in a form of `format`; none has no sign."""
    text = f"{100.0 * share:{form}}"
    return f"{text if text.strip('+-0.') else text.lstrip('+-')} %"


def brief(value: object, facts: str) -> str:
    """A `repr` in one short line: the value's type, and the facts that tell it from others."""
    return f"{type(value).__name__}({legible(facts, 160)})"


def shown(value: object, most: int = 60) -> str:
    """A value as a message shows it: cut where it is long."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested without end, or a whole number of thousands of digits
        text = f"a {type(value).__name__} that is too large to show"
    return text if len(text) <= most else f"{text[:most]}..."


def counted(count: int, word: str) -> str:
    """So many of them: `1 device`, `16 devices`, `2 micro-batches`."""
    plural = "es" if word.endswith(("ch", "s")) else "s"
    return f"{count} {word}{plural * (count != 1)}"


def unchosen(what: str, given: object, choices: Iterable[str]) -> str:
    """The line about a value that is none of the choices: the closest of them, if one is close, and all."""
    known = list(choices)
    return f"{what} {shown(given)} is unknown{nearest(given, known)}; choices: {', '.join(known)}"


def unknown(complaint: str, given: str, choices: Iterable[str]) -> str:
    """The complaint with the closest choice, if one is close, and all of them."""
    known = list(choices)
    return f"{complaint}{nearest(given, known)}; choose from {', '.join(known)}"


def nearest(given: object, known: Sequence[str]) -> str:
    """The hint at what was meant; nothing where no choice is close, and for what is far longer than all. Dashes in front, which
    all options have, are no likeness.
    """
    word = given[:MOST_MEANT].lower() if isinstance(given, str) else ""
    close = [name for name in known if word and name.lower().startswith(word)]
    if not close:
        from difflib import get_close_matches  # which help does not need

        bare = {name.lstrip("-"): name for name in known}
        close = [bare[one] for one in get_close_matches(word.lstrip("-"), bare, n=1, cutoff=0.5)]
    return f" (did you mean {close[0]}?)" if close else ""


@contextmanager
def blaming(
    error: type[Exception], where: object = "", of: type[Exception] | tuple[type[Exception], ...] = ValueError
) -> Iterator[None]:
    """Inside, an error `of` a kind becomes one of another kind, in its words behind those of where it comes from."""
    try:
        yield
    except of as inner:
        raise error(f"{where}: {inner}" if where else str(inner)) from None
