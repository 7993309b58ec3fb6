"""Profiled models: what `pipeplan profile` may measure: `module:callable`, a torchvision name, or a small one here."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import nn

from experiments.terminal.output import UsageError


@dataclass(frozen=True, slots=True)
class ProfiledModel:
    """A model and what it is fed: the shape of one sample, None where only the user can know it."""

    name: str
    module: nn.Module
    input_shape: tuple[int, ...] | None


def mlp() -> nn.Module:
    """Four linear layers of 256, 1024, 1024, 1024 and 10 features."""
    return nn.Sequential(
        nn.Linear(256, 1024),
        nn.ReLU(),
        nn.Linear(1024, 1024),
        nn.ReLU(),
        nn.Linear(1024, 1024),
        nn.ReLU(),
        nn.Linear(1024, 10),
    )


def cnn() -> nn.Module:
    """A VGG of four convolutions for images of 3 x 32 x 32."""
    layers: list[nn.Module] = []
    for before, after, pooled in ((3, 64, False), (64, 64, True), (64, 128, False), (128, 128, True)):
        layers += [nn.Conv2d(before, after, kernel_size=3, padding=1), nn.ReLU(inplace=True)]
        layers += [nn.MaxPool2d(2)] if pooled else []
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 8 * 8, 512), nn.ReLU(inplace=True), nn.Linear(512, 10))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {"mlp": (mlp, (256,)), "cnn": (cnn, (3, 32, 32))}
"""Name -> what makes the model, shape of one sample."""


def find_model(spec: str, seed: int) -> ProfiledModel:
    """The model that a name or `module:callable` means, with initial weights drawn from the seed.

    The callable is called without arguments; an instance is taken as it is. Modules are looked up in the current folder, too.
    Raises UsageError for what is not there or is no model.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if ":" in spec:
            return ProfiledModel(spec.rpartition(":")[2].lower(), _imported(spec), None)
        if spec in MODELS:
            build, shape = MODELS[spec]
            return ProfiledModel(spec, build(), shape)
        return ProfiledModel(spec, _from_torchvision(spec), (3, 224, 224))


def _imported(spec: str) -> nn.Module:
    path, _, name = spec.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        made = getattr(import_module(path), name)
    except (ImportError, ValueError, SyntaxError) as error:
        raise UsageError(f"model {spec!r}: module {path!r} cannot be imported: {error}") from error
    except AttributeError as error:
        raise UsageError(f"model {spec!r}: {error}") from error
    if not isinstance(made, nn.Module):
        if not callable(made):
            raise UsageError(f"model {spec!r}: must be a model or a callable that makes one, got {type(made).__name__}")
        try:
            made = made()
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(f"model {spec!r}: must be callable without arguments: {error}") from error
    if not isinstance(made, nn.Module):
        raise UsageError(f"model {spec!r}: must make a torch.nn.Module, made a {type(made).__name__}")
    return made


def _from_torchvision(name: str) -> nn.Module:
    known = ", ".join(MODELS)
    if find_spec("torchvision") is None:
        raise UsageError(
            f"model {name!r} is unknown; choices: {known}, module:callable, torchvision's if it is installed"
        )
    try:
        models = import_module("torchvision.models")
    except (ImportError, RuntimeError, OSError) as error:  # built for another torch
        raise UsageError(f"model {name!r}: torchvision cannot be imported: {error}") from error
    if name not in models.list_models(module=models):
        raise UsageError(f"model {name!r} is unknown; choices: {known}, module:callable, torchvision's classifiers")
    built: nn.Module = models.get_model(name, weights=None)
    return built
