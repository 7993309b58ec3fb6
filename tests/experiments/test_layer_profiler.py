"""Layer profiler with a stand-in for PyTorch: who feeds whom, who owns which weight, what is timed, what is said."""

from __future__ import annotations

import json
import math
import sys
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import cycle
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.records import Recorded

Pair = namedtuple("Pair", "left right")


class Tensor:
    """A shape, where it comes from, how long its gradients take (seconds), and the bytes behind it (4 an element)."""

    def __init__(self, *shape: int, grad_fn: Any = None, floating: bool = True, seconds: float = 0.0) -> None:
        self.shape, self.grad_fn, self.floating, self.seconds = shape, grad_fn, floating, seconds
        self.requires_grad, self.copies = False, 0

    def numel(self) -> int:
        return int(math.prod(self.shape))

    def untyped_storage(self) -> Any:
        return SimpleNamespace(data_ptr=lambda: id(self), nbytes=lambda: 4 * self.numel())

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
    """The profiler, loaded with the stand-in, which notes what gradients are asked for and counts FLOP and seconds."""
    nn, torch, counting = ModuleType("torch.nn"), ModuleType("torch"), ModuleType("torch.utils.flop_counter")
    vars(nn).update(Module=Module, MultiheadAttention=Attention, RNNBase=type("RNNBase", (Module,), {}))
    saving: list[Any] = []

    @contextmanager
    def saved_tensors_hooks(save: Any, load: Any) -> Iterator[None]:
        saving.append(save)
        yield
        saving.pop()

    @contextmanager
    def flop_counter(display: bool) -> Iterator[Any]:
        torch.flop = 0.0
        yield SimpleNamespace(get_total_flops=lambda: torch.flop)

    def grad(outputs: Any, wanted: Any, gradients: Any, allow_unused: bool) -> None:
        assert allow_unused
        torch.asked.append((outputs, wanted, gradients))
        torch.now += outputs[0].seconds

    random = SimpleNamespace(manual_seed=lambda seed: seed)
    vars(torch).update(
        nn=nn,
        Tensor=Tensor,
        __version__="stand-in",
        saving=saving,
        asked=[],
        flop=0.0,
        now=0.0,
        autograd=SimpleNamespace(graph=SimpleNamespace(saved_tensors_hooks=saved_tensors_hooks), grad=grad),
        Generator=lambda: random,
        randn=lambda shape, generator: Tensor(*shape),
        randint=lambda most, shape, generator: Tensor(most, *shape, floating=False),
        ones_like=lambda one: ("ones", one),
        cuda=SimpleNamespace(
            is_available=lambda: False, get_device_name=lambda: "a card", synchronize=lambda: saving.append("waited")
        ),
        get_num_threads=lambda: 2,
    )  # fmt: skip
    vars(counting).update(FlopCounterMode=flop_counter)
    for module in (torch, nn, counting):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delitem(sys.modules, "experiments.profiling.layer_profiler", raising=False)
    import experiments.profiling.layer_profiler as loaded

    monkeypatch.setattr(loaded, "time", SimpleNamespace(perf_counter=lambda: torch.now))
    yield loaded
    sys.modules.pop("experiments.profiling.layer_profiler")


def passed_on(*given: Tensor, **named: Tensor) -> Tensor:
    """A layer's result of one element, whose gradient flows back into all that the layer reads."""
    made = Tensor(1, grad_fn=node(*(one.grad_fn for one in (*given, *named.values()))), seconds=1.0)
    return made.requires_grad_()


def profile_of(profiler: Any, model: Module, **said: Any) -> dict[str, Any]:
    """The document of a model's profile: of 2 samples of five elements, timed once, unless said otherwise."""
    settings = profiler.ProfileSettings(**{"input_shape": (5,), "sizes": (2,), "warm_up": 0, "repeats": 1} | said)
    document: dict[str, Any] = json.loads(profiler.profile_model(model, "some", "some of them", settings).to_json())
    return document


