"""PipeDream profile: the `graph.txt` that PipeDream's profiler writes, read as a measured workload.

Format (github.com/msr-fiddle/pipedream, `graph/graph.py`): one line per node and one tab-indented line per
edge, in any order; milliseconds and fp32 bytes of one mini-batch:

    node12 -- Conv2d(128, 256, ...) -- forward_compute_time=10.8, backward_compute_time=18.3,
        activation_size=411041792.000, parameter_size=1180672.000          (on one line)
        node4 -- node5

`activation_size` may be a list `[a; b; c]` (several output tensors): it is summed.
"""

from __future__ import annotations

import heapq
import math
import re
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from math import isqrt
from pathlib import Path

from hardware_profiles import check_whole, real_number, shown, whole_number
from simulator.workloads.builder import INDEX, MASK, Builder
from simulator.workloads.layers import Layer, Workload
from simulator.workloads.network_files import LARGEST_SIZE, WorkloadFileError, read_text

BYTES_PER_ELEMENT = 4
"""Profiles are taken in fp32."""

FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")

KINDS = {
    operator: kind
    for kind, operators in {
        "input": ("Input", "hidden"),
        "convolution": ("Conv2d",),
        "linear": ("Linear", "Classifier"),
        "recurrent": ("LSTM", "EmuBidirLSTM", "RecurrentAttention"),
        "embedding": ("Embedding",),
        "normalization": ("BatchNorm2d", "LayerNorm"),
        "activation": ("ReLU", "Sigmoid", "Tanh", "GELU"),
        "pooling": ("MaxPool2d", "AvgPool2d", "AdaptiveAvgPool2d"),
        "dropout": ("Dropout",),
        "elementwise": ("Add",),
        "reshape": ("Concat", "View", "Size", "__getitem__"),
    }.items()
    for operator in operators
}
"""Kind of layer by operator; one that is not here is `linear` if it has parameters, else `elementwise`."""

VIEWS = ("View", "__getitem__")

_NODE = re.compile(r"node([0-9]{1,9})")
_OPERATOR = re.compile(r"[A-Za-z_]+(?:\d+d)?")
_LINEAR = re.compile(r"Linear\(in_features=(\d+), out_features=(\d+)", re.ASCII)
_LSTM = re.compile(r"LSTM\((\d+), (\d+)", re.ASCII)
_CONVOLUTION = re.compile(r"Conv2d\((\d+), (\d+), kernel_size=\((\d+), (\d+)\)", re.ASCII)
_GROUPS = re.compile(r"groups=(\d+)", re.ASCII)
_STRIDE = re.compile(r"stride=\((\d+), \1\)", re.ASCII)
_PADDING = re.compile(r"padding=\((\d+), \1\)", re.ASCII)

_SIZES = {_LINEAR: 1, _LSTM: 1, _CONVOLUTION: 1, _GROUPS: 1, _STRIDE: 1, _PADDING: 0}
"""Sizes in the description of an operator, with their least values."""

MOST_SAMPLES = 2**31
"""Most samples of a profiled mini-batch."""

LARGEST_AMOUNT = 1e15
"""Most milliseconds or bytes of a node: 30,000 years, or a petabyte."""


@dataclass(frozen=True, slots=True)
class _Node:
    """One line of the file: seconds and elements of the profiled mini-batch (outputs: one per tensor)."""

    number: int
    description: str
    forward: float
    backward: float
    outputs: tuple[float, ...]
    parameters: int
    line: int

    @property
    def operator(self) -> str:
        match = _OPERATOR.match(self.description)
        return match[0] if match else self.description

    @property
    def kind(self) -> str:
        return KINDS.get(self.operator, "linear" if self.parameters else "elementwise")


