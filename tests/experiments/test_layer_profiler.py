"""Rules of the layer profiler's bookkeeping, with a stand-in for PyTorch: who feeds whom, who owns which weight, what is said."""

from __future__ import annotations

import json
import math
import sys
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.records import Recorded, weights

Pair = namedtuple("Pair", "left right")


class Tensor:
    """A shape, where it comes from, and the bytes behind it (4 an element)."""

    def __init__(self, *shape: int, grad_fn: Any = None, floating: bool = True, address: int | None = None) -> None:
        self.shape, self.grad_fn, self.floating = shape, grad_fn, floating
        self.address, self.requires_grad, self.copies = address or id(self), False, 0

    def numel(self) -> int:
        return int(math.prod(self.shape))

    def untyped_storage(self) -> Any:
        return SimpleNamespace(data_ptr=lambda: self.address, nbytes=lambda: 4 * self.numel())

    def detach(self) -> Tensor:
        return self

    def clone(self) -> Tensor:
        copy = Tensor(*self.shape, floating=self.floating)
        copy.copies = self.copies + 1
        return copy

    def to(self, device: str) -> Tensor:
        return self

    def is_floating_point(self) -> bool:
        return self.floating

    def requires_grad_(self, wanted: bool = True) -> Tensor:
        self.requires_grad = wanted
        return self


def node(*before: Any) -> SimpleNamespace:
    """A node of the graph that gradients flow back through."""
    return SimpleNamespace(next_functions=[(one, 0) for one in before])


class Module:
    """Children by name, weights by name, and hooks around a call."""

    def __init__(self, weights: dict[str, Tensor] | None = None, run: Any = None, **children: Module) -> None:
        self.weights, self.run, self.inner = weights or {}, run, children
        self.before: list[Any] = []
        self.after: list[Any] = []

    def __call__(self, *given: Any, **named: Any) -> Any:
        for hook in self.before:
            hook(self, given, named)
        result = self.run(*given, **named)
        for hook in self.after:
            hook(self, given, result)
        return result

    def children(self) -> Iterator[Module]:
        yield from self.inner.values()

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        yield prefix, self
        for name, child in self.inner.items():
            yield from child.named_modules(f"{prefix}.{name}" if prefix else name)

    def modules(self) -> Iterator[Module]:
        yield from (module for _, module in self.named_modules())

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        for name, module in self.named_modules():
            yield from ((f"{name}.{own}" if name else own, weight) for own, weight in module.weights.items())

    def parameters(self) -> Iterator[Tensor]:
        yield from (weight for _, weight in self.named_parameters())

    def register_forward_pre_hook(self, hook: Any, with_kwargs: bool) -> Any:
        self.before.append(hook)
        return SimpleNamespace(remove=lambda: self.before.remove(hook))

    def register_forward_hook(self, hook: Any) -> Any:
        self.after.append(hook)
        return SimpleNamespace(remove=lambda: self.after.remove(hook))

    def to(self, device: str) -> Module:
        return self

    def train(self) -> Module:
        return self


class Linear(Module):
    """A kind of layer."""


class ReLU(Module):
    """Another."""


class Attention(Module):
    """A module with children that it does not call."""


