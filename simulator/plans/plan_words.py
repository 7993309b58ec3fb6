"""Plan words: a plan in one line, as engineers write one down."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from simulator.plans.plan import Plan, Problem, group_degrees, recompute_phrases
from simulator.schedules import schedule_families
from simulator.workloads.layer_splits import ends_of
from simulator.workloads.layers import Workload
from simulator.workloads.sequence_slices import context_degrees

MANY = 8
"""Stages up to which each one's part of the network is named."""


def plan_words(problem: Problem, plan: Plan) -> str:
    """A plan in one line: `pp4 vpp2 tp2 cp1 dp8 · ZeRO-1 · mb 1 × 64 · interleaved-1f1b · recompute 2 of 8 blocks`.

    pp: devices in a row, one after the other; vpp: stages of each, where they are several; tp, cp, ep: where the network has
    such degrees; dp: replicas in a direction, `15-1` where stages have unlike numbers. mb: samples that a replica runs at once ×
    how often; of all replicas where their numbers differ. Stages are told where they are not as large as each other, ZeRO where
    replicas divide something, the schedule where there are several stages, and idle devices.
    """
    sizes = _sizes_of_stages(problem.workload, plan), _splits(problem.workload, plan)
    parts = (_degrees(problem, plan), *sizes, _zero(plan), _microbatches(plan))
    return " · ".join(filter(None, (*parts, _schedule(plan), _recomputation(problem, plan), _idle(problem, plan))))


def counted(words: Iterable[str]) -> str:
    """`3, 4 × 14, 3` for sixteen words, fourteen of them alike in a row; one word where all are."""
    runs = [(word, len(list(same))) for word, same in groupby(words)]
    if len(runs) == 1:
        return runs[0][0]
    return ", ".join(f"{word} × {count}" if count > 1 else word for word, count in runs)


def _degrees(problem: Problem, plan: Plan) -> str:
    ranks, replicas = len({stage.devices for stage in plan.stages}), plan.replicas
    groups = {degree // plan.context for stage in plan.stages for degree in stage.degrees or (1,)}
    words = [f"pp{ranks}", f"vpp{plan.chunks}" * (plan.chunks > 1)]
    if len(group_degrees(problem)) > 1 or groups != {1}:
        words.append(f"tp{'/'.join(map(str, sorted(groups)))}")
    if plan.context > 1 or len(context_degrees(problem.workload)) > 1:
        words.append(f"cp{plan.context}")
    if any(layer.experts for layer in problem.workload.layers):
        words.append(f"ep{plan.expert}")
    if plan.schedule in (families := schedule_families()) and families[plan.schedule].placement == "bidirectional":
        replicas = (1,)  # a stage's second device is of the other direction
    alike = len(set(replicas)) == 1
    words.append(f"dp{replicas[0] if alike else '-'.join(map(str, replicas))}")
    return " ".join(filter(None, words))


def _sizes_of_stages(workload: Workload, plan: Plan) -> str:
    """Blocks of each stage, or layers of a network without blocks; empty where all stages have as many."""
    blocks = [workload.blocks_of(stage.layers) for stage in plan.stages]
    if not any(blocks):
        word, sizes = "layers", [len(stage.layers) for stage in plan.stages]
    elif sum(map(len, blocks)) > len(set[int]().union(*blocks)):
        return "stages cut inside blocks"
    else:
        word, sizes = "blocks", list(map(len, blocks))
    if len(set(sizes)) == 1:
        return ""
    return f"{word} {'+'.join(map(str, sizes))}" if len(sizes) <= MANY else f"{word} {counted(map(str, sizes))}"


def _splits(workload: Workload, plan: Plan) -> str:
    """The layers that stages share, each with where it is cut."""
    ends = ends_of(plan.splits)
    cuts = (
        f"{workload.layers[layer].name} at {' and '.join(f'{one:.4g}' for one in at)}" for layer, at in ends.items()
    )
    if not ends:
        return ""
    return f"splits {', '.join(cuts)}" if len(ends) <= MANY else f"splits {len(ends)} layers"


def _zero(plan: Plan) -> str:
    copies = max(plan.replicas) * plan.context
    among = f" among {plan.shard}" * (plan.shard > 0)
    return f"ZeRO-{plan.zero}{among}" if copies > 1 or plan.zero else ""


def _microbatches(plan: Plan) -> str:
    if plan.forward_sizes:
        return "micro-batches of each stage's own"
    count, alike = len(plan.microbatches), len(set(plan.replicas)) == 1 and plan.replication == "split"
    copies = plan.replicas[0] if alike else 1
    least, most = min(plan.microbatches) // copies, -(-max(plan.microbatches) // copies)
    sizes = str(most) if least == most else f"{least}-{most}"
    return f"mb {sizes} × {count}" + " of all replicas" * (not alike and plan.replication == "split")


def _schedule(plan: Plan) -> str:
    if len(plan.stages) == 1:
        return ""
    if plan.order:
        return "searched order of ops" if plan.schedule == "search" else f"order {plan.schedule}"
    family = schedule_families().get(plan.schedule)
    own = () if family is None else family.options
    options = [
        f"{name.replace('_', ' ')} {value}" for name, value in plan.options if name in own and "," not in f"{value}"
    ]
    return plan.schedule + f" ({', '.join(options)})" * bool(options)


def _recomputation(problem: Problem, plan: Plan) -> str:
    words = recompute_phrases(problem, plan)
    told = [(word, words.count(word)) for word in dict.fromkeys(words) if word != "none"]
    if not told:
        return "no recomputation"
    places = [word if count == len(words) else f"{word} in {count} of {len(words)} stages" for word, count in told]
    return f"recompute {', '.join(places)}"


def _idle(problem: Problem, plan: Plan) -> str:
    used, there = len(plan.devices), len(problem.cluster.devices)
    return f"{there - used} of {there} {problem.device_word}s idle" if used < there else ""