def read_profile(path: str | Path, profiled_minibatch: int | None = None) -> Workload:
    """Read a PipeDream `graph.txt` as a workload of measured layers, named after the file.

    Its mini-batch is the profiled one. Activations are per sample and `Layer.measured` keeps the row that was measured,
    so times and activations scale linearly with the samples and weights do not.
    profiled_minibatch: samples of the profiled mini-batch; None: worked out from the tensor shapes (an LSTM's
        final state is mini-batch × hidden; in a network without recurrence or embeddings a Linear's output is
        mini-batch × features; without one the first convolution's images are square). An argument overrides the shapes.
    `Input` nodes, whose forward seconds are data loading, are dropped, as PipeDream's own optimizer does: loading
    overlaps with computation.

    Layers are in topological order; of several layers that could come next the lowest node number does. Their
    names are `node<number>_<operator>`. FLOP, kind and time steps follow from the operator's description; the
    stashed elements from the rule in `simulator.workloads.builder`, plus gates and cell states of an LSTM.

    Raises WorkloadFileError (`file:line: ...`) for a file that is missing, a directory, not text, empty or
    malformed, and ValueError for a mini-batch below 1.
    """
    path = Path(path)
    if profiled_minibatch is not None and profiled_minibatch < 1:
        raise ValueError(f"profiled_minibatch must be at least 1 sample, got {profiled_minibatch}")
    if profiled_minibatch is not None:
        check_whole("profiled_minibatch", profiled_minibatch, 1, MOST_SAMPLES)
    nodes, producers = _parse(path)
    nodes = {number: nodes[number] for number in _topological_order(path, nodes, producers)}
    return _build(path, nodes, producers, profiled_minibatch or _detect_minibatch(path, nodes, producers))


def _parse(path: Path) -> tuple[dict[int, _Node], dict[int, list[int]]]:
    """Nodes by number, and for each its producers' numbers, ascending."""
    nodes: dict[int, _Node] = {}
    edges: dict[tuple[int, int], int] = {}
    for line, text in enumerate(read_text(path).split("\n"), 1):
        where = f"{path}:{line}"
        if not text.strip():
            continue
        parts = text.strip().split(" -- ")
        if text[0] in "\t ":
            edge = _parse_edge(where, parts)
            if edge in edges:
                rule = f"is already on line {edges[edge]}"
                raise _wrong(where, f"edge node{edge[0]} -- node{edge[1]} {rule}", f"an edge {rule}")
            edges[edge] = line
        else:
            node = _parse_node(where, line, parts)
            if node.number in nodes:
                rule = f"is already on line {nodes[node.number].line}"
                raise _wrong(where, f"node{node.number} {rule}", f"a node {rule}")
            nodes[node.number] = node
    if not nodes:
        raise _wrong(f"{path}:1", "no nodes; a PipeDream profile has a `node1 -- ...` line per layer")
    producers: dict[int, list[int]] = {number: [] for number in nodes}
    for (producer, consumer), line in sorted(edges.items()):
        for end in (producer, consumer):
            if end not in nodes:
                rule = "which has no line of its own"
                raise _wrong(f"{path}:{line}", f"edge to node{end}, {rule}", f"edge to a node {rule}")
        producers[consumer].append(producer)
    return nodes, producers


def _wrong(where: str, rule: str, untold: str = "") -> WorkloadFileError:
    """The error of a line that breaks a rule; untold: the rule without what stands there, where it tells that."""
    return WorkloadFileError(f"{where}: {rule}", f"{where}: {untold or rule}")


def _parse_edge(where: str, parts: list[str]) -> tuple[int, int]:
    if len(parts) != 2:
        rule = "an edge is `node1 -- node2`, indented by a tab"
        raise _wrong(where, f"{rule}; got {shown(' -- '.join(parts))}", rule)
    producer, consumer = (_parse_number(where, part) for part in parts)
    return producer, consumer


def _parse_node(where: str, line: int, parts: list[str]) -> _Node:
    if len(parts) < 3:
        rule = f"a node is `node1 -- operator -- {FIELDS[0]}=..., ...`"
        raise _wrong(where, f"{rule}; got {shown(' -- '.join(parts))}", rule)
    figures: dict[str, str] = {}
    for item in parts[-1].split(","):
        key, equals, value = item.strip().partition("=")
        if not equals or key not in FIELDS or key in figures:
            rule = f"expected each of {', '.join(FIELDS)} once, as key=value"
            raise _wrong(where, f"{rule}; got {shown(item)}", rule)
        figures[key] = value
    missing = [field for field in FIELDS if field not in figures]
    if missing:
        raise _wrong(where, f"{missing[0]} is missing")
    forward, backward, outputs, parameters = (_parse_amounts(where, key, figures[key]) for key in FIELDS)
    elements = sum(parameters) / BYTES_PER_ELEMENT
    if elements != int(elements):
        rule = f"parameter_size must be a multiple of {BYTES_PER_ELEMENT} bytes (fp32)"
        raise _wrong(where, f"{rule}, got {sum(parameters):g}", rule)
    description = " -- ".join(parts[1:-1])
    for pattern, least in _SIZES.items():
        for size in match.groups() if (match := pattern.search(description)) else ():
            try:
                whole_number(size, least, LARGEST_SIZE)
            except ValueError:
                rule = f"sizes of an operator must be from {least} to {LARGEST_SIZE}"
                raise _wrong(where, f"{rule}, got {shown(size)}", rule) from None
    return _Node(
        number=_parse_number(where, parts[0]),
        description=description,
        forward=sum(forward) / 1e3,
        backward=sum(backward) / 1e3,
        outputs=tuple(size / BYTES_PER_ELEMENT for size in outputs),
        parameters=int(elements),
        line=line,
    )


