"""Chakra messages: nodes of an execution trace in the form of MLCommons, by protobuf's own runtime (extra `chakra`).

Source of names and numbers: `schema/protobuf/et_def.proto` of mlcommons/chakra 1.0.0; of attributes, `feeder/et_feeder_node.cpp`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from io import BytesIO
from typing import Any

VERSION = "1.0.0"

NODE_TYPES = {"MEM_LOAD": 2, "MEM_STORE": 3, "COMP": 4, "COMM_SEND": 5, "COMM_RECV": 6, "COMM_COLL": 7}

COLLECTIVES = {"ALL_REDUCE": 0, "ALL_GATHER": 2, "REDUCE_SCATTER": 7}

Value = bool | int | float | str

_ATTRIBUTES = {
    "is_cpu_op": "bool_val",
    "comm_type": "int64_val",
    "comm_size": "int64_val",
    "comm_src": "int32_val",
    "comm_dst": "int32_val",
    "comm_tag": "int32_val",
    "pg_name": "string_val",
    "seconds": "double_val",
    "device": "int64_val",
    "plan": "string_val",
}
"""Which member of its `value` an attribute is."""

_VALUES = {"double_val": 3, "int32_val": 7, "int64_val": 9, "bool_val": 27, "string_val": 29}

_FIELDS = {
    "AttributeProto": {"name": (1, "STRING"), **{name: (n, name[:-4].upper()) for name, n in _VALUES.items()}},
    "GlobalMetadata": {"version": (1, "STRING"), "attr": (2, "AttributeProto")},
    "Node": {
        "id": (1, "UINT64"),
        "name": (2, "STRING"),
        "type": (3, "INT32"),  # an enum: the same on the wire
        "ctrl_deps": (4, "UINT64"),
        "data_deps": (5, "UINT64"),
        "duration_micros": (7, "UINT64"),
        "attr": (10, "AttributeProto"),
    },
}
"""Numbers and types of the fields that are written, of each message."""

_REPEATED = {"attr", "ctrl_deps", "data_deps"}


@dataclass(frozen=True, slots=True)
class TraceNode:
    """What one rank does.

    id: from 0 in each rank, rising; kind: of `NODE_TYPES`
    seconds: that it takes alone; the message has them rounded to microseconds, and whole as attribute `seconds`
    behind: ids of what stands before it in its list; after: ids of all that must have ended, those of `behind` among them (the
        feeder of ASTRA-sim hears these alone)
    attributes: of `_ATTRIBUTES`
    """

    id: int
    name: str
    kind: str
    seconds: float
    behind: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    attributes: Mapping[str, Value] = field(default_factory=dict)


def encoded(nodes: Iterable[TraceNode], about: Mapping[str, Value]) -> bytes:
    """A trace: metadata with these attributes, then the nodes, each behind its length.

    ValueError, in one line, where protobuf is not installed.
    """
    check_chakra()
    made, written = _messages(), BytesIO()
    put = import_module("google.protobuf.proto").serialize_length_prefixed

    def write(message: Any, attributes: Mapping[str, Value]) -> None:
        for name, value in attributes.items():
            message.attr.add(name=name, **{_ATTRIBUTES[name]: value})
        put(message, written)

    write(made["GlobalMetadata"](version=VERSION), about)
    for one in nodes:
        message = made["Node"](
            id=one.id,
            name=one.name,
            type=NODE_TYPES[one.kind],
            ctrl_deps=one.behind,
            data_deps=one.after,
            duration_micros=round(one.seconds * 1e6),
        )
        write(message, {"is_cpu_op": False, "seconds": one.seconds, **one.attributes})
    return written.getvalue()


def check_chakra() -> None:
    """ValueError, in one line, where protobuf is not installed."""
    try:
        import_module("google.protobuf.proto")  # since 5.28
    except ModuleNotFoundError:
        raise ValueError(
            "execution traces need protobuf 5.28, which is not installed: pip install 'pipeplan[chakra]'"
        ) from None


@cache
def _messages() -> dict[str, Any]:
    """The classes of the messages."""
    descriptors, pool, factory = (
        import_module(f"google.protobuf.{name}") for name in ("descriptor_pb2", "descriptor_pool", "message_factory")
    )
    file = descriptors.FileDescriptorProto(name="pipeplan/et_def.proto", package="ChakraProtoMsg", syntax="proto3")
    kinds = descriptors.FieldDescriptorProto
    for message, fields in _FIELDS.items():
        made = file.message_type.add(name=message)
        for name, (number, kind) in fields.items():
            label = kinds.LABEL_REPEATED if name in _REPEATED else kinds.LABEL_OPTIONAL
            added = made.field.add(name=name, number=number, label=label)
            if kind in _FIELDS:
                added.type, added.type_name = kinds.TYPE_MESSAGE, f".ChakraProtoMsg.{kind}"
            else:
                added.type = getattr(kinds, f"TYPE_{kind}")
            if name in _VALUES:
                added.oneof_index = 0
        if message == "AttributeProto":
            made.oneof_decl.add(name="value")
    known = pool.DescriptorPool()  # of our own: the package of MLCommons, beside us, puts its file into the common one
    known.AddSerializedFile(file.SerializeToString())
    return {one: factory.GetMessageClass(known.FindMessageTypeByName(f"ChakraProtoMsg.{one}")) for one in _FIELDS}
