"""Load: find accelerators, clusters and stacks by name or path, and say in one line what is wrong with a file.

A name is looked up in the user's folder (`$PIPEPLAN_PROFILES`, else `~/.config/pipeplan`; its `accelerators`, `clusters` and
`stacks` subfolders), then among the files shipped here, then in the entry-point groups `pipeplan.accelerators`,
`pipeplan.clusters` and `pipeplan.stacks`. What contains a slash or ends in `.toml` is a path.
"""

from __future__ import annotations

import importlib.resources
import math
import os
import re
import tomllib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources.abc import Traversable
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar, get_args

import msgspec

from hardware_profiles.accelerator import Accelerator, optional_members
from hardware_profiles.accelerator_files import AcceleratorFile, ChipFile, GraphicsProcessorFile
from hardware_profiles.chips import CHIPS, chip_of, inherited
from hardware_profiles.cluster import Cluster, ClusterSource
from hardware_profiles.cluster_files import CompactFile, FindAccelerator, GraphFile, build_graph
from hardware_profiles.compact_clusters import build_compact
from hardware_profiles.documents import explained
from hardware_profiles.error_files import ErrorsFile
from hardware_profiles.fields import path_text
from hardware_profiles.gpu import GraphicsProcessor
from hardware_profiles.numbers import MOST_DEVICES
from hardware_profiles.plugins import PluginError, plugged_in
from hardware_profiles.prediction_errors import ErrorClass, Figure, PlanKind, PredictionError, error_of_class
from hardware_profiles.ranges import doubts, impossible
from hardware_profiles.reading import FileError, read_bytes, referred, remembering
from hardware_profiles.stack import GENERIC, Stack
from hardware_profiles.stack_files import StackFile
from hardware_profiles.words import counted, gibibytes, nearest, one_line, percent, shown, unknown

Built = TypeVar("Built")

Offer = Accelerator | Cluster | Stack | Traversable
"""What a name stands for: an object of an entry point, or a file."""

_OFFERED: dict[type, str] = {Accelerator: "an accelerator", Cluster: "a cluster", Stack: "a stack"}

FileKind = Literal["accelerator", "cluster", "stack"]
PROFILES = "PIPEPLAN_PROFILES"
"""Variable of the environment that names folders of the user's own machines, accelerators and stacks."""

FOLDERS: dict[FileKind, str] = {"accelerator": "accelerators", "cluster": "clusters", "stack": "stacks"}
_ACCELERATOR_KINDS = tuple(str(one.__struct_config__.tag) for one in get_args(AcceleratorFile))

_DEEP_KEY = re.compile(
    r"""(?<![\w.-]) (?: (?: [\w-]++ | "(?:[^"\\\n]|\\.)*+" | '[^'\n]*+' ) [ \t]*+ \. [ \t]*+ ){16}""", re.VERBOSE
)
"""A key of more parts than any file has: their number squared is what reading them takes."""

MEASURED = ("v100-sxm2", "a100-80", "b200")
"""GPUs whose efficiencies come from measured kernels, by rising peaks: between theirs are those of other GPUs."""


class ProfileError(FileError):
    """A profile that cannot be found or read: one line with file, path of the key, value, rule and choices."""


class ProfileWordsError(ProfileError):
    """A malformed name of a profile (a name or `name:count`): wrong as written, whatever profiles exist."""


class UnknownProfileError(ProfileWordsError):
    """A name that no shipped file, user folder or installed package knows; the message lists the choices."""


# ---------------------------------------------------------------------------------------------------- public


def load_accelerator(name_or_path: str | os.PathLike[str]) -> Accelerator:
    """The accelerator of that name, or in that TOML file. Raises ProfileError."""
    text = path_text("accelerator", name_or_path)
    found = _find("accelerator", text)
    return _read_accelerator(found) if isinstance(found, Traversable) else _wanted(Accelerator, found, text)  # type: ignore[type-abstract]