def columns(document: dict[str, Any], *names: str) -> list[tuple[Any, ...]]:
    """Of every layer."""
    return [tuple(layer[name] for name in names) for layer in document["layers"]]


def test_producers_are_found_through_what_lies_between(profiler: Any) -> None:
    """Back from a sum to the nearest calls on every path, each once, and not beyond them; nothing where nothing made it."""
    first, second, third, last, alone = (Linear(run=passed_on) for _ in range(5))

    def run(given: Tensor) -> Tensor:
        beyond, other = second(first(given)), third(given)
        between = node(node(beyond.grad_fn), other.grad_fn, None)
        alone(Tensor(1))
        result: Tensor = last(Tensor(1, grad_fn=node(between, between)))
        return result

    model = Module(run=run, first=first, second=second, third=third, last=last, alone=alone)
    assert profile_of(profiler, model)["edges"] == [[0, 1], [1, 4], [2, 4]]


def test_a_layer_is_timed_on_copies_of_what_it_was_given(profiler: Any) -> None:
    """Nests of tuples, lists, objects and named tuples keep their form; each run has copies of its own, joined to those of the
    trace, whose reals ask for a gradient, as do weights that are trained: of the results that have one."""
    torch: Any = sys.modules["torch"]
    one, two, three, four, five = Tensor(1), Tensor(2, floating=False), Tensor(3), Tensor(4), Tensor(5)
    seen: list[Any] = []

    def nested(*given: Any, **named: Any) -> Any:
        seen.append((given, named))
        return Tensor(1), {"real": passed_on()}

    layer = Linear({"trained": Tensor(7).requires_grad_(), "fixed": Tensor(8)}, nested)

    def run(given: Tensor) -> Any:
        return layer(one, [two, "word"], {"a": Pair(three, 7)}, four, b=five)

    profile_of(profiler, Module(run=run, layer=layer))
    assert [(given[0].copies, named["b"].copies) for given, named in seen] == [(0, 0), (2, 2), (0, 0), (2, 2)]
    for given, named in seen[1::2]:
        (first, (second, word), objects, fourth), fifth = given, named["b"]
        assert (type(given[1]), word, type(objects["a"]), objects["a"].right) == (list, "word", Pair, 7)
        copies = (first, second, objects["a"].left, fourth, fifth)
        assert [(copy.copies, *copy.shape) for copy in copies] == [(2, place) for place in range(1, 6)]
    assert seen[1][0][0] is not seen[3][0][0]
    (_, wanted, _), (_, of_model, _) = torch.asked
    assert [(tensor.copies, *tensor.shape) for tensor in wanted] == [(1, 1), (1, 3), (1, 4), (1, 5), (0, 7)]
    assert [tensor.shape for tensor in of_model] == [(7,)]
    for outputs, _, gradients in torch.asked:
        assert [tensor.seconds for tensor in outputs] == [1.0]
        assert gradients == [("ones", outputs[0])]


@pytest.mark.parametrize(("result", "given"), [(Tensor(1), Tensor(1)), (passed_on(), Tensor(1, floating=False))])
def test_no_gradients_are_made_where_there_are_none(profiler: Any, result: Tensor, given: Tensor) -> None:
    """Nothing that has one, or nobody who wants it: a backward takes no time."""
    torch: Any = sys.modules["torch"]
    layer = ReLU(run=lambda one: result)
    document = profile_of(profiler, Module(run=lambda one: layer(given), layer=layer))
    assert torch.asked == []
    assert document["layers"][0]["timings"][0]["backward_seconds"] == 0.0