def _parse_number(where: str, text: str) -> int:
    match = _NODE.fullmatch(text.strip())
    if match is None:
        raise _wrong(where, f"a node is called node<number>, got {shown(text)}", "a node is called node<number>")
    return int(match[1])


def _parse_amounts(where: str, key: str, text: str) -> list[float]:
    """A number, or the numbers of a list `[a; b; c]`, which only activation_size may be."""
    inner = text.strip()
    if key == "activation_size" and inner.startswith("[") and inner.endswith("]"):
        items = inner[1:-1].split(";")
    else:
        items = [inner]
    amounts = []
    for item in items:
        try:
            amount, rule = real_number(item, -math.inf, math.inf), f"must be from 0 to {LARGEST_AMOUNT:g}"
        except ValueError:
            amount, rule = math.nan, "must be a number"
        if not 0.0 <= amount <= LARGEST_AMOUNT:
            raise _wrong(where, f"{key} {rule}, got {shown(text)}", f"{key} {rule}")
        amounts.append(amount)
    return amounts


def _topological_order(path: Path, nodes: dict[int, _Node], producers: dict[int, list[int]]) -> list[int]:
    """A topological order of the nodes: of those that are ready, the lowest number first."""
    sorter = TopologicalSorter(producers)
    try:
        sorter.prepare()
    except CycleError as error:
        stuck = min(error.args[1])
        raise _wrong(f"{path}:{nodes[stuck].line}", f"the edges form a cycle, so node{stuck} can never run") from None
    ready: list[int] = []
    order: list[int] = []
    while sorter:
        for number in sorter.get_ready():
            heapq.heappush(ready, number)
        order.append(heapq.heappop(ready))
        sorter.done(order[-1])
    return order


def _detect_minibatch(path: Path, nodes: dict[int, _Node], producers: dict[int, list[int]]) -> int:
    """Samples of the profiled mini-batch, from shapes whose size per sample is known."""
    found: dict[float, _Node] = {}
    sequences = any(node.kind in ("recurrent", "embedding") for node in nodes.values())
    for node in sorted(nodes.values(), key=lambda node: node.number):
        lstm, linear = _LSTM.search(node.description), _LINEAR.search(node.description)
        if lstm and len(node.outputs) >= 3:  # outputs: all steps, final hidden state, final cell state, ...
            found.setdefault(node.outputs[1] / int(lstm[2]), node)
        elif linear and node.kind == "linear" and not sequences:
            found.setdefault(sum(node.outputs) / int(linear[2]), node)
    if not found:
        found = {float(samples): node for node in nodes.values() for samples in _images(node, nodes, producers)}
    hint = "give the profiled mini-batch (profiled_minibatch, --profiled-minibatch)"
    if not found:
        rule = f"no LSTM with its states, no Linear layer and no convolution of images tells the mini-batch; {hint}"
        raise _wrong(f"{path}:1", rule)
    if len(found) > 1:
        one, other = list(found.items())[:2]
        raise WorkloadFileError(
            f"{path}:{other[1].line}: node{other[1].number} implies a mini-batch of {other[0]:g}, "
            f"node{one[1].number} of {one[0]:g}; {hint}"
        )
    samples, node = next(iter(found.items()))
    if samples < 1 or samples != int(samples):
        raise WorkloadFileError(
            f"{path}:{node.line}: node{node.number} implies a mini-batch of {samples:g}, not a whole number; {hint}"
        )
    return int(samples)