def load_cluster(name_or_path: str | os.PathLike[str]) -> Cluster:
    """The cluster of that name, or in that TOML file. Raises ProfileError.

    `name:count` (or `file.toml:count`) takes `count` servers in place of the number in the file, as `dgx-a100:4`.
    """
    text, count = _split_count(path_text("cluster", name_or_path))
    found = _find("cluster", text)
    if isinstance(found, Cluster) and count is not None:
        raise ProfileWordsError(f"{text}:{count}: cluster {text!r} is an object of an entry point and does not scale")
    cluster = _read_cluster(found, count) if isinstance(found, Traversable) else _wanted(Cluster, found, text)
    name = _lasting(text)
    return remembering(cluster, ClusterSource(name if count is None else f"{name}:{count}"))


def load_stack(name_or_path: str | os.PathLike[str]) -> Stack:
    """The stack of that name, or in that TOML file. Raises ProfileError."""
    text = path_text("stack", name_or_path)
    found = _find("stack", text)
    stack = _read_stack(found) if isinstance(found, Traversable) else _wanted(Stack, found, text)
    return remembering(stack, _lasting(text))


def read_errors(source: str | os.PathLike[str] | Traversable) -> dict[str, tuple[ErrorClass, ...]]:
    """The classes of prediction errors of a file, by the stacks' names. Raises ProfileError."""
    place = source if isinstance(source, Traversable) else Path(source)
    file: ErrorsFile = _convert(place, _read_toml(place), ErrorsFile)
    return _build(place, file, file.build)


@cache
def shipped_errors() -> dict[str, tuple[ErrorClass, ...]]:
    """The classes of the shipped stacks, by name."""
    return read_errors(importlib.resources.files("hardware_profiles") / "errors.toml")


def errors_of(stack: Stack) -> tuple[ErrorClass, ...]:
    """The classes of a stack: its own file's, or those that its name has among the shipped ones."""
    return stack.errors or shipped_errors().get(stack.name, ())


def prediction_error(
    figure: Figure, stack: Stack, accelerators: Iterable[Accelerator], plan: PlanKind
) -> PredictionError:
    """The error of the narrowest class of a stack that fits; the widest of those near it, or of all, where none does.

    accelerators: that a plan uses, of which the widest counts; one whose kind of chip alone tells its shares has at least the
        spread of its kind
    """
    return error_of_class(figure, stack.name, errors_of(stack), shipped_errors(), accelerators, plan)


