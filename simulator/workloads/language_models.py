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


def _published(model: Transformer) -> Callable[..., Workload]:
    """The workload of a model as a function of the tokens of a sample, by default as many as the model takes."""

    def workload(sequence: int = model.sequence) -> Workload:
        return replace(model, sequence=sequence).workload()

    return workload


LANGUAGE_MODELS: dict[str, Callable[..., Workload]] = {
    model.name: _published(model)
    for model in (
        Gpt(12, 768, 12, name="gpt2"),  # 124,439,808 parameters
        Gpt(24, 1024, 16, name="gpt2-medium"),  # 354,823,168
        Gpt(36, 1280, 20, name="gpt2-large"),  # 774,030,080
        Gpt(48, 1600, 25, name="gpt2-xl"),  # 1,557,611,200
        Gpt(96, 12288, 96, 2048, name="gpt3-175b"),  # dense attention in every block
        Gpt(14, 768, 12, name="gpt-14"),  # a reading of UMPIPE's "GPT1-14", whose sizes are unpublished
        Llama(32, 4096, 32, intermediate=11008, name="llama2-7b"),  # 6,738,415,616
        Bert(12, 768, 12, name="bert-base"),  # 110,106,428 (109,482,240 without heads, with the pooler)
        Bert(24, 1024, 16, name="bert-large"),  # 336,226,108 (335,141,888)
    )
}
"""Published sizes, by name."""