def _images(node: _Node, nodes: dict[int, _Node], producers: dict[int, list[int]]) -> list[int]:
    """Samples of which a node can be the first convolution, of square images: as many as make whole images of what it reads, and
    of what it puts out.
    """
    shape, stride = _CONVOLUTION.match(node.description), _STRIDE.search(node.description)
    sources = [nodes[one] for one in producers[node.number]]
    if not (shape and stride and shape[3] == shape[4] and [one.operator for one in sources] == ["Input"]):
        return []
    read, made, window, step = int(shape[1]), int(shape[2]), int(shape[3]), int(stride[1])
    padding = int(found[1]) if (found := _PADDING.search(node.description)) else 0
    elements, samples = sum(sources[0].outputs), []
    for side in range(window, 1 + isqrt(int(elements / max(1, read)))):
        count, rest = divmod(elements, read * side * side)
        if not rest and sum(node.outputs) == count * made * ((side + 2 * padding - window) // step + 1) ** 2:
            samples.append(int(count))
    return samples


def _layer(node: _Node, samples: int, attended: float) -> Layer:
    """A node as a layer: FLOP, dependent steps and what it keeps beside its inputs by its operator's description.

    attended: elements per sample of the encoder output that an attention reads (0 elsewhere)
    """
    output = sum(node.outputs) / samples
    layer = Layer(
        f"node{node.number}_{node.operator.strip('_')}",
        node.kind,
        parameters=node.parameters,
        output_elements=output,
        measured=((samples, node.forward, node.backward),),
    )
    lstm = _LSTM.search(node.description)
    if convolution := _CONVOLUTION.match(node.description):
        read, made, height, width = (int(group) for group in convolution.groups())
        groups = int(found[1]) if (found := _GROUPS.search(node.description)) else 1
        channels = max(1, read // groups), max(1, made // groups)
        return replace(layer, flop=2.0 * read / groups * height * width * output, channels=channels)
    if lstm and node.kind == "recurrent":
        return _recurrent(layer, node, int(lstm[1]), int(lstm[2]), attended)
    if (linear := _LINEAR.search(node.description)) and node.kind == "linear":
        return replace(layer, flop=2.0 * int(linear[1]) * output)
    kept = {"MaxPool2d": INDEX, "Dropout": MASK}.get(node.operator, 0.0)
    return replace(layer, stashed_bytes=kept * output)


def _recurrent(layer: Layer, node: _Node, inputs: int, hidden: int, attended: float) -> Layer:
    """Per step 2·4·hidden·(inputs + hidden) FLOP; kept: 4 gates, cell state and output of every step.

    A bidirectional layer runs its two directions one after the other. Bahdanau attention adds the query
    projection, the key projection of every encoder step, the scores and the weighted sum.
    """
    steps = node.outputs[0] / layer.measured[0][0] / hidden  # both directions side by side count as steps of one
    flop = steps * 8.0 * hidden * (inputs + hidden)
    kept = steps * 6.0 * hidden
    if node.operator == "RecurrentAttention":
        keys = attended / hidden
        flop += 2.0 * hidden * hidden * (steps + keys) + 4.0 * hidden * steps * keys
        kept += steps * keys * (hidden + 1.0)  # tanh(query + key) and the score of every pair
    return replace(layer, flop=flop, sequential_steps=max(1, round(steps)), stashed_elements=kept)


def _build(path: Path, nodes: dict[int, _Node], producers: dict[int, list[int]], samples: int) -> Workload:
    builder = Builder()
    handles: dict[int, int] = {}
    for number, node in nodes.items():
        if node.operator == "Input":
            handles[number] = builder.source(sum(node.outputs) / samples)
            continue
        inputs = [handles[producer] for producer in producers[number]]
        if node.operator == "Add":
            inputs.reverse()  # a sum in place writes on the newest operand, not on the shortcut
        layer = _layer(node, samples, max((builder.output_elements(x) for x in inputs), default=0.0))
        in_place = "inplace" in node.description or node.operator in VIEWS
        handles[number] = builder.add(layer, inputs, in_place=in_place)
    if all(handle < 0 for handle in handles.values()):
        raise _wrong(f"{path}:1", "every node is an Input; there is nothing to compute")
    kinds = {node.kind for node in nodes.values()}
    sample = "sequence" if kinds & {"recurrent", "embedding"} else "image" if "convolution" in kinds else "sample"
    try:
        workload = builder.build(path.stem, sample=sample, minibatch=samples, bytes_per_element=BYTES_PER_ELEMENT)
    except ValueError as error:  # a rule of the whole network: too many parameters
        raise WorkloadFileError(f"{path}:1: {error}") from error
    if not workload.takes_time:
        raise _wrong(f"{path}:1", "no layer takes any time; at least one compute time must be above 0")
    return workload
