"""Published decoder models by their numbers: parameters, work per token, bytes of keys and values."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import Qwen2Config


@dataclass(frozen=True)
class Architecture:
    """A decoder with grouped-query attention, a gated MLP and RMS norms; numbers from its config.json."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    mlp: int
    vocabulary: int
    tied: bool
    """Embedding and language-model head are one matrix."""
    bias: bool = True
    """Queries, keys and values have a bias (Qwen2.5)."""

    @property
    def head_width(self) -> int:
        return self.hidden // self.heads

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_width

    @property
    def matrices(self) -> int:
        """Weights that every token is multiplied by, all layers, without the head."""
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * self.kv_width
        return self.layers * (attention + 3 * self.hidden * self.mlp)

    @property
    def head(self) -> int:
        """Weights of the language-model head."""
        return self.vocabulary * self.hidden

    @property
    def block_parameters(self) -> int:
        """Of all layers."""
        biases = self.hidden + 2 * self.kv_width if self.bias else 0
        return self.matrices + self.layers * (biases + 2 * self.hidden)

    @property
    def root_parameters(self) -> int:
        """Embedding, head and last norm: what FSDP2 gathers with the root."""
        return self.head * (1 if self.tied else 2) + self.hidden

    @property
    def parameters(self) -> int:
        return self.block_parameters + self.root_parameters

    @property
    def tensors(self) -> int:
        """Parameters counted as tensors, each sent by itself in a weight sync."""
        return self.layers * (9 + (3 if self.bias else 0)) + (2 if self.tied else 3)

    def adapter(self, rank: int) -> int:
        """Parameters of a low-rank adapter on every linear layer but the head: rank x (inputs + outputs) each."""
        inner = 4 * self.hidden + 2 * (self.hidden + self.kv_width) + 3 * (self.hidden + self.mlp)
        return self.layers * rank * inner

    def cache_bytes(self, number_bytes: int) -> int:
        """Keys and values of one token in all layers."""
        return 2 * self.layers * self.kv_width * number_bytes

    def kept_bytes(self, number_bytes: int, *, autocast: bool = False) -> int:
        """What one layer keeps of a token for the backward, without gradient checkpointing.

        The numbers are those of Hugging Face's eager layers. Of the width H: both norms' inputs, which are float32
        whatever the layer computes in (2 H); normalized inputs and outputs of both (4 H), queries and what the heads
        give (2 H); keys and values (2 K). Of the MLP's width I: gate, activated gate, up and their product (4 I). Under
        autocast the residual stream is float32, and with it the normalized inputs (2 H).
        """
        wider = (4 - number_bytes) * 2 * self.hidden if autocast else 0
        return wider + 4 * 2 * self.hidden + number_bytes * (6 * self.hidden + 2 * self.kv_width + 4 * self.mlp)


def config_of(model: Architecture, *, positions: int = 4096) -> Qwen2Config:
    """Of a Qwen2 model of these sizes, for transformers."""
    return Qwen2Config(
        vocab_size=model.vocabulary,
        hidden_size=model.hidden,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        intermediate_size=model.mlp,
        max_position_embeddings=positions,
        tie_word_embeddings=model.tied,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )


QWEN2_5_0_5B = Architecture("Qwen2.5-0.5B", 24, 896, 14, 2, 4864, 151_936, True)
QWEN2_5_1_5B = Architecture("Qwen2.5-1.5B", 28, 1536, 12, 2, 8960, 151_936, True)
QWEN2_5_3B = Architecture("Qwen2.5-3B", 36, 2048, 16, 2, 11_008, 151_936, True)
QWEN2_5_7B = Architecture("Qwen2.5-7B", 28, 3584, 28, 4, 18_944, 152_064, False)
LLAMA_3_8B = Architecture("Llama-3-8B", 32, 4096, 32, 8, 14_336, 128_256, False, bias=False)
QWEN2_5_14B = Architecture("Qwen2.5-14B", 48, 5120, 40, 8, 13_824, 152_064, False)
QWEN2_5_32B = Architecture("Qwen2.5-32B", 64, 5120, 40, 8, 27_648, 152_064, False)
LLAMA_3_70B = Architecture("Llama-3-70B", 80, 8192, 64, 8, 28_672, 128_256, False, bias=False)
QWEN2_5_72B = Architecture("Qwen2.5-72B", 80, 8192, 64, 8, 29_568, 152_064, False)

MODELS = (
    QWEN2_5_0_5B,
    QWEN2_5_1_5B,
    QWEN2_5_3B,
    QWEN2_5_7B,
    LLAMA_3_8B,
    QWEN2_5_14B,
    QWEN2_5_32B,
    LLAMA_3_70B,
    QWEN2_5_72B,
)
"""By size, as published on huggingface.co/Qwen and huggingface.co/meta-llama."""