@pytest.fixture
def profiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The profiler, loaded with the stand-in."""
    nn, torch = ModuleType("torch.nn"), ModuleType("torch")
    vars(nn).update(Module=Module, MultiheadAttention=Attention, RNNBase=type("RNNBase", (Module,), {}))
    saving: list[Any] = []

    @contextmanager
    def saved_tensors_hooks(save: Any, load: Any) -> Iterator[None]:
        saving.append(save)
        yield
        saving.pop()

    random = SimpleNamespace(manual_seed=lambda seed: seed)
    vars(torch).update(
        nn=nn,
        Tensor=Tensor,
        __version__="stand-in",
        saving=saving,
        autograd=SimpleNamespace(
            graph=SimpleNamespace(saved_tensors_hooks=saved_tensors_hooks),
            grad=lambda outputs, wanted, gradients, allow_unused: (outputs, wanted, gradients, allow_unused),
        ),
        Generator=lambda: random,
        randn=lambda shape, generator: Tensor(*shape),
        randint=lambda most, shape, generator: Tensor(most, *shape, floating=False),
        ones_like=lambda one: ("ones", one),
        cuda=SimpleNamespace(
            is_available=lambda: False, get_device_name=lambda: "a card", synchronize=lambda: saving.append("waited")
        ),
        get_num_threads=lambda: 2,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.nn", nn)
    monkeypatch.delitem(sys.modules, "experiments.profiling.layer_profiler", raising=False)
    import experiments.profiling.layer_profiler as loaded

    yield loaded
    sys.modules.pop("experiments.profiling.layer_profiler")


def test_producers_are_found_through_what_lies_between(profiler: Any) -> None:
    """Back from a sum to the nearest calls on every path, each once, and not beyond them; nothing where nothing made it."""
    first, second = node(None), node(None)
    beyond = node(first)
    between = node(node(beyond), second, None)
    made_by = {id(first): 0, id(beyond): 1, id(second): 2}
    assert profiler._producers(Tensor(1, grad_fn=node(between, between)), made_by) == {1, 2}
    assert profiler._producers(Tensor(1), made_by) == set()


def test_nests_are_walked_and_copied(profiler: Any) -> None:
    """Tensors of tuples, lists, objects and named tuples, in order; copies keep the nest and ask for gradients of reals."""
    one, two, three, four = Tensor(1), Tensor(2, floating=False), Tensor(3), Tensor(4)
    nest = (one, [two, "word"], {"a": Pair(three, 7)}, four)
    assert list(profiler._tensors(nest)) == [one, two, three, four]
    detached = profiler._mapped(nest, profiler._detached)
    assert [tensor.requires_grad for tensor in profiler._tensors(detached)] == [True, False, True, True]
    assert (type(detached), type(detached[1]), detached[1][1], detached[2]["a"].right) == (tuple, list, "word", 7)
    assert isinstance(detached[2]["a"], Pair)
    fresh, named = profiler._fresh(SimpleNamespace(arguments=detached, named={"b": one}))
    assert [tensor.copies for tensor in profiler._tensors((fresh, named))] == [2, 2, 2, 2, 1]
    assert (type(fresh[1]), fresh[1][1], fresh[2]["a"].right, list(named)) == (list, "word", 7, ["b"])


def test_layers_are_modules_without_children_of_their_own(profiler: Any) -> None:
    """Attention counts as one layer and its children as none; a model that is one layer is called by its class."""
    inner = Attention(out=Linear())
    shared = ReLU()
    model = Module(first=Linear(), block=Module(attention=inner, act=shared), act=shared)
    assert profiler._leaves(model) == {model.inner["first"]: "first", inner: "block.attention", shared: "block.act"}
    alone = Linear()
    assert profiler._leaves(alone) == {alone: "Linear"}


def test_weights_belong_to_the_call_that_uses_them(profiler: Any) -> None:
    """A loose weight counts at the first layer of its parent, or at the first of all; a shared one is tied to its first owner."""
    table, own, scale, loose = Tensor(5, 4), Tensor(3), Tensor(2), Tensor(7)
    first, second, head = Linear({"w": table}), Linear({"w": own}), Linear({"w": table, "b": Tensor(4)})
    model = Module({"loose": loose}, first=first, block=Module({"scale": scale}, second=second), head=head)
    calls = [
        SimpleNamespace(name=name, module=module)
        for name, module in (("first", first), ("block.second", second), ("head", head))
    ]
    found = profiler._weights(model, calls)
    assert [(one.own, one.tied_to, one.tied) for one in found] == [(27, None, 0), (5, None, 0), (4, 0, 20)]
    assert [profiler._tied(calls, one) for one in found] == [{}, {}, {"tied_to": "first", "tied_parameters": 20}]
    assert (profiler._kind(first), profiler._kind(ReLU()), profiler._kind(Module())) == (
        "linear",
        "activation",
        "elementwise",
    )


def test_a_trace_notes_every_call(profiler: Any) -> None:
    """Names (a second run of a module is numbered), producers, elements made, bytes saved but for weights and what is known."""
    weight = Tensor(6)
    torch = sys.modules["torch"]

    def linear(one: Tensor, bias: Tensor | None = None) -> Tensor:
        result = Tensor(2, 8, grad_fn=node(one.grad_fn))
        for saved in (weight, one, one, Tensor(10)):
            torch.saving[-1](saved)
        return result

    layer, act = Linear({"w": weight}, linear), ReLU(run=lambda one: (Tensor(3, grad_fn=node(one.grad_fn)), "word"))

    def run(given: Tensor) -> Tensor:
        torch.saving[-1](Tensor(1000))
        middle = layer(given)
        small, _ = act(middle)
        again = layer(small, bias=middle)
        assert isinstance(again, Tensor)
        return again

    model = Module(run=run, layer=layer, act=act)
    settings = profiler.ProfileSettings(input_shape=(5,), sizes=(2,))
    calls = profiler._trace(model, settings, 2)
    assert [(one.name, one.producers, one.output_elements) for one in calls] == [
        ("layer_Linear", (), 16), ("act_ReLU", (0,), 3), ("layer_Linear_2", (0, 1), 16)
    ]  # fmt: skip
    assert [one.stashed_bytes for one in calls] == [4 * (10 + 10), 0, 4 * (3 + 10)]
    assert [list(one.named) for one in calls] == [[], [], ["bias"]]
    assert layer.before == layer.after == []
    assert profiler._Call("new", layer).output_elements == 0
    with pytest.raises(profiler.ModelError, match="runs no module"):
        profiler._trace(Module(run=lambda given: given, layer=layer), settings, 2)
    failing = Module(run=lambda given: (_ for _ in ()).throw(ValueError("of  no\nuse" + "!" * 400)), layer=layer)
    with pytest.raises(profiler.ModelError, match=r"^the model fails on an input of 2x5: ValueError: of no use!{291}$"):
        profiler._trace(failing, settings, 2)


def test_gradients_are_made_where_there_are_any(profiler: Any) -> None:
    """Of the results that have one, for what is wanted; None where there is nothing to make or nobody who wants it."""
    real, whole, weight = Tensor(1).requires_grad_(), Tensor(1), Tensor(2)
    made = profiler._backward([real, whole], [weight])
    assert made() == ([real], [weight], [("ones", real)], True)
    assert profiler._backward([whole], [weight]) is None
    assert profiler._backward([real], []) is None


def test_inputs_and_machines(profiler: Any) -> None:
    """Reals that ask for a gradient, or token ids; a card is waited for and named, and refused where there is none."""
    reals = profiler._input(profiler.ProfileSettings(input_shape=(3, 4)), 2)
    assert (reals.shape, reals.requires_grad) == ((2, 3, 4), True)
    assert asdict(profiler.ProfileSettings((3,))) == {
        "input_shape": (3,), "sizes": (1, 2, 4, 8), "device": "cpu", "vocabulary": 0, "warm_up": 3, "repeats": 11, "seed": 0
    }  # fmt: skip
    tokens = profiler._input(profiler.ProfileSettings(input_shape=(3,), vocabulary=50), 2)
    assert (tokens.shape, tokens.requires_grad) == ((50, 2, 3), False)
    torch: Any = sys.modules["torch"]
    profiler.synchronize("cpu")
    assert torch.saving == []
    profiler.synchronize("cuda")
    assert torch.saving == ["waited"]
    assert profiler.device_name("cuda") == "a card"
    assert profiler.device_name("cpu").endswith(", 2 threads")
    profiler.check_device("cpu")
    with pytest.raises(profiler.ModelError, match="torch finds no CUDA device here"):
        profiler.check_device("cuda")
    torch.cuda.is_available = lambda: True
    profiler.check_device("cuda")


@pytest.mark.parametrize(
    ("shape", "vocabulary", "sample"), [((3, 8, 8), 0, "image"), ((7,), 50, "sequence"), ((7,), 0, "sample")]
)
def test_profiles_are_put_together(
    shape: tuple[int, ...],
    vocabulary: int,
    sample: str,
    profiler: Any,
    monkeypatch: pytest.MonkeyPatch,
    recorded: Recorded,
) -> None:
    """Two layers at two sizes: elements, FLOP and bytes per sample of the largest, timings by rising size, edges, the spread."""
    layers = (Linear({"w": Tensor(5, 4)}), ReLU())
    seen: list[Any] = []

    def trace(model: Any, settings: Any, size: int) -> list[Any]:
        return [
            profiler._Call("a", layers[0], output_elements=6 * size, stashed_bytes=80 * size),
            profiler._Call("b", layers[1], producers=(0,), output_elements=3 * size, stashed_bytes=16 * size),
        ]

    def time_layer(call: Any, size: int, settings: Any) -> dict[str, float]:
        seconds = size * (1e-3 if call.name == "a" else 5e-4)
        spreads = {"forward_spread": 0.1, "backward_spread": 0.3 if call.name == "a" else 0.05}
        return {"samples": size, "forward_seconds": seconds, "backward_seconds": 2 * seconds, **spreads}

    monkeypatch.setattr(profiler, "_trace", trace)
    monkeypatch.setattr(profiler, "_time_layer", time_layer)
    monkeypatch.setattr(profiler, "_time_whole", lambda model, settings, size: {
        "samples": size, "forward_seconds": 2e-3 * size, "backward_seconds": 3e-3 * size})  # fmt: skip
    monkeypatch.setattr(profiler, "_flop", lambda call: 400.0 if call.name == "a" else 0.0)
    monkeypatch.setattr(profiler, "device_name", lambda device: "a machine")
    settings = profiler.ProfileSettings(input_shape=shape, sizes=(4, 2), vocabulary=vocabulary, warm_up=1, repeats=5)
    profile = profiler.profile_model(
        Module(a=layers[0], b=layers[1]), "two", "two of them", settings, lambda *said: seen.append(said)
    )
    assert profile.sample == sample
    found = json.loads(profile.to_json())
    recorded(profile=found if vocabulary else weights(found), said=seen)
    other = iter((["a", "b"], ["a"]))
    monkeypatch.setattr(profiler, "_trace", lambda *given: [profiler._Call(name, layers[0]) for name in next(other)])
    with pytest.raises(
        profiler.ModelError, match="two of them: the model runs other layers at 4 samples than at fewer"
    ):
        profiler.profile_model(Module(), "two", "two of them", settings)
