"""Language models: the families GPT, Llama and BERT, and published sizes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from simulator.workloads.layers import Workload
from simulator.workloads.transformer import Heads, Transformer


@dataclass(frozen=True, slots=True)
class Gpt(Transformer):
    """A GPT with learned positions and LayerNorm first.

    GPT-2: Radford et al. 2019, table 2; GPT-3: Brown et al. 2020, table 2.1.
    """


@dataclass(frozen=True, slots=True)
class Llama(Transformer):
    """A Llama: RMSNorm, rotary positions, SwiGLU and grouped-query attention.

    Touvron et al. 2023 ("Llama 2"), table 1 and section 2.2.
    """

    sequence: int = 4096
    vocabulary: int = 32000
    tied: bool = False
    rotary: bool = True
    gated: bool = True
    attention_bias: bool = False
    mlp_bias: bool = False
    norm_bias: bool = False
    dropout: bool = False


@dataclass(frozen=True, slots=True)
class Bert(Transformer):
    """A BERT: a bidirectional encoder with normalization after each half.

    Devlin et al. 2019; parameter counts as in Hugging Face's `BertModel` and its heads.
    """

    sequence: int = 512
    vocabulary: int = 30522
    positions: int = 512
    token_types: int = 2
    after: Heads = "pretraining"
    norm_first: bool = False


def _published(model: Transformer, summary: str) -> Callable[..., Workload]:
    """The workload of a model as a function of the tokens of a sample, by default as many as the model takes."""

    def workload(sequence: int = model.sequence) -> Workload:
        return replace(model, sequence=sequence).workload()

    workload.__doc__ = summary
    return workload


LANGUAGE_MODELS: dict[str, Callable[..., Workload]] = {
    model.name: _published(model, summary)
    for model, summary in (
        (Gpt(12, 768, 12, name="gpt2"), "GPT-2 small: 124,439,808 parameters."),
        (Gpt(24, 1024, 16, name="gpt2-medium"), "GPT-2 medium: 354,823,168 parameters."),
        (Gpt(36, 1280, 20, name="gpt2-large"), "GPT-2 large: 774,030,080 parameters."),
        (Gpt(48, 1600, 25, name="gpt2-xl"), "GPT-2 XL: 1,557,611,200 parameters."),
        (
            Gpt(96, 12288, 96, 2048, name="gpt3-175b"),
            "GPT-3: 96 blocks of 12,288 features (Brown et al. 2020, table 2.1); dense attention in every block.",
        ),
        (
            Gpt(14, 768, 12, name="gpt-14"),
            "A GPT with 14 blocks of GPT-2 small's width: a reading of UMPIPE's \"GPT1-14\" (sizes unpublished).",
        ),
        (Llama(32, 4096, 32, intermediate=11008, name="llama2-7b"), "Llama 2 7B: 6,738,415,616 parameters."),
        (
            Bert(12, 768, 12, name="bert-base"),
            "BERT-base with pre-training heads: 110,106,428 parameters (109,482,240 without, with the pooler).",
        ),
        (
            Bert(24, 1024, 16, name="bert-large"),
            "BERT-large with pre-training heads: 336,226,108 parameters (335,141,888 without, with the pooler).",
        ),
    )
}
"""Published sizes, by name."""
