"""Language models: the families GPT, Llama and BERT, and published sizes of them."""

from __future__ import annotations

from dataclasses import dataclass

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


def gpt2(sequence: int = 1024) -> Workload:
    """GPT-2 small: 124,439,808 parameters."""
    return Gpt(12, 768, 12, sequence, positions=1024, name="gpt2").workload()


def gpt2_medium(sequence: int = 1024) -> Workload:
    """GPT-2 medium: 354,823,168 parameters."""
    return Gpt(24, 1024, 16, sequence, positions=1024, name="gpt2-medium").workload()


def gpt2_large(sequence: int = 1024) -> Workload:
    """GPT-2 large: 774,030,080 parameters."""
    return Gpt(36, 1280, 20, sequence, positions=1024, name="gpt2-large").workload()


def gpt2_xl(sequence: int = 1024) -> Workload:
    """GPT-2 XL: 1,557,611,200 parameters."""
    return Gpt(48, 1600, 25, sequence, positions=1024, name="gpt2-xl").workload()


def gpt3_175b(sequence: int = 2048) -> Workload:
    """GPT-3: 96 blocks of 12,288 features (Brown et al. 2020, table 2.1); dense attention in every block."""
    return Gpt(96, 12288, 96, sequence, positions=2048, name="gpt3-175b").workload()


def gpt_14(sequence: int = 1024) -> Workload:
    """A GPT with 14 blocks of GPT-2 small's width: a reading of UMPIPE's "GPT1-14" (sizes unpublished)."""
    return Gpt(14, 768, 12, sequence, positions=1024, name="gpt-14").workload()


def llama2_7b(sequence: int = 4096) -> Workload:
    """Llama 2 7B: 6,738,415,616 parameters."""
    return Llama(32, 4096, 32, sequence, intermediate=11008, name="llama2-7b").workload()


def bert_base(sequence: int = 512) -> Workload:
    """BERT-base with pre-training heads: 110,106,428 parameters (109,482,240 without, with the pooler)."""
    return Bert(12, 768, 12, sequence, name="bert-base").workload()


def bert_large(sequence: int = 512) -> Workload:
    """BERT-large with pre-training heads: 336,226,108 parameters (335,141,888 without, with the pooler)."""
    return Bert(24, 1024, 16, sequence, name="bert-large").workload()
