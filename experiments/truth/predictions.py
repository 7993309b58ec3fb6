"""Predictions: what the cost model and the engine say of every row of a measured table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from math import inf
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.terminal.output import InputError, tracked
from experiments.truth.measured_tables import (
    AllReduce,
    KernelShare,
    MatrixProduct,
    MeasuredRun,
    MeasuredTable,
    Row,
    TransformerCell,
)
from hardware_profiles import (
    GENERIC,
    GIB,
    Cluster,
    Constant,
    FileError,
    Operation,
    Phase,
    Precision,
    Stack,
    UnknownProfileError,
    Work,
    load_accelerator,
    load_cluster,
    load_stack,
    optional_members,
)
from simulator import (
    LANGUAGE_MODELS,
    Bert,
    Communication,
    Evaluations,
    Experts,
    Gpt,
    GradientBytes,
    GradientReduction,
    Llama,
    OpKind,
    Opt,
    Plan,
    PlanCosts,
    Problem,
    Recompute,
    Score,
    Stage,
    Transformer,
    Workload,
    Zero,
)

MACHINES: tuple[tuple[str, str], ...] = (
    ("nodes 800 Gbit/s", "vtrain-a100"),
    ("8x B200", "dgx-b200"),
    ("clariden", "clariden"),
    ("mit 2", "sailor-mit-2"),
    ("mit 3", "sailor-mit-4"),  # its first three
    ("mit 4", "sailor-mit-4"),
    ("mit 6", "sailor-mit-6"),
    ("a100", "dgx-a100"),
    ("h100", "dgx-h100"),
    ("gb200", "gb200-nvl72"),
    ("v100", "dgx-1-v100"),
)
"""Clusters of rows that name none, by words of their `hardware`, `cluster` and `nodes`, and `gpu`; the first that is found."""

FUSED_LOSS = 2.5
"""Times the 4 bytes of each logit, of a loss that torch.jit fuses: 10 bytes, as runs of Megatron-LM's functional tests tell."""

MACHINE_OF_CELLS = "vtrain-a100"


class Runtime(NamedTuple):
    """What a training framework does with gradients, states, transfers and attention, how many of the first blocks have no
    experts, and whether the memory that it logs is of its last rank.
    """

    gradient_bytes: GradientBytes = 0
    zero: Zero = 0
    communication: Communication = "overlapped"
    dense_blocks: int | None = None
    gradient_reduction: GradientReduction = "whole"
    fused: bool = False
    sequence_parallel: bool = False
    last_rank: bool = False


NEMO = Runtime(2, 1, gradient_reduction="buckets", fused=True, sequence_parallel=True)


RUNTIMES: Mapping[str, Runtime] = {
    "moorethreads/simumax": Runtime(4, 1, dense_blocks=1),
    "nvidia/dgxc-benchmarking": NEMO,
    "nvidia-nemo/megatron-bridge": NEMO,
    "megatron-lm": Runtime(4, 1, last_rank=True),
    "eth-easl/sailor": Runtime(communication="both-blocking"),
    "nanotron": Runtime(4, 1, communication="both-blocking", fused=True),
}
"""Of rows that do not say it, by words of their `framework` and `source`. SimuMax 4dcaae5 ran Megatron-LM in bf16, which sums
gradients in fp32, and with a distributed optimizer; the first block of networks with experts had none (its
simu_tools/megatron_scripts/scripts/run_pretrain_deepseekv2.sh). Sailor cf2c8e3 ran DeepSpeed's pipeline, which refuses
asynchronous sends and receives (its deepspeed/p2p.py). nanotron's transfers send sizes first, which the receiver's host waits for
(its p2p.py). NeMo's and Megatron-Bridge's recipes reduce gradients of two bytes while
backwards go on, with Transformer Engine's attention and sequence parallelism of tensor groups."""

