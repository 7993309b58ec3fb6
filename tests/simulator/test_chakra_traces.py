"""Rules of execution traces: replayed by dependencies alone they take as long as the plan, and every send has its receive."""

from __future__ import annotations

import io
import struct
import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hardware_profiles import load_cluster
from simulator import (
    ExecutionTraces,
    Plan,
    Problem,
    build_program,
    execution_traces,
    stages_from_cuts,
    workload_from_spec,
)
from simulator.plan_replay import replay_on
from simulator.results.chakra_messages import NODE_TYPES, TraceNode, _messages, encoded

GPT2 = Problem(workload_from_spec("gpt2"), load_cluster("dgx-a100:1"), 32)


def plan_of(schedule: str, places: list[tuple[int, ...]], **changes: Any) -> Plan:
    """The 124 layers cut evenly, in eight micro-batches."""
    cuts = [124 * stage // len(places) for stage in range(1, len(places))]
    degree = changes.pop("degree", 1)
    return replace(Plan("hand", schedule, stages_from_cuts(cuts, 124, places, degree), (4,) * 8), **changes)


def test_traces_are_told_by_their_size() -> None:
    """On both stages eight forwards and backwards, an update and the sum of the tied gradient, eight sends and receives."""
    traces = execution_traces(GPT2, plan_of("1f1b", [(0,), (1,)]))
    assert repr(traces) == f"ExecutionTraces({2 * (16 + 2 + 16)} nodes of 2 devices)"


def replayed(traces: ExecutionTraces) -> float:
    """Seconds of the traces: a node starts when all that it names has ended, a receive when its message is there, a collective
    when its whole group has come to it. Fails where nothing can go on.
    """
    ended: dict[tuple[int, int], float] = {}
    arrived: dict[tuple[object, ...], tuple[float, object]] = {}
    came: dict[tuple[int, int], dict[int, float]] = {}
    turns = [Counter[int]() for _ in traces.devices]
    left = [list(nodes) for nodes in traces.nodes]

    def end_of(rank: int, node: TraceNode) -> float | None:
        begin = max((ended[rank, one] for one in node.after), default=0.0)
        said = node.attributes
        key = tuple(said.get(name) for name in ("comm_src", "comm_dst", "comm_tag"))
        if node.kind == "COMM_SEND":
            assert (key[0], key not in arrived) == (rank, True)
            arrived[key] = begin + node.seconds, said["comm_size"]
        elif node.kind == "COMM_RECV":
            if key not in arrived:
                return None
            assert (key[1], arrived[key][1]) == (rank, said["comm_size"])
            begin = max(begin, arrived.pop(key)[0])
        elif node.kind == "COMM_COLL":
            group = int(said["pg_name"])
            those = came.setdefault((group, turns[rank][group]), {})
            those[traces.devices[rank]] = begin
            if set(those) != set(traces.groups[group]):
                return None
            turns[rank][group] += 1
            begin = max(those.values())
        return begin + node.seconds

    while any(left):
        before = len(ended)
        for rank, nodes in enumerate(left):
            waiting = []
            for node in nodes:
                end = end_of(rank, node) if all((rank, one) in ended for one in node.after) else None
                if end is None:
                    waiting.append(node)
                else:
                    ended[rank, node.id] = end
            left[rank] = waiting
        assert len(ended) > before
    assert not arrived
    return max(ended.values())


ALONE = [(0,), (1,), (2,), (3,)]
TWOFOLD = [(0, 1), (2, 3), (4, 5), (6, 7)]

PLANS = {
    "1f1b": plan_of("1f1b", ALONE),
    "replicas": plan_of("1f1b", TWOFOLD),
    "unlike replicas": plan_of("gpipe", [(0, 1, 2), (3,)], microbatches=(6, 6, 9, 11)),
    "zero 1": plan_of("zb-h1", TWOFOLD, zero=1),
    "zero 3": plan_of("1f1b", TWOFOLD, zero=3),
    "tensor-parallel groups": plan_of("1f1b", TWOFOLD, degree=2),
    "overlapped pairs": plan_of("dualpipev", [*ALONE, *reversed(ALONE)]),
    "two directions": plan_of("chimera", [(0, 3), (1, 2), (2, 1), (3, 0)], replication="round-robin"),
    "never flushes": plan_of("pipedream", ALONE),
    "replicas in turn": plan_of("1f1b-rr", TWOFOLD, replication="round-robin"),
}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("communication", ["overlapped", "send-blocking", "both-blocking"])
def test_a_replay_by_dependencies_takes_as_long(name: str, communication: Any) -> None:
    """To the last bit as long as the plan on links without end; each op is a node, each message a send and a receive."""
    problem, plan = replace(GPT2, communication=communication), PLANS[name]
    traces, (_, _, program) = execution_traces(problem, plan), build_program(problem, plan)
    assert replayed(traces) == replay_on(program, "recurrence").makespan_seconds
    computing = np.flatnonzero(program.computing())
    degree = (plan.stages[0].degrees or (1,))[0]
    nodes = [one for nodes in traces.nodes for one in nodes]
    assert sorted((one.name, one.seconds) for one in nodes if one.kind == "COMP") == sorted(
        (program.name_of(task), program.seconds[task]) for task in computing.tolist() for _ in range(degree)
    )
    kinds = Counter(one.kind for one in nodes)
    assert kinds["COMM_SEND"] == kinds["COMM_RECV"] > 0
    assert traces.stream == (0 if name not in ("never flushes", "replicas in turn") else program.microbatch.max() + 1)


@pytest.mark.parametrize(
    ("name", "tied", "others"),
    [
        ("1f1b", {(0, 3)}, set()),
        ("replicas", {(0, 1, 6, 7)}, {(0, 1), (2, 3), (4, 5), (6, 7)}),
        ("zero 1", {(0, 1, 6, 7)}, {(0, 1), (2, 3), (4, 5), (6, 7)}),
        ("zero 3", {(0, 1, 6, 7)}, {(0, 1), (2, 3), (4, 5), (6, 7)}),
        ("tensor-parallel groups", {(0, 6), (1, 7)}, set()),
    ],
)
def test_groups_are_the_devices_that_meet(name: str, tied: set[tuple[int, ...]], others: set[tuple[int, ...]]) -> None:
    """The embedding is summed by the devices of the first and last stage that hold the same part of it, under every ZeRO stage;
    all else by the replicas of a stage."""
    traces, found = execution_traces(GPT2, PLANS[name]), Counter[tuple[int, ...]]()
    for nodes in traces.nodes:
        found.update(traces.groups[int(one.attributes["pg_name"])] for one in nodes if one.kind == "COMM_COLL")
    assert set(found) == tied | others
    assert {devices: found[devices] for devices in tied} == {devices: len(devices) for devices in tied}  # once each


def test_bytes_are_those_of_the_plan() -> None:
    """By hand: what crosses a boundary, in each half of a group; all gradients of a stage are reduced once."""
    traces = execution_traces(GPT2, PLANS["replicas"])
    costs, _, _ = build_program(GPT2, PLANS["replicas"])
    forwards = [one for one in traces.nodes[0] if one.name.startswith("0SEND_F")]
    assert sum(int(one.attributes["comm_size"]) for one in forwards) == 16 * costs.boundary_bytes[0]
    reduced = [one for one in traces.nodes[0] if one.kind == "COMM_COLL"]
    assert {one.attributes["comm_type"] for one in reduced} == {0}
    size = sum(int(one.attributes["comm_size"]) for one in reduced)
    assert size == pytest.approx(costs.held_elements(0) * GPT2.accumulated_bytes)
    halves = execution_traces(GPT2, PLANS["tensor-parallel groups"])
    sent = [one.attributes["comm_size"] for one in halves.nodes[1] if one.name.startswith("0SEND_F")]
    assert sent == [2 * costs.boundary_bytes[0]] * 8


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"schedule": "fbp-as"},
            (
                r"traces cannot say plan 'hand' \(straight\): they have no lists of ops that share a device "
                r"\(schedule fbp-as\)"
            ),
        ),
        (
            {"stages": plan_of("1f1b", [(0, 1, 2, 3)]).stages, "zero": 3, "shard": 2},
            r"traces cannot say plan 'hand' \(4 s2\): they have no ZeRO among part of the replicas",
        ),
    ],
)
def test_what_traces_cannot_say(changes: dict[str, Any], said: str) -> None:
    """One line that tells why."""
    with pytest.raises(ValueError, match=said):
        execution_traces(GPT2, replace(PLANS["1f1b"], **changes))


