"""Language models: the families GPT, OPT, BERT and Llama, and published sizes of them.

Attention of a family is as it was trained: GPT, OPT, Megatron and BERT before FlashAttention (Dao et al., May 2022) unfused,
what came after it fused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from simulator.workloads.layers import Attention, Workload
from simulator.workloads.transformer import Experts, Heads, LatentAttention, OptionalSize, Size, Transformer


@dataclass(frozen=True, slots=True)
class Gpt(Transformer):
    """A GPT with learned positions and LayerNorm first.

    GPT-2: Radford et al. 2019, table 2; GPT-3: Brown et al. 2020, table 2.1; Megatron: Narayanan et al. 2021, table 1.
    """


@dataclass(frozen=True, slots=True)
class Opt(Transformer):
    """An OPT: a GPT with ReLU, and two rows of the embedding before the first position.

    Zhang et al. 2022, table 1; parameter counts as in Hugging Face's `OPTForCausalLM`, vocabulary padded to 50,272.
    """

    sequence: Size = 2048
    vocabulary: Size = 50272
    other_rows: OptionalSize = 2
    relu: bool = True
    attention_dropout: bool = False


@dataclass(frozen=True, slots=True)
class Llama(Transformer):
    """A Llama, or a Mistral, Qwen or DeepSeek: RMSNorm, rotary positions, SwiGLU, grouped-query or latent attention, fused.

    Llama 2: Touvron et al. 2023, table 1 and section 2.2; Llama 3: Grattafiori et al. 2024, table 3.
    """

    sequence: Size = 4096
    vocabulary: Size = 32000
    tied: bool = False
    rotary: bool = True
    gated: bool = True
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    norm_bias: bool = False
    dropout: bool = False
    attention_dropout: bool = False
    attention: Attention = "fused"


@dataclass(frozen=True, slots=True)
class Bert(Transformer):
    """A BERT: a bidirectional encoder with normalization after each half.

    Devlin et al. 2019; parameter counts as in Hugging Face's `BertModel` and its heads.
    """

    sequence: Size = 512
    vocabulary: Size = 30522
    positions: OptionalSize = 512
    other_rows: OptionalSize = 2
    after: Heads = "pretraining"
    norm_first: bool = False
    embedding_norm: bool = True


def published(model: Transformer) -> Callable[..., Workload]:
    """The workload of a model as a function of the tokens of a sample and the form of attention; by default the model's own.

    A network of a thousand layers takes 10 ms, and is a value: it is made once.
    """

    @cache
    def workload(sequence: int = model.sequence, attention: Attention = model.attention) -> Workload:
        return replace(model, sequence=sequence, attention=attention).workload()

    return workload


LANGUAGE_MODELS: dict[str, tuple[Transformer, ...]] = {
    "GPT": (
        Gpt(12, 768, 12, name="gpt2"),  # 124,439,808 parameters
        Gpt(24, 1024, 16, name="gpt2-medium"),  # 354,823,168
        Gpt(36, 1280, 20, name="gpt2-large"),  # 774,030,080
        Gpt(48, 1600, 25, name="gpt2-xl"),  # 1,557,611,200
        *(  # dense attention in every block; 1.3B and 13B with the heads and features that give what they are called
            Gpt(layers, hidden, heads, 2048, name=f"gpt3-{size}")
            for size, layers, hidden, heads in (
                ("125m", 12, 768, 12),
                ("350m", 24, 1024, 16),
                ("760m", 24, 1536, 16),
                ("1.3b", 24, 2048, 16),
                ("2.7b", 32, 2560, 32),
                ("6.7b", 32, 4096, 32),
                ("13b", 40, 5120, 40),
                ("175b", 96, 12288, 96),
            )
        ),
        Gpt(14, 768, 12, name="gpt-14"),  # a reading of UMPIPE's "GPT1-14", whose sizes are unpublished
    ),
    "Megatron": tuple(
        Gpt(layers, hidden, heads, 2048, 51200, name=f"megatron-{size}")
        for size, layers, hidden, heads in (
            ("1.7b", 24, 2304, 24),
            ("3.6b", 30, 3072, 32),
            ("7.5b", 36, 4096, 32),
            ("18b", 40, 6144, 48),
            ("39b", 48, 8192, 64),
            ("76b", 60, 10240, 80),
            ("145b", 80, 12288, 96),
            ("310b", 96, 16384, 128),
            ("530b", 105, 20480, 128),
            ("1t", 128, 25600, 160),
        )
    ),
    "OPT": (
        Opt(12, 768, 12, name="opt-125m"),
        Opt(24, 1024, 16, word_features=512, norm_first=False, name="opt-350m"),
        *(
            Opt(layers, hidden, heads, name=f"opt-{size}")
            for size, layers, hidden, heads in (
                ("1.3b", 24, 2048, 32),
                ("2.7b", 32, 2560, 32),
                ("6.7b", 32, 4096, 32),
                ("13b", 40, 5120, 40),
                ("30b", 48, 7168, 56),
                ("66b", 64, 9216, 72),
                ("175b", 96, 12288, 96),
            )
        ),
    ),
    "BERT": (
        Bert(12, 768, 12, name="bert-base"),  # 110,106,428 (109,482,240 without heads, with the pooler)
        Bert(24, 1024, 16, name="bert-large"),  # 336,226,108 (335,141,888)
    ),
    "Llama": (
        Llama(32, 4096, 32, intermediate=11008, name="llama2-7b"),  # 6,738,415,616
        Llama(40, 5120, 40, intermediate=13824, name="llama2-13b"),  # 13,015,864,320
        Llama(80, 8192, 64, intermediate=28672, key_value_heads=8, name="llama2-70b"),  # 68,976,648,192
        *(
            Llama(layers, hidden, heads, 8192, 128256, intermediate=width, key_value_heads=8, name=f"llama3-{size}")
            for size, layers, hidden, heads, width in (
                ("8b", 32, 4096, 32, 14336),  # 8,030,261,248
                ("70b", 80, 8192, 64, 28672),  # 70,553,706,496
                ("405b", 126, 16384, 128, 53248),  # 405,853,388,800
            )
        ),
    ),
    "Qwen": (  # Yang et al. 2024 and 2025: most tokens are trained on at 4,096 per sample
        *(
            Llama(*sizes, vocabulary=152064, intermediate=width, key_value_heads=groups, attention_bias=True, name=name)
            for name, sizes, width, groups in (
                ("qwen2-7b", (28, 3584, 28), 18944, 4),  # 7,615,616,512
                ("qwen2-72b", (80, 8192, 64), 29568, 8),  # 72,706,203,648
            )
        ),
        *(
            Llama(
                *sizes,
                vocabulary=151936,
                intermediate=width,
                key_value_heads=groups,
                head_size=128,
                head_norm=True,
                experts=experts,
                name=name,
            )
            for name, sizes, width, groups, experts in (
                ("qwen3-8b", (36, 4096, 32), 12288, 8, None),  # 8,190,735,360
                ("qwen3-32b", (64, 5120, 64), 25600, 8, None),  # 32,762,123,264
                ("qwen3-30b-a3b", (48, 2048, 32), 6144, 4, Experts(128, 8, 768)),  # 30,532,122,624
                ("qwen3-235b-a22b", (94, 4096, 64), 12288, 4, Experts(128, 8, 1536)),  # 235,093,634,560
            )
        ),
    ),
    "Mistral": (  # Jiang et al. 2023 and 2024; 8,192 tokens, of which the 7B attends to 4,096
        *(
            Llama(*sizes, 8192, key_value_heads=8, intermediate=width, window=window, experts=experts, name=name)
            for name, sizes, width, window, experts in (
                ("mistral-7b", (32, 4096, 32), 14336, 4096, None),  # 7,241,732,096
                ("mixtral-8x7b", (32, 4096, 32), 14336, 0, Experts(8, 2, 14336)),  # 46,702,792,704
                ("mixtral-8x22b", (56, 6144, 48), 16384, 0, Experts(8, 2, 16384)),  # 140,620,634,112
            )
        ),
    ),
    "Nemotron": tuple(  # Parmar et al. 2024, NVIDIA 2024: squared ReLU, which keeps what goes in and what comes out
        Llama(
            layers,
            hidden,
            heads,
            4096,
            256000,
            intermediate=4 * hidden,
            key_value_heads=8,
            gated=False,
            norm_bias=True,
            name=name,
        )
        for name, layers, hidden, heads in (
            ("nemotron4-15b", 32, 6144, 48),  # 15,628,775,424
            ("nemotron4-340b", 96, 18432, 96),  # 341,029,195,776
        )
    ),
    "Grok": (  # xai-org/grok-1, model.py: attention and output as wide as 48 heads of 128
        Llama(
            64,
            6144,
            48,
            8192,
            131072,
            key_value_heads=8,
            head_size=128,
            intermediate=32768,
            experts=Experts(8, 2, 32768),
            tied=True,
            name="grok1",
        ),
    ),
    "GPT-OSS": tuple(  # OpenAI 2025, "gpt-oss model card", table 1; every second block sees 128 tokens; without attention sinks
        Llama(
            layers,
            2880,
            64,
            vocabulary=201088,
            key_value_heads=8,
            head_size=64,
            intermediate=2880,
            window=128,
            whole=tuple(range(1, layers, 2)),
            attention_bias=True,
            output_bias=True,
            mlp_bias=True,
            clamped=True,
            experts=Experts(experts, 4, 2880, bias=True),
            name=name,
        )
        for name, layers, experts in (("gpt-oss-20b", 24, 32), ("gpt-oss-120b", 36, 128))
    ),
    "DeepSeek": (  # DeepSeek-AI 2024, 2024; without the block that predicts the token after the next
        Llama(
            60,
            5120,
            128,
            vocabulary=102400,
            intermediate=12288,
            latent=LatentAttention(1536, 512, 128, 64, 128),
            experts=Experts(160, 6, 1536, shared=2 * 1536, dense=(0,)),
            name="deepseek-v2",  # 235,741,434,880
        ),
        Llama(
            61,
            7168,
            128,
            vocabulary=129280,
            intermediate=18432,
            latent=LatentAttention(1536, 512, 128, 64, 128),
            experts=Experts(256, 8, 2048, shared=2048, bias=True, dense=(0, 1, 2)),
            name="deepseek-v3",  # 671,026,419,200
        ),
    ),
}
"""Published sizes, by family; the numbers are parameters, tied ones once."""
