"""GPT: a family of causal language models by layers, hidden, heads, sequence and vocabulary.

GPT-2: Radford et al. 2019, table 2; GPT-3: Brown et al. 2020, table 2.1.
"""

from __future__ import annotations

from simulator.workloads import transformer as op
from simulator.workloads.builder import Builder
from simulator.workloads.layers import Workload

VOCABULARY = 50257


def gpt(
    layers: int,
    hidden: int,
    heads: int,
    sequence: int = 1024,
    vocabulary: int = VOCABULARY,
    *,
    name: str | None = None,
    positions: int | None = None,
    intermediate: int | None = None,
    tied: bool = True,
    dropout: bool = True,
    flash: bool = False,
    minibatch: int = 1,
) -> Workload:
    """A GPT with learned positions and LayerNorm first; a sample is one sequence of `sequence` tokens.

    positions: learned positions (None: `sequence`); intermediate: MLP width (None: 4·hidden)
    tied: the head shares the embedding's matrix, which then counts ONCE, in the embedding; a pipeline that
        has both in different stages keeps a second copy on the last (see `simulator.workloads.layers.TiedWeight`)
    dropout: as in training; flash: attention keeps no sequence×sequence tensor

    Layers: embedding, ten a block (see `transformer`), final norm, head, loss. Raises ValueError.
    """
    if not 1 <= layers <= op.MOST_BLOCKS or vocabulary < 1:
        raise ValueError(
            f"GPT layers must be from 1 to {op.MOST_BLOCKS} and vocabulary at least 1, got {layers} and {vocabulary}"
        )
    learned = sequence if positions is None else positions
    if learned < sequence:
        raise ValueError(f"GPT sequence must be at most its learned positions ({learned}), got {sequence}")
    shape = op.Shape(
        hidden=hidden,
        heads=heads,
        key_value_heads=heads,
        head_size=op.head_size(hidden, heads),
        intermediate=4 * hidden if intermediate is None else intermediate,
        sequence=sequence,
        dropout=dropout,
        flash=flash,
    )
    builder = Builder()
    x = builder.add(
        "embedding",
        "embedding",
        [],
        output=shape.tokens_hidden,
        parameters=(vocabulary + learned) * hidden,
        keeps_extra=op.MASK * shape.tokens_hidden if dropout else 0.0,
    )
    for number in range(1, layers + 1):
        x = op.block(builder, f"block{number}", x, shape)
    x = op.norm(builder, "final_norm", x, shape)
    x = op.projection(builder, "head", x, hidden, vocabulary, sequence, bias=False, tied_to="embedding" if tied else "")
    op.cross_entropy(builder, "loss", [x])
    return builder.build(name or f"gpt-{layers}", sample="sequence", minibatch=minibatch)


def gpt2(sequence: int = 1024) -> Workload:
    """GPT-2 small: 124,439,808 parameters."""
    return gpt(12, 768, 12, sequence, name="gpt2", positions=1024)


def gpt2_medium(sequence: int = 1024) -> Workload:
    """GPT-2 medium: 354,823,168 parameters."""
    return gpt(24, 1024, 16, sequence, name="gpt2-medium", positions=1024)


def gpt2_large(sequence: int = 1024) -> Workload:
    """GPT-2 large: 774,030,080 parameters."""
    return gpt(36, 1280, 20, sequence, name="gpt2-large", positions=1024)


def gpt2_xl(sequence: int = 1024) -> Workload:
    """GPT-2 XL: 1,557,611,200 parameters."""
    return gpt(48, 1600, 25, sequence, name="gpt2-xl", positions=1024)


def gpt3_175b(sequence: int = 2048) -> Workload:
    """GPT-3: 96 blocks of 12,288 features (Brown et al. 2020, table 2.1); dense attention in every block."""
    return gpt(96, 12288, 96, sequence, name="gpt3-175b", positions=2048)


def gpt_14(sequence: int = 1024) -> Workload:
    """A GPT with 14 blocks of GPT-2 small's width: a reading of UMPIPE's "GPT1-14" (sizes unpublished)."""
    return gpt(14, 768, 12, sequence, name="gpt-14", positions=1024)