def stack_table(name_or_path: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of a stack's file. Raises ProfileError, also for a stack that is an object of an entry point."""
    text = path_text("stack", name_or_path)
    found = _find("stack", text)
    if not isinstance(found, Traversable):
        raise ProfileWordsError(f"stack {text!r} is an object of an entry point: it has no file")
    _read_stack(found)
    return _read_toml(found)


@dataclass(frozen=True, slots=True)
class MachineTables:
    """What the files of a cluster and of its accelerators say, to be changed before a cluster is made of it.

    source: the cluster's file; cluster: its table; accelerators: those of its accelerators, by the names that it has for them
    sources: their files
    """

    source: Traversable
    cluster: dict[str, Any]
    accelerators: dict[str, dict[str, Any]]
    sources: dict[str, Traversable]

    @property
    def forms(self) -> dict[str, tuple[type, ...]]:
        """The declared tables of a cluster and of accelerators of these kinds."""
        kinds = {table.get("kind") for table in self.accelerators.values()}
        forms = (one for one in get_args(AcceleratorFile) if one.__struct_config__.tag in kinds)
        return {
            "cluster": (GraphFile if "devices" in self.cluster else CompactFile,),
            "accelerator[]": tuple(forms),
        }

    def build(self) -> Cluster:
        """The cluster of the tables. Raises ProfileError as `load_cluster`."""

        def find(name: str, where: str) -> Accelerator:
            return _accelerator_of(self.sources[name], self.accelerators[name])

        return _cluster_of(self.source, self.cluster, find)


MACHINE_FORMS: dict[str, tuple[type, ...]] = {
    "cluster": (CompactFile, GraphFile),
    "accelerator[]": get_args(AcceleratorFile),
}
"""The declared tables of all clusters and accelerators."""


def machine_tables(name_or_path: str | os.PathLike[str]) -> MachineTables:
    """The tables of a cluster and its accelerators; `name:count` has its count in them.

    Raises ProfileError as `load_cluster`, also for objects of entry points, which have no tables.
    """
    text, count = _split_count(path_text("cluster", name_or_path))
    source = _find("cluster", text)
    if not isinstance(source, Traversable):
        raise ProfileWordsError(
            f"cluster {text!r} is an object of an entry point: it has no file whose values could change"
        )
    table = _read_toml(source)
    if count is not None:
        table["servers"][0]["count"] = count
    return tables_with_accelerators(source, table)


def tables_with_accelerators(source: Traversable, cluster: dict[str, Any]) -> MachineTables:
    """The table of a cluster with those of the accelerators that it names. Raises ProfileError as `machine_tables`."""
    file: CompactFile | GraphFile = _convert(source, cluster, GraphFile if "devices" in cluster else CompactFile)
    sources: dict[str, Traversable] = {}
    tables: dict[str, dict[str, Any]] = {}
    for name, where in file.named().items():
        with referred(f"{source}: {where}", ProfileError, f" = {shown(name)}"):
            found = _beside(source) / name if _is_path(name) else _find("accelerator", name)
            if not isinstance(found, Traversable):
                raise ValueError("is an object of an entry point: it has no file to change")
            sources[name], tables[name] = found, _read_toml(found)
    return MachineTables(source, cluster, tables, sources)


def stack_of_table(name_or_path: str | os.PathLike[str], table: dict[str, Any]) -> Stack:
    """The stack of a table that is another one than its file's. Raises ProfileError as `load_stack`."""
    found = _find("stack", path_text("stack", name_or_path))
    assert isinstance(found, Traversable), "stack_table has refused it"
    return _stack_of(found, table)


def _wanted(kind: type[Built], found: object, text: str) -> Built:
    """The object of an entry point, if it is of the wanted kind."""
    if isinstance(found, kind):
        return found
    offered = next(words for one, words in _OFFERED.items() if isinstance(found, one))
    raise ProfileWordsError(f"{text}: the entry point offers {offered}, where {_OFFERED[kind]} is wanted")


def _lasting(text: str) -> str:
    """A name as it is, a path made absolute: both hold in any working folder."""
    return os.path.realpath(text) if _is_path(text) else text


def accelerator_names() -> tuple[str, ...]:
    """Names that `load_accelerator` knows, sorted."""
    return _names("accelerator")


def cluster_names() -> tuple[str, ...]:
    """Names that `load_cluster` knows, sorted."""
    return _names("cluster")


def stack_names() -> tuple[str, ...]:
    """Names that `load_stack` knows, sorted."""
    return _names("stack")


def schema(kind: FileKind) -> dict[str, Any]:
    """JSON Schema of a file of that kind. Raises ValueError for another kind."""
    if kind == "accelerator":
        return msgspec.json.schema(AcceleratorFile)
    if kind == "stack":
        return msgspec.json.schema(StackFile)
    if kind == "cluster":
        # msgspec takes no untagged union of tables: join the schemas of the two forms by hand.
        schemas, components = msgspec.json.schema_components((CompactFile, GraphFile), ref_template="#/$defs/{name}")
        return {"anyOf": list(schemas), "$defs": components}
    raise ValueError(f"schema kind must be one of {', '.join(FOLDERS)}: {kind!r}")


def check_file(path: str | os.PathLike[str]) -> str:
    """Read a file of any kind and sum it up in a line. Raises ProfileError saying what is wrong with it."""
    return f"{path}: {_summed_up(Path(path))}"


def profile_kinds(name: str) -> tuple[FileKind, ...]:
    """The kinds of profile that have one of this name; none for a name that no profile has."""
    return tuple(kind for kind in FOLDERS if name in _names(kind))


def check_profile(name: str) -> tuple[str, ...]:
    """Sum up each profile of this name in a line. Raises ProfileError as `profile_text`, and saying what is wrong with a file."""
    return tuple(_summed_up(_file_of(name, kind)) for kind in profile_kinds(name) or (None,))


def profile_text(name: str, kind: FileKind | None = None) -> str:
    """The text of the file that a name stands for, to be copied.

    kind: needed where profiles of several kinds have the name
    Raises ProfileWordsError for a name that no profile has, or several, and for an object of an entry point, which has no file.
    """
    return read_bytes(_file_of(name, kind)).decode("utf-8")


def _file_of(name: str, kind: FileKind | None) -> Traversable:
    """The file of a profile by name."""
    if _is_path(name):
        raise ProfileWordsError(f"{name} is a path, where the name of an accelerator, a cluster or a stack is wanted")
    kinds = profile_kinds(name)
    if not kinds or (kind is not None and kind not in kinds):
        wanted = "accelerator, cluster or stack" if kind is None else kind
        every = sorted({one for each in FOLDERS if kind in (None, each) for one in _names(each)})
        raise UnknownProfileError(f"no {wanted} is named {shown(name)}{nearest(name, every)}")
    if kind is None and len(kinds) > 1:
        raise ProfileWordsError(f"{name} is the name of several profiles; --kind says which: {', '.join(kinds)}")
    found = _find(kind or kinds[0], name)
    if not isinstance(found, Traversable):
        raise ProfileWordsError(f"{name} is an object of an entry point: it has no file")
    return found


def _summed_up(source: Traversable) -> str:
    """A file of any kind in a line."""
    table = _read_toml(source)
    kind = _file_kind(source, table)
    if kind == "stack":
        stack = _read_stack(source)
        fitted = sum(one.value != GENERIC.constants()[name].value for name, one in stack.constants().items())
        return f"stack {stack.name}: {fitted} constants of its own; runs {stack.runs}"
    if kind == "cluster":
        cluster = _read_cluster(source, None)
        kinds = sorted({device.name for device in cluster.devices})
        return (
            f"cluster {cluster.name}: {cluster.counted_devices} ({', '.join(kinds)}) "
            f"in {counted(len(cluster.servers), 'server')}, {len(cluster.channels)} channels"
        )
    device = _read_accelerator(source)
    reserve = optional_members(device).reserve_bytes
    held = f"{table['kind']} {device.name}: {gibibytes(device.memory_bytes)} of memory for plans"
    held += f", {gibibytes(reserve)} in reserve" if reserve else ""
    return held + (f", efficiencies of {table['like']}" if "like" in table else "")


# ---------------------------------------------------------------------------------------------------- search


def _is_path(text: str) -> bool:
    return "/" in text or os.sep in text or text.endswith(".toml")


def _split_count(text: str) -> tuple[str, int | None]:
    stem, colon, tail = text.rpartition(":")
    if not colon or "/" in tail or "\\" in tail:
        return text, None
    digits = re.fullmatch(r"0*([1-9][0-9]{0,8})", tail)
    if digits is None or int(digits[1]) > MOST_DEVICES:
        rule = f"after the colon stands the number of servers, a whole number from 1 to {MOST_DEVICES}"
        raise ProfileWordsError(f"{shown(text)}: {rule}: {shown(tail)}", f"cluster: {rule}")
    return stem, int(digits[1])


def user_roots() -> list[Path]:
    """The user's own folders of profiles, if there are any: a user without a home, or whose home is another's, has none there."""
    named = os.environ.get(PROFILES)
    if named:
        return [Path(root) for root in named.split(os.pathsep) if root]
    try:
        root = Path.home() / ".config" / "pipeplan"
    except RuntimeError:
        return []
    return [root] if os.path.isdir(root) else []


def _user_folders(kind: FileKind) -> list[Path]:
    """Those of one kind of file: all that the variable names, and of the home's what is there."""
    folders = [root / FOLDERS[kind] for root in user_roots()]
    return [folder for folder in folders if os.environ.get(PROFILES) or os.path.isdir(folder)]


def _offered(value: object) -> Offer:
    """Objects of an entry point: a finished object under its own name, a class of one, or a folder or file of profiles."""
    if isinstance(value, type) and hasattr(value, "seconds"):
        value = value()
    if isinstance(value, ModuleType):
        value = importlib.resources.files(value)
    if isinstance(value, str):
        value = Path(value)
    if isinstance(value, Path) and not value.exists():
        raise ValueError(f"there is no file or folder {value}")
    if isinstance(value, (Accelerator, Cluster, Stack, Path, Traversable)):
        return value
    raise TypeError(
        f"must be an accelerator, a cluster, a stack, a folder, a package or a path, not {type(value).__name__}; "
        "an accelerator has name, memory_bytes, streams, sublinear and seconds"
    )


def _files_in(folder: Traversable) -> dict[str, Traversable]:
    if folder.is_file():
        return {folder.name.removesuffix(".toml"): folder}
    if not folder.is_dir():
        return {}
    return {f.name.removesuffix(".toml"): f for f in folder.iterdir() if f.name.endswith(".toml")}


def _offers(kind: FileKind) -> Iterator[Mapping[str, Offer]]:
    """Profiles by name of each place, in the order of the search: folders, then entry points."""
    for folder in _user_folders(kind):
        yield _files_in(folder)
    shipped = _files_in(importlib.resources.files("hardware_profiles") / FOLDERS[kind])
    yield shipped
    for own, offered in plugged_in(f"pipeplan.{FOLDERS[kind]}", _offered, frozenset(shipped)).items():
        yield _files_in(offered) if isinstance(offered, Traversable) else {own: offered}


def _find(kind: FileKind, name: str) -> Offer:
    """Look up a path or a name: a file, or an object of an entry point."""
    if _is_path(name):
        return Path(name)
    for offers in _offers(kind):
        if name in offers:
            return offers[name]
    complaint = unknown(f"{kind} {name!r} is not known", name, _names(kind)) + "; or give the path of a .toml file"
    raise UnknownProfileError(
        complaint, complaint
    )  # where the name stands in a file, that file is the one that is told


def _names(kind: FileKind) -> tuple[str, ...]:
    return tuple(sorted(set().union(*_offers(kind))))


# ---------------------------------------------------------------------------------------------------- reading


def _read_toml(source: Traversable) -> dict[str, Any]:
    """The table of a profile's file."""
    table = toml_table(source)
    if not table:
        raise _without_content(
            f"{source}: the file is empty; an accelerator needs name and kind, a cluster name and servers"
        )
    return table


def toml_table(source: Path | Traversable) -> dict[str, Any]:
    """The table of a TOML file, whose numbers are finite. Raises ProfileError, in one line, for what is none."""
    try:
        text = read_bytes(source).decode("utf-8")
        if _DEEP_KEY.search(text):
            raise RecursionError
        table = tomllib.loads(text)
        _check_finite(source, table, "$")
    except FileNotFoundError:
        raise _without_content(f"{source}: there is no such file") from None
    except IsADirectoryError:
        raise _without_content(f"{source}: is a directory; give a TOML file") from None
    except OSError as error:
        raise _without_content(f"{source}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        told = f"{source}: TOML is UTF-8; byte {error.start}"
        raise ProfileError(f"{told} (0x{error.object[error.start]:02x}) is not", f"{told} is not") from None
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at (line [0-9]+, column [0-9]+|end of document)\)$", str(error))
        untold = f"{source}: not valid TOML" + (f" (at {place[1]})" if place else "")
        raise ProfileError(f"{source}: not valid TOML: {one_line(str(error))}", untold) from None
    except RecursionError:
        raise _without_content(f"{source}: not usable TOML: tables or lists are nested too deeply") from None
    except ProfileError:
        raise
    except ValueError:  # an integer of thousands of digits
        raise _without_content(f"{source}: not usable TOML: a whole number has too many digits") from None
    return table


def _without_content(message: str) -> ProfileError:
    """A ProfileError whose message shows no content of the file."""
    return ProfileError(message, message)


def _check_finite(source: Path | Traversable, value: object, path: str) -> None:
    # TOML knows inf and nan, and inf would pass every lower bound.
    if isinstance(value, float) and not math.isfinite(value):
        raise ProfileError(f"{source}: {path} = {value}: must be a finite number", f"{source}: numbers must be finite")
    if isinstance(value, dict):
        for key, item in value.items():
            _check_finite(source, item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_finite(source, item, f"{path}[{index}]")


def _file_kind(source: Traversable, table: dict[str, Any]) -> FileKind:
    if table.get("kind") == "stack":
        return "stack"
    if "kind" in table:
        return "accelerator"
    if "servers" in table or "devices" in table:
        return "cluster"
    kinds = " or ".join(f'"{kind}"' for kind in _ACCELERATOR_KINDS)
    raise ProfileError(
        f'{source}: $: an accelerator says kind = {kinds}, a stack kind = "stack", '
        "a cluster has [[servers]] or [[devices]]; "
        f"this file has only {', '.join(table)}"
    )


def _read_stack(source: Traversable) -> Stack:
    return _stack_of(source, _read_toml(source))


def _stack_of(source: Traversable, table: dict[str, Any]) -> Stack:
    if table.get("kind") != "stack":
        raise _without_content(f'{source}: $.kind: a stack\'s file says kind = "stack"')
    file: StackFile = _convert(source, table, StackFile)
    return _build(source, file, file.build)


def _read_accelerator(source: Traversable, likenesses: tuple[str, ...] = ()) -> Accelerator:
    """The accelerator of a file; likenesses: the files that are like one another and lead here."""
    return _accelerator_of(source, _read_toml(source), likenesses)


def _accelerator_of(source: Traversable, table: dict[str, Any], likenesses: tuple[str, ...] = ()) -> Accelerator:
    """The accelerator of a table that stands in a file, or is another one than the file's."""
    file = _accelerator_file(source, table)
    make: Callable[[], Accelerator] = file.build
    if isinstance(file, GraphicsProcessorFile):
        make = partial(file.build, _likeness(source, file, likenesses))
    return _build(source, file, make)


def _accelerator_file(source: Traversable, table: dict[str, Any]) -> AcceleratorFile:
    if table.get("kind") not in _ACCELERATOR_KINDS:
        if "kind" not in table and ("servers" in table or "devices" in table):
            raise _without_content(f"{source}: $: is a cluster, where an accelerator is wanted")
        rule = f"must be one of {', '.join(_ACCELERATOR_KINDS)}"
        raise ProfileError(
            f"{source}: $.kind = {shown(table.get('kind', '(absent)'))}: {rule}", f"{source}: $.kind: {rule}"
        )
    file: AcceleratorFile = _convert(source, table, AcceleratorFile)
    return file


def _likeness(
    source: Traversable, file: GraphicsProcessorFile, likenesses: tuple[str, ...]
) -> GraphicsProcessor | None:
    """The device whose efficiencies a file's has: of the file's choice, or one of its kind of chip, which is told where it is
    assumed.

    None for a file of measured efficiencies.
    """
    if file.measured:
        return None
    if file.like is None:
        device = _build(source, file, file.build)
        chip = file.chip or (chip_of(device) if isinstance(file, ChipFile) else "tensor-core")
        if file.chip is None:
            warnings.warn(
                f"{source}: has the shares of {chip} chips, some {percent(CHIPS[chip].spread, '.0f')} off; "
                f"$.chip ({', '.join(CHIPS)}) or $.like (an accelerator's name) says another",
                stacklevel=2,
            )
        return inherited(device, chip, [_measured(name) for name in MEASURED])
    where = f"{source}: $.like"
    if file.like in likenesses:
        raise ProfileError(f"{where} = {shown(file.like)}: leads back to itself", f"{where}: leads back to itself")
    with referred(where, ProfileError, f" = {shown(file.like)}"):
        found = _beside(source) / file.like if _is_path(file.like) else _find("accelerator", file.like)
        if isinstance(found, Traversable):
            found = _read_accelerator(found, (*likenesses, file.like))
        if not isinstance(found, GraphicsProcessor):
            raise ValueError(f"must be a GPU with efficiencies, such as {', '.join(MEASURED)}")
    return found


@cache
def _measured(name: str) -> GraphicsProcessor:
    """A shipped GPU with measured efficiencies, whatever the user's folder has under its name."""
    device = _read_accelerator(importlib.resources.files("hardware_profiles") / FOLDERS["accelerator"] / f"{name}.toml")
    assert isinstance(device, GraphicsProcessor)
    return device


def _read_cluster(source: Traversable, count: int | None) -> Cluster:
    return _cluster_of(source, _read_toml(source), partial(_find_for_cluster, source), count)


def _cluster_of(source: Traversable, table: dict[str, Any], find: FindAccelerator, count: int | None = None) -> Cluster:
    """The cluster of a table."""
    if "kind" in table:
        raise _without_content(f"{source}: $.kind: is an accelerator, where a cluster is wanted")
    if "devices" in table:
        if count is not None:
            raise ProfileWordsError(
                f"{source}: $.devices: an explicit graph does not scale; name:count needs [[servers]]"
            )
        graph: GraphFile = _convert(source, table, GraphFile)
        return _build(source, graph, lambda: build_graph(graph, find))
    compact: CompactFile = _convert(source, table, CompactFile)
    try:
        return _build(source, compact, lambda: build_compact(compact, find, count))
    except ProfileError as error:
        if count is None:
            raise
        _build(source, compact, lambda: build_compact(compact, find))  # a fault of the file's own comes first
        untold = f"cluster: with {count} servers it cannot be built (at most {MOST_DEVICES} devices); pipeplan check says why"
        raise ProfileWordsError(str(error), untold) from None


def _find_for_cluster(source: Traversable, name: str, where: str) -> Accelerator:
    """The accelerator that a cluster's file names; a path is relative to the file."""
    with referred(f"{source}: {where}", ProfileError, f" = {shown(name)}"):
        return _read_accelerator(_beside(source) / name) if _is_path(name) else load_accelerator(name)


def _beside(source: Traversable) -> Path:
    """The folder that paths in a file are relative to."""
    return source.parent if isinstance(source, Path) else Path()


def _build(source: Traversable, file: msgspec.Struct, make: Callable[[], Built]) -> Built:
    """The object that a file describes; a UserWarning for each unusual number in it."""
    try:
        built = make()
    except (ProfileError, PluginError):
        raise
    except ValueError as error:
        raise ProfileError(f"{source}: {one_line(str(error))}") from None
    for line in doubts(file):
        warnings.warn(f"{source}: {line}", stacklevel=2)
    return built


def _convert(source: Traversable, table: dict[str, Any], into: Any) -> Any:
    try:
        found = msgspec.convert(table, into)
    except msgspec.ValidationError as error:
        raise ProfileError(*(f"{source}: {told}" for told in explained(str(error), table, into))) from None
    for told, untold in impossible(found):
        raise ProfileError(f"{source}: {told}", f"{source}: {untold}")
    return found
