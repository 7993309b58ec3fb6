"""Published runs: how large published runs were laid out, what was published of their speed, and where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from experiments.truth.measured_tables import MeasuredRun

A100_PEAK, H100_PEAK = 312e12, 989e12
"""Dense FLOP/s in 16 bits, of which sources tell MFU."""


@dataclass(frozen=True, slots=True)
class PublishedLayout:
    """A published run.

    name: of the row; source: of its figures; note: what the source leaves open, or does that the model does not
    layout: fields of `MeasuredRun`
    seconds: of an iteration, as told; or mfu, as told, by PaLM's rule, with the parameters and the peak FLOP/s that it is of
    interleave: stages per device to choose from, where the source does not tell: the fastest is meant
    ends_count: stages are as large as each other where the embedding and the head count as a block each
    schedule: of stages that lie in a V; 1F1B, or interleaved where a device has several, where it says nothing
    """

    name: str
    source: str
    layout: Mapping[str, Any]
    seconds: float | None = None
    mfu: float | None = None
    parameters: float = 0.0
    peak: float = A100_PEAK
    interleave: tuple[int, ...] = (1,)
    ends_count: bool = False
    schedule: str = ""
    note: str = ""

    @property
    def iteration_seconds(self) -> float:
        """As told; of MFU alone by PaLM's rule (Chowdhery et al. 2022, appendix B): 6 N + 12 L h s FLOP per token."""
        if self.seconds is not None:
            return self.seconds
        told = self.layout
        tokens = told["global_batch"] * told["seq"]
        flop = tokens * (6.0 * self.parameters + 12.0 * told["layers"] * told["hidden"] * told["seq"])
        assert self.mfu is not None
        return float(flop / (self.mfu * self.peak * self.devices))

    @property
    def devices(self) -> int:
        """GPUs of the run."""
        return prod(self.layout.get(name, 1) for name in ("tp", "pp", "dp", "cp"))

    def runs(self) -> tuple[MeasuredRun, ...]:
        """The run, with each number of stages per device that it may have had."""
        return tuple(map(self._run, self.interleave))

    def _run(self, chunks: int) -> MeasuredRun:
        stages = self.layout["pp"] * chunks
        parts = [str((self.layout["layers"] + 2) // stages)] * stages if self.ends_count else []
        return MeasuredRun(
            **self.layout, interleave=chunks, layers_per_stage=";".join(parts), measured_s=self.iteration_seconds
        )


def _gpt(layers: int, hidden: int, heads: int, machine: str, **told: Any) -> dict[str, Any]:
    """A GPT of 2,048 tokens, in groups of eight GPUs, one sample at a time."""
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "seq": 2048, "vocab": 51200, "model": "gpt"}
    return {**sizes, "tp": 8, "micro_batch": 1, "machine": machine, "framework": "Megatron-LM"} | told


def _llama3(**told: Any) -> dict[str, Any]:
    """Llama 3 405B in groups of eight GPUs over sixteen stages, one sample at a time, without recomputation."""
    sizes = {"layers": 126, "hidden": 16384, "heads": 128, "kv_heads": 8, "intermediate": 53248, "vocab": 128256}
    ran = {"precision": "bf16", "flash": True, "sequence_parallel": True, "zero": 1, "gradient_bytes": 4}
    common = {"model": "llama3-405b", "tp": 8, "pp": 16, "micro_batch": 1, "machine": "llama3-h100"}
    return {**sizes, **ran, **common, "framework": "megatron", "gradient_reduction": "buckets", **told}


_LLAMA3: dict[str, Any] = {
    "source": "Llama Team 2024, arXiv 2407.21783, table 4",
    "parameters": 405.85e9,
    "peak": H100_PEAK,
    "interleave": (1, 2, 4, 8),
    "ends_count": True,
    "note": "its FSDP divides gradients, too; stages per device are not told",
}

LAYOUTS: tuple[PublishedLayout, ...] = (
    PublishedLayout(
        "Megatron 530B, 2,240 A100, all blocks run again",
        "Korthikanti et al. 2022, arXiv 2205.05198, abstract",
        _gpt(105, 20480, 128, "dgx-a100", pp=35, dp=8, global_batch=2240, recompute="full"),
        mfu=0.421,
        parameters=529.6e9,
        interleave=(3,),
    ),
    PublishedLayout(
        "Megatron 530B, 2,240 A100, attention runs again",
        "Korthikanti et al. 2022, arXiv 2205.05198, abstract",
        _gpt(
            105, 20480, 128, "dgx-a100", pp=35, dp=8, global_batch=2240, recompute="selective", sequence_parallel=True
        ),
        mfu=0.542,
        parameters=529.6e9,
        interleave=(3,),
    ),
    *(
        PublishedLayout(
            f"MT-NLG 530B, {280 * replicas:,} A100",
            "Smith et al. 2022, arXiv 2201.11990, section 2.4",
            _gpt(
                *(105, 20480, 128, "dgx-a100"),
                pp=35,
                dp=replicas,
                global_batch=1920,
                recompute="full",
                precision="bf16",
                framework="Megatron-DeepSpeed",
            ),
            seconds=seconds,
        )
        for replicas, seconds in ((8, 60.1), (10, 50.2), (12, 44.4))
    ),
    PublishedLayout(
        "Megatron 1T, 3,072 A100",
        "Narayanan et al. 2021, arXiv 2104.04473, table 1",
        _gpt(128, 25600, 160, "dgx-a100", pp=64, dp=6, global_batch=3072, recompute="full"),
        # its equation 3, of forwards that run again, too, at 163 TFLOP/s per GPU
        seconds=96
        * 3072
        * 2048
        * 128
        * 25600**2
        * (1 + 2048 / (6 * 25600) + 51200 / (16 * 128 * 25600))
        / 3072
        / 163e12,
        interleave=(1, 2),
        note="stages per device are not told",
    ),
    PublishedLayout(
        "GPT-3 175B, 12,288 A100, Megatron-LM",
        "Jiang et al. 2024, arXiv 2402.15627, abstract: 55.2 % and 1.34 times as much as Megatron-LM",
        _gpt(96, 12288, 96, "dgx-a100", pp=8, dp=192, global_batch=6144, precision="bf16", recompute="selective"),
        mfu=0.552 / 1.34,
        parameters=174.6e9,
        interleave=(1, 2, 3, 6),
        note="recomputation and stages per device are not told",
    ),
    PublishedLayout(
        "Llama 3 405B, 8,192 H100", layout=_llama3(seq=8192, dp=64, global_batch=2048), mfu=0.43, **_LLAMA3
    ),
    PublishedLayout(
        "Llama 3 405B, 16,384 H100", layout=_llama3(seq=8192, dp=128, global_batch=2048), mfu=0.41, **_LLAMA3
    ),
    PublishedLayout(
        "Llama 3 405B, 16,384 H100, 131,072 tokens",
        layout=_llama3(seq=131072, cp=16, dp=8, global_batch=128),
        mfu=0.38,
        **_LLAMA3,
    ),
    PublishedLayout(
        "DeepSeek-V3, 2,048 H800",
        "DeepSeek-AI 2024, arXiv 2412.19437, sections 3.2 and 4.2; 2.664 million GPU hours of 14.8 T tokens: its repository",
        {
            "layers": 61,
            "hidden": 7168,
            "heads": 128,
            "seq": 4096,
            "model": "deepseek-v3",
            "machine": "deepseek-h800",
            "pp": 16,
            "dp": 128,
            "ep": 64,
            "zero": 1,
            "micro_batch": 1,
            "global_batch": 15360,
            "precision": "fp8",
            "gradient_bytes": 4,
            "flash": True,
            "recompute": "minimal",
            "framework": "HAI-LLM",
        },
        seconds=2.664e6 * 3600 / 14.8e12 / 2048 * 15360 * 4096,
        interleave=(2,),
        schedule="dualpipev",
        note="its DualPipe hides the exchanges of experts behind the other pass of a pair, which the model counts in full; its "
        "micro-batch is not told, and its multi-token prediction left out",
    ),
)