def test_layers_are_modules_without_children_of_their_own(profiler: Any) -> None:
    """Attention counts as one layer and its children as none; a model that is one layer is called by its class."""
    out, first, shared = (kind(run=passed_on) for kind in (Linear, Linear, ReLU))
    inner = Attention(run=out, out=out)
    block = Module(attention=inner, act=shared)
    model = Module(run=lambda one: shared(inner(first(one))), first=first, block=block, act=shared)
    names = [("first_Linear",), ("block.attention_Attention",), ("block.act_ReLU",)]
    assert columns(profile_of(profiler, model), "name") == names
    assert columns(profile_of(profiler, Linear(run=passed_on)), "name") == [("Linear",)]


def test_weights_belong_to_the_call_that_uses_them(profiler: Any) -> None:
    """A loose weight counts at the first layer of its parent, or at the first of all; a shared one is tied to its first owner."""
    table = Tensor(5, 4)
    first, second, head = (
        Linear(weights, passed_on) for weights in ({"w": table}, {"w": Tensor(3)}, {"w": table, "b": Tensor(4)})
    )
    third, act, plain = (kind(run=passed_on) for kind in (Linear, ReLU, Module))
    block = Module({"scale": Tensor(2)}, second=second, third=third)
    model = Module(
        {"loose": Tensor(7)},
        lambda one: plain(act(head(third(second(first(one)))))),
        first=first,
        block=block,
        head=head,
        act=act,
        plain=plain,
        idle=Module({"scale": Tensor(9)}, never=Linear()),
    )
    assert columns(profile_of(profiler, model), "parameters", "tied_to", "tied_parameters", "kind") == [
        (20 + 7 + 9, "", 0, "linear"),
        (3 + 2, "", 0, "linear"),
        (0, "", 0, "linear"),
        (4, "first_Linear", 20, "linear"),
        (0, "", 0, "activation"),
        (0, "", 0, "elementwise"),
    ]


def test_a_trace_notes_every_call(profiler: Any) -> None:
    """Names (a second run of a module is numbered), producers, elements made, bytes saved but for weights and what is known."""
    weight = Tensor(6)
    torch: Any = sys.modules["torch"]

    def saves(*tensors: Tensor) -> None:
        for tensor in tensors if torch.saving else ():
            torch.saving[-1](tensor)

    def linear(one: Tensor, bias: Tensor | None = None) -> Tensor:
        saves(weight, one, one, Tensor(10))
        return Tensor(2, 8, grad_fn=node(one.grad_fn, bias and bias.grad_fn))

    layer = Linear({"w": weight}, linear)
    act = ReLU(run=lambda one: (Tensor(3, grad_fn=node(one.grad_fn)), "word", Tensor(1)))
    silent = ReLU(run=lambda one: "word")

    def run(given: Tensor) -> Tensor:
        saves(Tensor(1000))
        middle = layer(given)
        small, _, _ = act(middle)
        silent(small)
        again: Tensor = layer(small, bias=middle)
        return again

    model = Module(run=run, layer=layer, act=act, silent=silent)
    document = profile_of(profiler, model)
    assert columns(document, "name", "output_elements", "stashed_elements") == [
        ("layer_Linear", 16 / 2, (10 + 10) / 2),
        ("act_ReLU", (3 + 1) / 2, 0.0),
        ("silent_ReLU", 0.0, 0.0),
        ("layer_Linear_2", 16 / 2, (3 + 10) / 2),
    ]
    assert document["edges"] == [[0, 1], [1, 2], [0, 3], [1, 3]]
    assert layer.before == layer.after == act.before == []


def failing(given: Tensor) -> Tensor:
    """What a model's forward says of an input that is not for it, in too many words."""
    raise ValueError("of  no\nuse" + "!" * 400)