STACKS: tuple[tuple[str, str], ...] = (
    ("via-research/vtrain", "generic"),  # the constants of devices and links are of its cluster
    ("neuron", "generic"),
    ("megatron-deepspeed", "megatron-deepspeed"),
    ("megatron", "megatron-core"),
    ("nemo", "megatron-core"),
    ("nvidia/dgxc-benchmarking", "megatron-core"),
    ("maxtext", "maxtext"),
    ("nanotron", "pytorch-eager"),
    ("internevo", "pytorch-eager"),
    ("torchtitan eager", "fsdp2-eager"),
    ("fsdp2 eager", "fsdp2-eager"),
    ("torchtitan", "fsdp2-compiled"),
    ("fsdp2", "fsdp2-compiled"),
    ("fsdp", "fsdp1-eager"),
)
"""Stacks of rows that name none, by words of their `framework` and `source`, the first that is found in either; generic for any
other row."""

FAMILIES: Mapping[str, Callable[..., Transformer]] = {
    "gpt-oss": Llama,
    "opt": Opt,
    "bert": Bert,
    "gpt-neo": partial(Gpt, dropout=False, attention_dropout=False),
    "gpt": Gpt,
}
"""Networks by whole words of their `model`, the first that is found; of others a Llama has key-value heads, and a GPT none.
GPT-Neo's published configs have no dropout."""

NO_FAMILY: Mapping[str, str] = {"t5": "its network has an encoder beside its decoder"}
"""Words of the `model` of networks that none of ours is, and why."""

RUN_AGAIN: Mapping[str, Recompute] = {"core_attn": "attention"}
"""Operations that may run again alone, as Megatron-Core's --recompute-modules names them, and a problem's word."""

RECOMPUTED: Mapping[str, Recompute] = {
    "none": "none",
    "attention": "attention",
    "selective": "attention",
    "minimal": "between-products",
    "selective op": "every-second-product",
    "full": "blocks",
}
"""Words of a problem for those of a row: Megatron's full recomputation keeps the input of each block."""

ACCELERATORS: Mapping[str, str] = {"a100_pcie": "a100-pcie", "b200": "b200"}
"""Accelerators of kernels' shares that name none, by words of their `source`."""

STAGES: Mapping[str, Phase] = {
    "fwd": "forward",
    "bwd_grad_act": "input_gradient",
    "bwd_grad_w": "weight_gradient",
}
"""Passes of grouped products."""


SIZES: tuple[tuple[float, str], ...] = (
    (2.0**20, "below 1 MiB"),
    (2.0**24, "1 to 16 MiB"),
    (2.0**28, "16 to 256 MiB"),
    (inf, "from 256 MiB"),
)
"""Classes of collectives by their bytes: below the first figure that is greater."""

FOLDER = "the folder PIPEPLAN_PROFILES, or in one beside the table,"
"""Where machines of one's own are looked up."""


class NotPredicted(ValueError):
    """A row that the model has no form for; the message says what is missing."""


class Prediction(NamedTuple):
    """A figure of a row. what: seconds, forward, backward or memory (bytes); both in the same unit"""

    what: str
    measured: float
    predicted: float


def predicted(table: MeasuredTable, machine: str | None) -> tuple[pd.DataFrame, dict[str, int]]:
    """Measured and predicted figures of a table, a line each with its row's columns; and the rows left out, counted by reason.

    machine: cluster of all its rows, in place of what they say. Raises InputError (one line: file, line, rule) for a row that
        names a file which cannot be used
    """
    lines: list[dict[str, Any]] = []
    left_out = dict(table.left_out)
    predict, columns = _PREDICT[table.kind], table.kind.__struct_fields__
    for line, row in tracked(table.name, list(table.rows.items()), lambda item: ""):
        try:
            found = predict(row, machine)
        except (NotPredicted, UnknownProfileError) as error:
            reason = str(error)
            if isinstance(error, UnknownProfileError):  # without its list of those that are known
                reason = f"{reason.partition(' is not known')[0]} is not known here: a TOML file of it in {FOLDER} would be found"
            left_out[reason] = left_out.get(reason, 0) + 1
            continue
        except FileError as error:  # of a machine or an accelerator that the row names
            raise InputError(f"{table.path}: line {line}: {error.untold}") from None
        except ValueError as error:  # a row that no plan can be, or that its stack does not run
            left_out[str(error)] = left_out.get(str(error), 0) + 1
            continue
        said = {column: getattr(row, column) for column in columns}
        if isinstance(row, MeasuredRun):
            said["stack"] = stack_of(row)
        elif isinstance(row, AllReduce):
            said["size"] = next(words for most, words in SIZES if row.bytes < most)
        lines += [said | one._asdict() for one in found]
    return pd.DataFrame(lines), left_out


