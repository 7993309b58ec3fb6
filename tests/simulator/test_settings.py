"""Settings: a problem with changed values is the problem of the changed files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hardware_profiles import Cluster, SettingError, load_cluster, load_stack, profile_text
from simulator import Plan, Problem, Stage, change_settings, simulate, values_of, workload_from_spec
from simulator.settings import adapted_plan, numbers_of
from tests.simulator.strategies import chain_cluster


def problem(cluster: str = "dgx-h100:2", batch: int = 8, **training: object) -> Problem:
    """A small language model on a few servers."""
    return Problem(workload_from_spec("gpt2"), load_cluster(cluster), batch, **training)  # type: ignore[arg-type]


def in_halves(one: Problem, device: int) -> Plan:
    """Two stages, on the first device and another one, cut before the seventh of twelve blocks."""
    blocks = [layer.block for layer in one.workload.layers]
    cut, end = blocks.index(7), len(blocks)
    stages = Stage(tuple(range(cut)), (0,)), Stage(tuple(range(cut, end)), (device,))
    return Plan("hand", "1f1b", stages, (2,) * (one.batch // 2))


def written(folder: Path, text: str, changes: dict[str, str], name: str) -> str:
    """A file of a bundled profile's text with lines changed, each of which is there."""
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def test_what_is_set_is_what_the_changed_files_say(tmp_path: Path) -> None:
    """A network half as fast, three servers, chips that are a tenth faster: the same seconds as from files that say so."""
    chip = written(tmp_path, profile_text("h100"), {"tflops_bf16 = 989.5": "tflops_bf16 = 1088.45"}, "h100.toml")
    lines = {
        "bandwidth_gbps = 400": "bandwidth_gbps = 200",
        "count = 2": "count = 3",
        'accelerator = "h100"': f'accelerator = "{chip}"',
    }
    cluster = load_cluster(written(tmp_path, profile_text("dgx-h100"), lines, "mine.toml"))
    before = problem(precision="bf16")
    settings = ("network.bandwidth_gbps=200", "servers=3", "accelerator.tflops_bf16=+10%")
    found = change_settings(before, settings)
    assert len(found.problem.cluster.devices) == 24
    plan = in_halves(before, 8)
    changed, asked = (simulate(one, plan) for one in (found.problem, replace(before, cluster=cluster)))
    assert changed.iteration_seconds == asked.iteration_seconds != simulate(before, plan).iteration_seconds
    assert [str(one) for one in found.changes] == [
        "cluster.network.bandwidth_gbps: 400 -> 200",
        "cluster.servers.count: 2 -> 3",
        "accelerator.compute.tflops_bf16: 989.5 -> 1088.45",
    ]


def test_every_value_may_be_set_to_itself() -> None:
    """All values of a problem, its cluster, chips and stack, and of a plan, set to what they are, change nothing."""
    before = problem("sailor-mit-2", stack=load_stack("megatron-core"))
    plan = in_halves(before, 1)
    values = {path: value for path, value in values_of(before, plan).items() if value is not None}
    assert len(values) > 150
    found = change_settings(before, values, plan)
    assert all(one.before == one.after for one in found.changes)
    assert (found.plan, found.problem.cluster) == (plan, before.cluster)
    assert simulate(found.problem, plan).iteration_seconds == simulate(before, plan).iteration_seconds


def test_values_are_those_of_what_is_there() -> None:
    """Of a plan only where there is one, of a machine only where a file says it: none of a cluster that was made in Python."""
    before = problem()
    roots = {path.partition(".")[0] for path in values_of(before, in_halves(before, 1))}
    assert {"cluster", "accelerator", "stack", "plan"} <= roots
    assert {path.partition(".")[0] for path in values_of(before)} == roots - {"plan"}
    ours = Problem(before.workload, chain_cluster(2), 8)
    assert {path.partition(".")[0] for path in values_of(ours)} == roots - {"plan", "cluster", "accelerator"}


def test_settings_are_applied_from_the_problem_down() -> None:
    """Whatever their order: servers are those of the cluster that is named, chips those that it is set to."""
    texts = ["accelerator.memory_gib=*2", "servers=*2", "accelerator=b200", "cluster=dgx-h100:3", "batch=+8"]
    found = change_settings(problem(), texts).problem
    assert (len(found.cluster.servers), found.batch) == (6, 16)
    assert {device.name for device in found.cluster.devices} == {"b200"}
    (device,) = found.cluster.kinds[0]
    (before,) = load_cluster("dgx-b200").kinds[0]
    assert device.memory_bytes > 1.9 * before.memory_bytes


def test_a_switch_among_words_is_no_word() -> None:
    """True stands for recomputing whole stages; a number is none of the policies."""
    assert change_settings(problem(), ["problem.recompute=true"]).problem.recompute == "whole"
    with pytest.raises(ValueError, match="recompute"):
        change_settings(problem(), ["problem.recompute=1"])


def test_a_constant_changes_on_every_generation() -> None:
    """That of a stack which has another one on some chips, and one which the stack does not say."""
    before = problem(stack=load_stack("megatron-core"))
    (device,) = before.cluster.kinds[0]
    stack = change_settings(before, {"stack.products": "*2", "stack.attention": 1.5}).problem.stack
    assert stack.products.on(device) == 2.0 * before.stack.products.on(device)
    assert stack.products.value == 2.0 * before.stack.products.value
    assert stack.attention.on(device) == 1.5


def test_the_devices_in_use_stay_so() -> None:
    """Of a problem on the first four devices, another network leaves these."""
    four = replace(problem(), cluster=load_cluster("dgx-h100").take(4))
    assert len(change_settings(four, {"network.latency_us": 50}).problem.cluster.devices) == 4
    assert len(change_settings(four, {"problem.cluster.devices": "*3"}).problem.cluster.devices) == 12


