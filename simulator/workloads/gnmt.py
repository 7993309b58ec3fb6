"""GNMT: an LSTM encoder and decoder with attention, for translation.

Wu et al. 2016, in the form that PipeDream profiled (MLPerf's): the first encoder layer is bidirectional, the
first decoder layer attends to the encoder, and every further decoder layer reads the attention's context
beside its own input. GNMT-8 has 4 encoder and 4 decoder layers, GNMT-16 8 and 8.
"""

from __future__ import annotations

from simulator.workloads.builder import FP32, MASK, Builder
from simulator.workloads.layers import Layer, Workload

HIDDEN, VOCABULARY = 1024, 32320
"""Features of every LSTM, and words of both languages, whose embeddings are separate."""


def gnmt(layers: int, source_tokens: int = 48, target_tokens: int | None = None) -> Workload:
    """GNMT of `layers` LSTM layers, half of them in the encoder; a sample is a pair of sequences.

    layers: even, at least 4, else ValueError
    source_tokens, target_tokens: time steps of encoder and decoder (target None: as source)
    The mini-batch is PipeDream's (SOSP'19, section 5.1).
    """
    if layers < 4 or layers % 2:
        raise ValueError(f"GNMT layers must be even and at least 4 (half of them encode), got {layers}")
    targets = source_tokens if target_tokens is None else target_tokens
    net = _Gnmt()
    encoded = net.encoder(layers // 2, source_tokens)
    decoded = net.decoder(layers // 2, source_tokens, targets, encoded)
    words = targets * VOCABULARY
    head = Layer(
        "classifier",
        "linear",
        output_elements=words,
        flop=2.0 * targets * HIDDEN * VOCABULARY,
        parameters=HIDDEN * VOCABULARY + VOCABULARY,
    )
    loss = Layer("loss", "loss", output_elements=1, stashed_bytes=FP32 * words)
    net.builder.add(loss, [net.builder.add(head, [decoded])])
    return net.builder.build(f"gnmt{layers}", sample="sequence", minibatch=64)


class _Gnmt:
    """One GNMT while it is built."""

    def __init__(self) -> None:
        self.builder = Builder()

    def encoder(self, layers: int, tokens: int) -> int:
        """Embedding, a bidirectional LSTM, then LSTMs; residual sums from the third layer on."""
        x = self._embedding("encoder.embedding", tokens)
        x = self._lstm("encoder.lstm1", [x], HIDDEN, tokens, directions=2)
        for number in range(2, layers + 1):
            dropped = self._dropout(f"encoder.dropout{number}", x)
            inputs = 2 * HIDDEN if number == 2 else HIDDEN
            y = self._lstm(f"encoder.lstm{number}", [dropped], inputs, tokens)
            x = y if number == 2 else self._add(f"encoder.add{number}", y, x)
        return x

    def decoder(self, layers: int, keys: int, tokens: int, encoded: int) -> int:
        """Embedding, attention LSTM, then LSTMs on (input, context); residual sums from the third on."""
        x = self._embedding("decoder.embedding", tokens)
        attended = self._attention("decoder.attention1", x, encoded, keys, tokens)
        state, context = (
            self.builder.add(Layer(name, "reshape", output_elements=tokens * HIDDEN), [attended], in_place=True)
            for name in ("decoder.output1", "decoder.context")
        )
        for number in range(2, layers + 1):
            dropped = self._dropout(f"decoder.dropout{number}", state)
            joined = self.builder.add(
                Layer(f"decoder.concat{number}", "reshape", output_elements=2 * tokens * HIDDEN),
                [dropped, context],
            )
            y = self._lstm(f"decoder.lstm{number}", [joined], 2 * HIDDEN, tokens)
            state = y if number == 2 else self._add(f"decoder.add{number}", y, state)
        return state

    def _embedding(self, name: str, tokens: int) -> int:
        return self.builder.add(
            Layer(name, "embedding", output_elements=tokens * HIDDEN, parameters=VOCABULARY * HIDDEN)
        )

    def _lstm(self, name: str, inputs: list[int], features: int, tokens: int, directions: int = 1) -> int:
        """Four gates with two bias vectors (cuDNN's form); kept: inputs, gates, cell state and output per step.

        A bidirectional layer runs its two directions one after the other.
        """
        steps = directions * tokens
        return self.builder.add(
            Layer(
                name,
                "recurrent",
                output_elements=steps * HIDDEN,
                flop=steps * 8.0 * HIDDEN * (features + HIDDEN),
                parameters=directions * lstm_parameters(features, HIDDEN),
                stashed_elements=steps * 6.0 * HIDDEN,
                sequential_steps=steps,
            ),
            inputs,
        )

    def _attention(self, name: str, x: int, encoded: int, keys: int, tokens: int) -> int:
        """An LSTM, then Bahdanau attention (additive) of its outputs over the encoder's.

        Parameters: the LSTM, the query and key projections without bias, and one score vector.
        """
        width = HIDDEN
        return self.builder.add(
            Layer(
                name,
                "recurrent",
                output_elements=2 * tokens * width,
                flop=tokens * 16.0 * width * width
                + 2.0 * width * width * (tokens + keys)
                + 4.0 * width * tokens * keys,
                parameters=lstm_parameters(width, width) + 2 * width * width + width,
                # tanh(query + key) and the score of every pair of steps
                stashed_elements=tokens * 6.0 * width + tokens * keys * (width + 1.0),
                sequential_steps=tokens,
            ),
            [x, encoded],
        )

    def _dropout(self, name: str, x: int) -> int:
        output = self.builder.output_elements(x)
        return self.builder.add(Layer(name, "dropout", output_elements=output, stashed_bytes=MASK * output), [x])

    def _add(self, name: str, x: int, residual: int) -> int:
        return self.builder.add(
            Layer(name, "elementwise", output_elements=self.builder.output_elements(x)), [x, residual]
        )


def lstm_parameters(features: int, hidden: int) -> int:
    """Weights of an LSTM: four gates, each with input and recurrent matrices and two biases."""
    return 4 * hidden * (features + hidden + 2)


def gnmt8() -> Workload:
    """GNMT-8 as in PipeDream's profile: 48 source and 47 target tokens."""
    return gnmt(8, source_tokens=48, target_tokens=47)


def gnmt16() -> Workload:
    """GNMT-16 as in PipeDream's profile: 25 tokens on both sides."""
    return gnmt(16, source_tokens=25)