# ------------------------------------------------------------------------------------------------ whole iterations


def _training(run: MeasuredRun, machine: str | None) -> list[Prediction]:
    problem, plan = training_problem(run, machine)
    evaluate = Evaluations(problem)
    score = evaluate(plan)
    if score is None:
        raise NotPredicted("its plan has more micro-batches than the evaluator replays")
    found = [] if run.measured_s is None else [Prediction("seconds", run.measured_s, score.iteration_seconds)]
    if (memory := measured_bytes(run, problem, plan, evaluate, score)) is not None:
        found.append(Prediction("memory", *memory))
    return found


def measured_bytes(
    run: MeasuredRun, problem: Problem, plan: Plan, evaluate: Evaluations, score: Score
) -> tuple[float, float] | None:
    """Measured and predicted bytes of the device whose memory a row tells, the fullest or the last: of tensors, or else as its
    driver tells; None where neither was. score: of the plan
    """
    tensors = run.measured_max_gib or run.measured_alloc_gib
    if tensors is not None:
        every = evaluate.peak_bytes(plan) if _runtime(run).last_rank else None
        return tensors * GIB, score.peak_bytes if every is None else every[plan.stages[-1].devices[-1]]
    if run.measured_peak_bytes is None:
        return None
    device = problem.cluster.devices[score.device]
    return run.measured_peak_bytes, problem.stack.driver_bytes(device, score.peak_bytes)