def test_one_of_two_kinds_of_chip() -> None:
    """A change of one kind leaves the other."""
    before = problem("sailor-mit-2")
    names = [kind.name for kind in before.cluster.kinds[0]]
    assert len(names) == 2
    after = change_settings(before, [f"accelerator[{names[0]}].memory_gib=+1"]).problem.cluster.kinds[0]
    grown = {kind.name: kind.memory_bytes for kind in after}
    assert [grown[kind.name] > kind.memory_bytes for kind in before.cluster.kinds[0]] == [True, False]


def test_a_problem_takes_another_stack_by_its_name() -> None:
    """That of the file."""
    found = change_settings(problem(), ["problem.stack=megatron-core"]).problem
    assert found == replace(problem(), stack=load_stack("megatron-core"))


@pytest.mark.parametrize(
    ("batch", "microbatches", "words"),
    [
        (20, (4,) * 5, "3 micro-batches of 4 -> 5 of 4, for a batch of 20"),
        (6, (2, 2, 2), "3 micro-batches of 4 -> 3 of 2, for a batch of 6"),
        (24, (4,) * 6, "3 micro-batches of 4 -> 6 of 4, for a batch of 24"),
        (7, (4, 4, 4), ""),
        (12, (4, 4, 4), ""),
    ],
)
def test_micro_batches_follow_the_batch(batch: int, microbatches: tuple[int, ...], words: str) -> None:
    """As many of their size, or else as many of another size; where neither goes they stay."""
    before = problem(batch=12)
    plan = replace(in_halves(before, 1), microbatches=(4, 4, 4))
    found = change_settings(before, {"batch": batch}, plan)
    assert adapted_plan(before, plan, found) == (replace(plan, microbatches=microbatches), words)


def test_micro_batches_of_unlike_sizes_or_of_a_setting_stay() -> None:
    """Whatever the batch is."""
    before = problem(batch=12)
    plan = replace(in_halves(before, 1), microbatches=(4, 4, 4))
    unlike = replace(plan, microbatches=(4, 6, 2))
    assert adapted_plan(before, unlike, change_settings(before, {"batch": 24}, unlike)) == (unlike, "")
    ordered = replace(plan, order=("0F0 0B0", "1F0 1B0"))
    assert adapted_plan(before, ordered, change_settings(before, {"batch": 24}, ordered)) == (ordered, "")
    own = change_settings(before, {"batch": 24, "plan.microbatches": "12,12"}, plan)
    assert adapted_plan(before, plan, own) == (replace(plan, microbatches=(12, 12)), "")


def test_what_was_named_may_be_told_more_of() -> None:
    """Four devices of the cluster that the setting before has named, and the tokens of its workload."""
    settings = ("cluster=dgx-h100:3", "problem.cluster.devices=4", "workload=gpt2", "problem.workload.sequence=64")
    found = change_settings(replace(problem(), workload=workload_from_spec("vgg16")), settings).problem
    assert found.cluster == load_cluster("dgx-h100:3").take(4)
    assert found.workload == workload_from_spec("gpt2", sequence=64)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("network.bandwith=3", "'network.bandwith' names no value; near it: cluster.network.bandwidth_gbps"),
        ("devices=4", "'devices' names several values: problem.cluster.devices, cluster.servers.devices"),
        ("network.bandwidth_gbps=1e12", "must be from 1e-06 to 1e+07 (10^9 bits/s)"),
        ("network.bandwidth_gbps=fast", "$.network.bandwidth_gbps = 'fast': expected"),
        ("servers=0", "servers=0: $.servers[0].count = 0: must be from 1"),
        ("servers=*0.7", "servers=*0.7: 2 becomes 1.4, where a whole number is wanted"),
        ("accelerator=b20", "accelerator 'b20' is not known (did you mean b200?)"),
        ("precision=fp7", "must be one of bf16"),
        ("accelerator.memory_gib=1", "accelerator.memory_gib=1: $.reserve_gib = 2: must be below memory_gib, 1"),
        ("workload=vgg99", "did you mean vgg19?"),
        ("plan.zero=1", "names no value"),
        (
            "accelerator.call_us=+10%",
            "accelerator.call_us=+10%: there is no number to change, its file says none; give the value itself",
        ),
        ("accelerator=v100-sxm2", "v100-sxm2 has no rate for it"),
    ],
)
def test_what_cannot_be_set(setting: str, said: str) -> None:
    """One line with the setting, the rule and the nearest choices."""
    with pytest.raises(SettingError) as caught:
        change_settings(problem(precision="bf16"), [setting])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_cluster_of_python_has_no_files() -> None:
    """What is not its own can be set."""
    cluster = load_cluster("dgx-h100:1")
    made = Cluster("made", cluster.devices, cluster.nodes, cluster.switches, cluster.servers, cluster.links)
    one = replace(problem(), cluster=made)
    assert change_settings(one, {"batch": 16}).problem.batch == 16
    with pytest.raises(
        SettingError, match=r"network.bandwidth_gbps=1: cluster 'made' was made in Python: it has no file to change"
    ):
        change_settings(one, ["network.bandwidth_gbps=1"])
    with pytest.raises(
        SettingError, match=r"^cluster 'made' was made in Python: it has no file whose numbers could change$"
    ):
        numbers_of(one)
    assert numbers_of(problem(), None, ["network.bandwidth_gbps"]) == {"network.bandwidth_gbps": 400.0}
    with pytest.raises(SettingError, match=r"^batch: is no number above 0 that a file says$"):
        numbers_of(problem(), None, ["batch"])
