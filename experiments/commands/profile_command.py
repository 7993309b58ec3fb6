"""`pipeplan profile`: measure a PyTorch model layer by layer on this machine, and write a profile that planners read."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import simulator
from experiments.terminal.argument_types import (
    add_options,
    check_choice,
    check_torch,
    count,
    counts,
    natural,
    written_file,
)
from experiments.terminal.output import UsageError, output_file, print_table, progress, say

DEVICES = ("cpu", "cuda")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `pipeplan profile`."""
    parser.add_argument("model", metavar="MODEL", help="mlp, cnn, a torchvision classifier, or module:callable")
    add_options(
        parser,
        {
            "--input N,N,...": ("shape of one sample, as 3,224,224 (default: the model's own)", counts),
            "--vocabulary N": ("inputs are whole numbers below N (token ids) instead of reals", count),
            "--sizes N,N,...": ("micro-batch sizes in samples (default 1,2,4,8)", counts, [1, 2, 4, 8]),
            "--device DEVICE": ("cpu (default) or cuda", str, "cpu"),
            "--warm-up N": ("passes before measuring (default 3)", natural, 3),
            "--repeats N": ("measured passes (default 11)", count, 11),
            "--seed SEED": ("seed of inputs and weights (default 0)", natural, 0),
            "--out FILE": ("profile to write (default out/profiles/MODEL.json)", written_file),
            "--json": "print the profile",
        },
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure, write, print; a spread that is too large is said on stderr."""
    check_choice("--device", arguments.device, DEVICES)
    check_torch("a model")
    from experiments.profiling.layer_profiler import ProfileSettings, check_device, profile_model
    from experiments.profiling.profiled_models import find_model

    check_device(arguments.device)
    found = find_model(arguments.model, arguments.seed)
    input_shape = tuple(arguments.input) if arguments.input else found.input_shape
    if input_shape is None:
        raise UsageError(f"--input: the shape of one sample of {arguments.model!r} is needed, as 3,224,224")
    settings = ProfileSettings(
        input_shape=input_shape,
        sizes=tuple(sorted(set(arguments.sizes))),
        device=arguments.device,
        vocabulary=arguments.vocabulary or 0,
        warm_up=arguments.warm_up,
        repeats=arguments.repeats,
        seed=arguments.seed,
    )
    path = arguments.out or output_file(f"out/profiles/{found.name}.json")
    with progress(f"profiling {found.name}") as report:
        profile = profile_model(found.module, found.name, arguments.model, settings, report)
    simulator.write_atomically(path, profile.to_json())
    if not profile.measurement.steady:
        print(f"pipeplan profile: {_unsteady(profile)}", file=sys.stderr)
    if arguments.json:
        sys.stdout.write(profile.to_json())
    else:
        _print(profile, path)
    return 0


def _unsteady(profile: simulator.MeasuredProfile) -> str:
    weights = {
        layer.name: sum(
            one.forward_seconds * one.forward_spread + one.backward_seconds * one.backward_spread
            for one in layer.timings
        )
        for layer in profile.layers
    }
    worst = sorted(weights, key=lambda name: -weights[name])[:3]
    return (
        f"the spread (interquartile range over median, all layers) is {profile.measurement.spread:.2f}, more than "
        f"{simulator.STEADY_SPREAD}; most of it from {', '.join(worst)}; use a quieter machine or more --repeats"
    )


def _print(profile: simulator.MeasuredProfile, path: Path) -> None:
    measured = profile.measurement
    print_table(
        f"{profile.name} on {measured.device} ({measured.device_name}), {profile.minibatch} samples, "
        f"median of {measured.repeats}",
        ("layer", "kind", "parameters", "MFLOP per sample", "forward, ms", "spread", "backward, ms", "spread"),
        [
            (
                layer.name,
                layer.kind,
                f"{layer.parameters:,}",
                f"{layer.flop / 1e6:.3f}",
                f"{1e3 * layer.timings[-1].forward_seconds:.4f}",
                f"{layer.timings[-1].forward_spread:.3f}",
                f"{1e3 * layer.timings[-1].backward_seconds:.4f}",
                f"{layer.timings[-1].backward_spread:.3f}",
            )
            for layer in profile.layers
        ],
    )
    for whole in measured.whole:
        own = [one for layer in profile.layers for one in layer.timings if one.samples == whole.samples]
        layers = sum(one.forward_seconds + one.backward_seconds for one in own)
        print(
            f"{whole.samples} samples: layers {1e3 * layers:.4g} ms, the whole model at once "
            f"{1e3 * (whole.forward_seconds + whole.backward_seconds):.4g} ms"
        )
    say(f"{path} (pipeplan plan --profile {path})")