def training_problem(run: MeasuredRun, machine: str | None = None, stack: str | None = None) -> tuple[Problem, Plan]:
    """The problem of a measured run, and the plan that ran: Megatron's order of ranks, tensor groups innermost, then the context,
    then replicas, then the pipeline.

    machine, stack: in place of what the row says
    Raises NotPredicted for experts that are not known, and for what no plan has.
    """
    held = run.dp * run.cp * run.tp
    devices = run.pp * held
    runtime = _runtime(run)
    nodes = run.nodes or (run.gpus_per_node and -(-devices // run.gpus_per_node))
    workload, cluster = _network(run, runtime), _cluster(machine or machine_of(run), devices, nodes)
    ran = that_ran(run, load_stack(stack or stack_of(run)))
    problem = Problem(
        workload,
        cluster,
        run.global_batch,
        ran,
        precision=_precision(run, cluster),
        optimizer=run.optimizer,
        communication=runtime.communication,
        recompute=_recomputed(run, ran),
        sequence_parallel=runtime.sequence_parallel and run.tp > 1
        if run.sequence_parallel is None
        else run.sequence_parallel,
        gradient_bytes=runtime.gradient_bytes if run.gradient_bytes is None else run.gradient_bytes,
        gradient_reduction=run.gradient_reduction or runtime.gradient_reduction,
    )
    size = run.dp * run.micro_batch
    if run.global_batch % size:
        raise NotPredicted("its replicas' micro-batches do not divide the batch")
    used = _used(cluster, devices, nodes)
    ranks = [tuple(used[stage * held : (stage + 1) * held]) for _ in range(run.interleave) for stage in range(run.pp)]
    degrees = (run.tp * run.cp,) * run.dp
    stages = tuple(Stage(layers, ids, degrees) for layers, ids in zip(_parts(run, workload), ranks, strict=True))
    schedule = "interleaved-1f1b" if run.interleave > 1 else "1f1b"
    zero = _zero(run, runtime)
    sizes = (size,) * (run.global_batch // size)
    return problem, Plan("measured", schedule, stages, sizes, zero=zero, shard=run.shard, context=run.cp, expert=run.ep)


def _zero(run: MeasuredRun, runtime: Runtime) -> Zero:
    """What its replicas divide: as it says, or as its framework does where it says nothing."""
    if run.zero is not None or run.distributed_optimizer is None:
        return runtime.zero if run.zero is None else run.zero
    return 1 if run.distributed_optimizer else 0


def _recomputed(run: MeasuredRun, stack: Stack) -> Recompute:
    """What runs again. Raises NotPredicted for operations that no plan runs again alone.

    Of a stack that does not run attention again alone, but all that lies between its products, `attention` is that: no policy of
    MaxText's names attention alone, and tables have the word for its `minimal`.
    """
    modules = [word for word in re.split("[;, ]+", run.recompute_modules) if word]
    if unknown := [word for word in modules if word not in RUN_AGAIN]:
        raise NotPredicted(f"no plan runs {', '.join(unknown)} again alone; choices: {', '.join(RUN_AGAIN)}")
    word = next((RUN_AGAIN[word] for word in modules), RECOMPUTED[run.recompute])
    known = stack.runs.recompute
    wider = word == "attention" and known and word not in known and "between-products" in known
    return "between-products" if wider else word


def _runtime(run: MeasuredRun) -> Runtime:
    known = _runner(run)
    return next((RUNTIMES[words] for words in RUNTIMES if words in known), Runtime())


def _runner(run: MeasuredRun) -> str:
    """What a row says of what ran it, in small letters."""
    return f"{run.framework} {run.source}".lower()


def stack_of(run: MeasuredRun) -> str:
    """The name of the stack that a row was measured on."""
    known = re.sub(r"[(),]", "", _runner(run))
    return run.stack or next((stack for words, stack in STACKS if words in known), GENERIC.name)


def that_ran(run: MeasuredRun, stack: Stack) -> Stack:
    """A stack as it ran a row, which may fuse the loss."""
    return replace(stack, logits=Constant(FUSED_LOSS)) if run.fused_loss else stack


def _precision(run: MeasuredRun, cluster: Cluster) -> Precision:
    """A run's precision; fp32 products run in TF32 where all devices have it, as NVIDIA's containers set it.

    GPT-Neo on GH200 does 82 TFLOP/s a GPU, and the plain fp32 units 67 at most.
    """
    rates = [optional_members(device).peak_flops for device in cluster.devices]
    return "tf32" if run.precision == "fp32" and all("tf32" in rate for rate in rates) else run.precision


def _parts(run: MeasuredRun, workload: Workload) -> Iterator[tuple[int, ...]]:
    """Layers of each stage: blocks, the embedding and the head as they were divided, evenly where nothing is said."""
    stages = run.pp * run.interleave
    starts = [
        next(i for i, layer in enumerate(workload.layers) if layer.name.startswith(f"block{number}."))
        for number in range(1, run.layers + 1)
    ]
    bounds = [0, *starts, _head(workload), len(workload)]  # embedding, blocks, head and loss
    if run.layers_per_stage:
        counts = [int(part) for part in run.layers_per_stage.split(";")]
    else:
        counts = [run.layers // stages + (stage < run.layers % stages) for stage in range(stages)]
        counts[0] += 1
        counts[-1] += 1
    if min(counts) < 1:
        raise NotPredicted("some of its stages hold no layer")
    done = 0
    for count in counts:
        yield tuple(range(bounds[done], bounds[done + count]))
        done += count


def _head(workload: Workload) -> int:
    """The first layer after the blocks."""
    return 1 + max(i for i, layer in enumerate(workload.layers) if layer.name.startswith("block"))


@cache
def _workload(model: Transformer) -> Workload:
    return model.workload()


def _with_experts(name: str) -> Transformer | None:
    """The published network with experts that a name begins with, but for dashes; None for a name of none."""
    models = (model for family in LANGUAGE_MODELS.values() for model in family if model.experts)
    return next((model for model in models if name.replace("-", "").startswith(model.name.replace("-", ""))), None)


def _network(run: MeasuredRun, runtime: Runtime) -> Workload:
    if why := next((why for word, why in NO_FAMILY.items() if word in run.model.lower()), None):
        raise NotPredicted(why)
    wide = run.precision in ("fp32", "tf32")  # Megatron-LM's kernel of scale, mask and softmax takes 16-bit numbers
    fused = runtime.fused if run.flash is None else run.flash
    attention = run.attention or ("fused" if fused else "eager" if wide else "unfused")
    sizes: dict[str, Any] = {"sequence": run.seq, "vocabulary": run.vocab, "attention": attention}
    others = {"intermediate": run.intermediate, "key_value_heads": run.kv_heads, "head_size": run.head_size}
    sizes |= {name: size for name, size in others.items() if size}
    published = None if run.experts else _with_experts(run.model)
    if run.ep > 1 and published is None and not run.experts:
        raise NotPredicted("its experts are not known: `model` is the name of no published network that has some")
    if published is not None and published.experts is not None:
        experts = _but_dense(published.experts, run, runtime)
        sizes |= {"layers": run.layers, "hidden": run.hidden, "heads": run.heads, "experts": experts}
        return _workload(replace(published, **sizes))
    if run.experts:
        width = run.expert_intermediate or run.intermediate or 4 * run.hidden
        own = Experts(run.experts, run.experts_per_token or 1, width, shared=run.shared_intermediate)
        sizes["experts"] = _but_dense(own, run, runtime)
    if run.gated is not None:
        sizes["gated"] = run.gated
    if run.window is not None:
        whole = tuple(block for block in range(run.layers) if block % run.window_every)
        sizes |= {"window": run.window, "whole": whole}
    name = run.model.lower()
    sizes |= {"relu": True} if re.search(r"\brelu\b", name) else {}
    known = next((made for word, made in FAMILIES.items() if re.search(f"(?<![a-z]){word}(?![a-z])", name)), None)
    family = known or (Llama if run.kv_heads else Gpt)
    return _workload(family(run.layers, run.hidden, run.heads, **sizes))


def _but_dense(experts: Experts, run: MeasuredRun, runtime: Runtime) -> Experts:
    """Experts of all blocks but the first few that have none."""
    dense = runtime.dense_blocks if run.dense_blocks is None else run.dense_blocks
    return experts if dense is None else replace(experts, dense=tuple(range(dense)))


def machine_of(row: Row) -> str:
    """The cluster that a row was measured on. Raises NotPredicted where nobody knows."""
    if named := getattr(row, "machine", ""):
        return str(named)
    said = [str(getattr(row, column, "")) for column in ("hardware", "cluster", "nodes", "gpu")]
    for part, machine in MACHINES:
        if re.search(rf"\b{re.escape(part)}\b", " ".join(said), re.IGNORECASE):
            return machine
    raise NotPredicted("its machine is not known: add a column `machine`, or --machine TABLE=CLUSTER")


@cache
def _cluster(name: str, devices: int, servers: int | None = None) -> Cluster:
    """So many devices of a cluster, of as many servers as they need; or all devices of so many servers.

    A cluster of several kinds is as large as its file says: another number of servers would leave their kinds open; so is one
    whose name says its servers (`dgx-b200:4`).
    """
    cluster, sized = load_cluster(name), re.search(r":[0-9]+$", name) is not None
    alike = not sized and len({device.name for device in cluster.devices}) == 1
    if alike and (len(cluster.devices) < devices or len(cluster.servers) > 1):
        cluster = load_cluster(f"{name}:{servers or -(-devices // len(cluster.servers[0]))}")
    if len(cluster.devices) < devices:
        raise NotPredicted(f"cluster {name!r} has {len(cluster.devices)} devices, and a row takes {devices}")
    return cluster.take(sum(map(len, cluster.servers[:servers])) if servers else devices)


def _used(cluster: Cluster, devices: int, servers: int | None) -> Sequence[int]:
    """Devices that a run has: the first of all, or as many of the first of each of its servers."""
    if servers is None:
        return range(devices)
    used = [device for server in cluster.servers for device in server[: -(-devices // servers)]]
    if len(used) < devices:
        raise NotPredicted("its nodes hold fewer devices than it takes")
    return used


# ------------------------------------------------------------------------------------------------ kernels


def _product(row: MatrixProduct, machine: str | None) -> list[Prediction]:
    accelerator = load_accelerator(row.accelerator)
    work = Work("linear", 2.0 * row.n * row.k, float(row.k), float(row.n), row.n * row.k)
    phases: tuple[tuple[Phase, float], ...] = (("forward", row.forward_us), ("backward", row.backward_us))
    return [
        Prediction(phase, 1e-6 * measured, accelerator.seconds(work, row.m, phase, "fp16"))
        for phase, measured in phases
    ]


def _share(row: KernelShare, machine: str | None) -> list[Prediction]:
    name = row.accelerator or next((known for word, known in ACCELERATORS.items() if word in row.source), "")
    if not name:
        raise NotPredicted("its accelerator is not known: add a column `accelerator`")
    work, samples, phase, flop = _FORMS[row.op](row)
    seconds = load_accelerator(name).seconds(work, samples, phase, "bf16")
    what = {"matmul": "seconds", "group_matmul": "experts"}.get(row.op, "attention")
    return [Prediction(what, flop / (1e12 * row.tflops * row.efficiency), seconds)]


_Form = tuple[Work, float, Phase, float]
"""What a kernel computes a sample, samples, its pass, and the FLOP that its share counts."""


def _matmul(row: KernelShare) -> _Form:
    """A forward of m tokens; added to what is there, the gradient of m x n weights over k tokens."""
    m, n, k = (float(size or 1) for size in (row.m, row.n, row.k))
    if row.accumulate:
        return Work("linear", 2.0 * m * n, n, m, m * n), k, "weight_gradient", 2.0 * m * n * k
    return Work("linear", 2.0 * n * k, k, n, n * k), m, "forward", 2.0 * m * n * k


def _attention(row: KernelShare) -> _Form:
    heads, pairs, of_query, of_value = (
        float(size or 1) for size in (row.head_num, row.kv_head_num, row.qk_head_dim, row.v_head_dim)
    )
    tokens, samples = float(row.seq_len or 1), float(row.batch or 1)
    flop = 2.0 * tokens**2 * heads * (of_query + of_value)
    read = tokens * (heads * of_query + pairs * (of_query + of_value))
    work = Work("attention", flop, read, tokens * heads * of_value, 0, fused_pairs=0.5)
    return (
        (work, samples, "forward", samples * flop)
        if row.op == "sdp_fwd"
        else (work, samples, "backward", 2.5 * samples * flop)
    )


def _experts(row: KernelShare) -> _Form:
    experts, tokens, n, k = (float(size or 1) for size in (row.ng, row.M, row.N, row.K))
    work = Work("linear", 2.0 * n * k, k, n, experts * n * k, experts=int(experts))
    return work, experts * tokens, STAGES[row.stage], 2.0 * experts * tokens * n * k


_FORMS: Mapping[str, Callable[[KernelShare], _Form]] = {
    "matmul": _matmul,
    "sdp_fwd": _attention,
    "sdp_bwd": _attention,
    "group_matmul": _experts,
}


def _allreduce(row: AllReduce, machine: str | None) -> list[Prediction]:
    cluster = _cluster(machine or machine_of(row), row.gpus, row.nodes)
    used, operation = _used(cluster, row.gpus, row.nodes), Operation[row.operation.replace("-", "_").upper()]
    seconds = cluster.collectives.seconds(operation, used, float(row.bytes))
    return [Prediction("seconds", 1e-6 * row.out_of_place_us, seconds)]


def _cell(row: TransformerCell, machine: str | None) -> list[Prediction]:
    """A block's forward, its forward again and its backward, as two blocks differ from one; and the rest of a micro-batch."""
    one, two = (_microbatch_seconds(row, layers, machine) for layers in (1, 2))
    return [
        Prediction("seconds", 1e-3 * row.layer_forward_recompute_backward_ms, two - one),
        Prediction("rest", 1e-3 * row.head_and_microbatch_ms, 2.0 * one - two),
    ]


def _microbatch_seconds(row: TransformerCell, layers: int, machine: str | None) -> float:
    """Seconds of a micro-batch's ops on one stage with so many blocks, which runs them again."""
    run = MeasuredRun(
        hidden=row.hidden,
        heads=row.heads,
        layers=layers,
        seq=row.seq,
        vocab=row.vocab,
        tp=row.tp,
        micro_batch=row.micro_batch,
        global_batch=row.micro_batch,
        recompute="full",
        measured_s=1.0,
        machine=row.machine or MACHINE_OF_CELLS,
    )
    costs = PlanCosts(*training_problem(run, machine))
    kinds = OpKind.FORWARD, OpKind.RECOMPUTE, OpKind.BACKWARD
    return float(sum(costs.seconds(kind, 0, 0, np.array([row.micro_batch]))[0] for kind in kinds))


_PREDICT: Mapping[type[Row], Callable[[Any, str | None], list[Prediction]]] = {
    MeasuredRun: _training,
    MatrixProduct: _product,
    AllReduce: _allreduce,
    TransformerCell: _cell,
    KernelShare: _share,
}