def test_models_that_cannot_be_profiled_are_refused(profiler: Any) -> None:
    """One that runs no layer, one that fails, and one that runs others with more samples: in one short line each."""
    layer, other = Linear(run=passed_on), ReLU(run=passed_on)
    for run, said in (
        (lambda given: given, "^the model runs no module; there is nothing to measure$"),
        (failing, r"^the model fails on an input of 2x5: ValueError: of no use!{291}$"),
        (
            lambda given: layer(given) if given.shape[0] == 2 else other(layer(given)),
            "^some of them: the model runs other layers at 4 samples than at fewer$",
        ),
    ):
        with pytest.raises(profiler.ModelError, match=said):
            profile_of(profiler, Module(run=run, layer=layer, other=other), sizes=(4, 2))
        assert layer.before == layer.after == []


def test_inputs_and_machines(profiler: Any) -> None:
    """Reals that ask for a gradient, or token ids; a card is waited for and named, and refused where there is none."""
    seen: list[Any] = []
    layer = ReLU(run=passed_on)

    def run(given: Tensor) -> Tensor:
        seen.append((given.shape, given.requires_grad))
        result: Tensor = layer(given)
        return result

    for said in ({"input_shape": (3, 4)}, {"input_shape": (3,), "vocabulary": 50}):
        profile_of(profiler, Module(run=run, layer=layer), **said)
    assert seen == [((2, 3, 4), True)] * 2 + [((50, 2, 3), False)] * 2  # traced, and timed as a whole
    assert asdict(profiler.ProfileSettings((3,))) == {
        "input_shape": (3,), "sizes": (1, 2, 4, 8), "device": "cpu", "vocabulary": 0, "warm_up": 3, "repeats": 11, "seed": 0
    }  # fmt: skip
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
def test_a_profile_says_of_what_its_samples_are(
    shape: tuple[int, ...], vocabulary: int, sample: str, profiler: Any
) -> None:
    """Inputs of three dimensions are images, token ids sequences."""
    model = Linear(run=passed_on)
    document = profile_of(profiler, model, input_shape=shape, vocabulary=vocabulary)
    assert (document["sample"], tuple(document["measurement"]["input_shape"])) == (sample, shape)


class Timed(Linear):
    """A layer of known seconds and FLOP per sample; of six passes the first counts none, the others vary around their median.

    spread: interquartile ranges of the forwards and backwards over their medians
    """

    def __init__(self, seconds: float, spread: tuple[float, float], flop: float, **more: Any) -> None:
        super().__init__(run=self.passed, **more)
        vary = (-1.0, -0.5, 0.0, 0.5, 1.0)
        self.factors = cycle([(50.0, 50.0), *(tuple(1.0 + one * way for one in spread) for way in vary)])
        self.seconds, self.flop = seconds, flop

    def passed(self, one: Tensor) -> Tensor:
        torch: Any = sys.modules["torch"]
        samples = one.shape[0]
        made = Tensor(samples, 3, grad_fn=node(one.grad_fn)).requires_grad_()
        torch.flop += self.flop * samples
        if torch.saving:  # the trace
            torch.saving[-1](Tensor(samples, 5))
        else:
            forward, backward = next(self.factors)
            torch.now += forward * self.seconds * samples
            made.seconds = 2 * backward * self.seconds * samples
        return made


def test_profiles_are_put_together(profiler: Any, monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    """Two layers at two sizes: elements, FLOP and bytes per sample, timings by rising size, edges, the spread."""
    layers = {
        "a": Timed(1e-3, (0.1, 0.3), 100.0, weights={"w": Tensor(5, 4).requires_grad_()}), "b": Timed(5e-4, (0.1, 0.05), 0.0)
    }  # fmt: skip
    monkeypatch.setattr(profiler, "device_name", lambda device: "a machine")
    seen: list[Any] = []
    settings = profiler.ProfileSettings(input_shape=(7,), sizes=(4, 2), vocabulary=0, warm_up=1, repeats=5)
    model = Module(run=lambda one: layers["b"](layers["a"](one)), **layers)
    profile = profiler.profile_model(model, "two", "two of them", settings, lambda *said: seen.append(said))
    recorded(profile=json.loads(profile.to_json()), said=seen)