def test_nodes_are_counted_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than are written end in one line."""
    monkeypatch.setattr("simulator.chakra_traces.MOST_NODES", 100)
    with pytest.raises(ValueError, match="traces of plan 'hand' would have about 166 nodes; at most 100 are written"):
        execution_traces(GPT2, PLANS["1f1b"])


def test_protobuf_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, a line that says what to install."""
    monkeypatch.setitem(sys.modules, "google.protobuf.proto", None)
    with pytest.raises(ValueError, match=r"pip install 'pipeplan\[chakra\]'"):
        execution_traces(GPT2, PLANS["1f1b"]).files()


def test_a_file_begins_with_what_it_is_of() -> None:
    """The first message names the plan and the device; as many follow as there are nodes."""
    proto, made = pytest.importorskip("google.protobuf.proto"), _messages()
    traces = execution_traces(GPT2, PLANS["zero 1"])
    file = io.BytesIO(bytes(traces.files()[".3.et"]))  # type: ignore[arg-type]
    first = proto.parse_length_prefixed(made["GlobalMetadata"], file)
    assert {one.name: one.string_val or one.int64_val for one in first.attr} == {
        "plan": "hand, zb-h1, 2-2-2-2",
        "device": 3,
    }
    names = []
    while (node := proto.parse_length_prefixed(made["Node"], file)) is not None:
        names.append(node.name)
    assert names == [one.name for one in traces.nodes[3]]


def wire(data: bytes) -> list[tuple[int, int | float | bytes]]:
    """Number and value of each field of a protobuf message, by the rules of its wire format."""
    file, found = io.BytesIO(data), list[tuple[int, int | float | bytes]]()

    def whole() -> int:
        value, shift, more = 0, 0, True
        while more:
            byte = file.read(1)[0]
            value, shift, more = value | (byte & 127) << shift, shift + 7, byte > 127
        return value

    while file.tell() < len(data):
        number, kind = divmod(whole(), 8)
        read = {0: whole, 1: lambda: float(struct.unpack("<d", file.read(8))[0]), 2: lambda: file.read(whole())}[kind]
        found.append((number, read()))
    return found


def test_fields_have_the_numbers_of_the_schema() -> None:
    """By the wire alone, as `et_def.proto` of MLCommons numbers them: names first; a send is 5; values by their types, 9 a whole
    number of 64 bits, 7 of 32, 3 a double, 27 a bool, 29 a text.
    """
    pytest.importorskip("google.protobuf.proto")
    said = {"comm_size": 300, "comm_dst": 6, "pg_name": "0"}
    data = encoded([TraceNode(3, "sent", "COMM_SEND", 4e-6, (1,), (1, 2), said)], {"plan": "hand", "device": 8})
    file, messages = io.BytesIO(data), []
    while size := file.read(1):
        messages.append(wire(file.read(size[0])))
    metadata, node = messages

    def attributes(message: list[Any], number: int) -> list[Any]:
        return [wire(value) for key, value in message if key == number]

    assert metadata[0] == (1, b"1.0.0")
    assert attributes(metadata, 2) == [[(1, b"plan"), (29, b"hand")], [(1, b"device"), (9, 8)]]
    assert node[:6] == [(1, 3), (2, b"sent"), (3, 5), (4, b"\x01"), (5, b"\x01\x02"), (7, 4)]
    assert attributes(node, 10) == [
        *([(1, b"is_cpu_op"), (27, 0)], [(1, b"seconds"), (3, 4e-6)], [(1, b"comm_size"), (9, 300)]),
        *([(1, b"comm_dst"), (7, 6)], [(1, b"pg_name"), (29, b"0")]),
    ]
    assert (len(metadata), len(node)) == (3, 11)


def test_the_reader_of_mlcommons_reads_them() -> None:
    """Every node with its type, what it waits for, its seconds and its message; the file ends behind the last."""
    schema = pytest.importorskip(
        "chakra.schema.protobuf.et_def_pb2", reason="mlc-chakra is not installed: traces are read by protobuf alone"
    )
    library = pytest.importorskip("chakra.src.third_party.utils.protolib")
    traces = execution_traces(GPT2, PLANS["zero 1"])
    files = traces.files()
    assert list(files) == [*(f".{rank}.et" for rank in range(8)), ".groups.json"]
    for rank, nodes in enumerate(traces.nodes):
        file, metadata = io.BytesIO(bytes(files[f".{rank}.et"])), schema.GlobalMetadata()  # type: ignore[arg-type]
        assert library.decodeMessage(file, metadata)
        about = {one.name: getattr(one, one.WhichOneof("value")) for one in metadata.attr}
        assert about == {"plan": "hand, zb-h1, 2-2-2-2", "device": rank}
        for node in nodes:
            read = schema.Node()
            assert library.decodeMessage(file, read)
            said = {one.name: getattr(one, one.WhichOneof("value")) for one in read.attr}
            assert (read.id, read.name, read.type) == (node.id, node.name, NODE_TYPES[node.kind])
            assert schema.NodeType.Name(read.type) == f"{node.kind}_NODE"
            assert (tuple(read.ctrl_deps), tuple(read.data_deps)) == (node.behind, node.after)
            assert said == {"is_cpu_op": False, "seconds": node.seconds, **node.attributes}
            assert read.duration_micros == round(node.seconds * 1e6)
        assert not library.decodeMessage(file, schema.Node())
