"""What PPO and GRPO cost: bytes while training, and lines of code: python -m experiments.ppo.costs

Bytes are counted on a tiny model, where a count can be exact, and computed for a model of 1.5 billion parameters by a
formula that is held against the count. Everything is in float32, as this project keeps its weights.
"""

from __future__ import annotations

import ast
import json
import tempfile
import tokenize
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from transformers import PreTrainedConfig, Qwen2Config, Qwen2ForCausalLM

import grpo_lightning
from grpo_lightning.data.tiny_model import build_tiny_model
from grpo_lightning.functional.masking import masked_sum
from grpo_lightning.functional.values import value_loss
from grpo_lightning.models.critic import Critic, PolicyWithValues
from grpo_lightning.models.optimizers import ParameterGroup, make_optimizer
from grpo_lightning.models.policy import Policy
from grpo_lightning.objectives import ClippedObjective
from grpo_lightning.types import RolloutBatch

RECORD = Path(__file__).resolve().parent / "costs.json"
PACKAGE = Path(grpo_lightning.__file__).resolve().parent
FLOAT = 4


class Variant(NamedTuple):
    """What is held in memory."""

    reference: bool = False
    value_head: bool = False
    critic: bool = False


VARIANTS = {
    "GRPO": Variant(),
    "GRPO, reference": Variant(reference=True),
    "PPO, value head": Variant(value_head=True),
    "PPO, own critic": Variant(critic=True),
    "PPO, own critic, reference": Variant(critic=True, reference=True),
}
CODE = {
    "GRPO": (
        "module.py",
        "advantages/group.py:group_normalized",
        "advantages/group.py:_statistics",
        "advantages/group.py:_has_spread",
    ),
    "PPO": ("ppo.py", "models/critic.py", "advantages/gae.py", "advantages/tokens.py:whitened", "functional/values.py"),
}
"""What one has and the other has not; ``file:function`` is the function alone."""

QWEN2_5_1_5B = Qwen2Config(
    vocab_size=151936,
    hidden_size=1536,
    num_hidden_layers=28,
    num_attention_heads=12,
    num_key_value_heads=2,
    intermediate_size=8960,
    tie_word_embeddings=True,
)
"""The architecture of Qwen/Qwen2.5-1.5B, from its config.json."""


@dataclass(frozen=True)
class Bytes:
    """Held between a micro-batch's forward and its backward, from the second optimizer step on."""

    weights: int
    """Of all models, the reference included."""
    gradients: int
    optimizer: int
    activations: int
    """What the forward keeps for the backward."""

    @property
    def total(self) -> int:
        return sum(asdict(self).values())


class Shape(NamedTuple):
    """A micro-batch."""

    rows: int
    prompt: int
    completion: int
    """Of the longest row."""
    padded: bool = False
    """Rows differ in length, so that attention needs a mask."""


TINY_SHAPE = Shape(rows=32, prompt=32, completion=32, padded=True)
"""2,048 tokens, the quickstart's ``micro_batch_tokens``."""
LARGE_SHAPE = Shape(rows=1, prompt=512, completion=1024)
"""One sequence of ``configs/gsm8k_qwen2.5_1.5b.yaml``."""


# --- measured ----------------------------------------------------------------------------------------------------


def measured(variant: Variant, model: PreTrainedConfig, shape: Shape) -> Bytes:
    """Counts tensors of a model with random weights over one optimizer step and the next forward."""
    torch.manual_seed(0)
    batch, policy = made_batch(shape, vocabulary=model.vocab_size), Policy(Qwen2ForCausalLM(model))
    policy = PolicyWithValues(policy) if variant.value_head else policy
    critic = Critic(Policy(Qwen2ForCausalLM(model))) if variant.critic else None
    reference = Policy(Qwen2ForCausalLM(model)).requires_grad_(False) if variant.reference else None
    trained = nn.ModuleList(part for part in (policy, critic) if part is not None)
    if reference is not None:
        with torch.no_grad():
            batch.ref_logprobs = reference(batch).logprobs
    optimizer = make_optimizer([ParameterGroup(trained)], None, lr=1e-6)
    loss_of(policy, critic, batch, variant).backward()
    optimizer.step()
    weights = storages(
        tensor for part in (trained, reference) if part is not None for tensor in [*part.parameters(), *part.buffers()]
    )
    with saved_for_backward() as saved:
        loss = loss_of(policy, critic, batch, variant)
    del loss
    return Bytes(
        weights=sum(weights.values()),
        gradients=sum(storages(p.grad for p in trained.parameters() if p.grad is not None).values()),
        optimizer=sum(storages(s for state in optimizer.state.values() for s in state.values()).values()),
        activations=sum(size for place, size in storages(saved).items() if place not in weights),
    )


def loss_of(policy: Policy, critic: Critic | None, batch: RolloutBatch, variant: Variant) -> Tensor:
    """Of one micro-batch, as ``PPOModule`` and ``GRPOModule`` put it together."""
    scores = policy(batch)
    token_loss = ClippedObjective(beta=0.04 if variant.reference else 0.0).token_loss(scores.logprobs, batch)
    values = token_loss.values if token_loss.penalty is None else token_loss.values + token_loss.penalty
    loss = masked_sum(values, batch.loss_weights)
    if variant.value_head or critic is not None:
        predicted = scores.values if critic is None else critic(batch)
        loss = loss + 0.5 * masked_sum(value_loss(predicted, batch.returns, batch.values, clip=0.2).loss, batch.counted)
    return loss


def made_batch(shape: Shape, *, vocabulary: int) -> RolloutBatch:
    """Random tokens; if padded, the last row is one token short, so that nearly all of them are read."""
    size = (shape.rows, shape.completion)
    lengths, mask = torch.full((shape.rows,), shape.prompt + shape.completion), torch.ones(size)
    if shape.padded:
        lengths[-1] -= 1
        mask[-1, -1] = 0
    return RolloutBatch(
        input_ids=torch.randint(vocabulary, (shape.rows, shape.prompt + shape.completion)),
        sequence_lengths=lengths,
        prompt_lengths=torch.full((shape.rows,), shape.prompt),
        completion_mask=mask,
        loss_weights=mask / mask.sum(),
        advantages=torch.randn(shape.rows, 1),
        values=torch.zeros(size),
        returns=torch.randn(size),
    )


class saved_for_backward(saved_tensors_hooks):  # noqa: N801 - a context, like the one that it extends
    """Inside, autograd's saved tensors are collected, alive."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        super().__init__(self._keep, lambda tensor: tensor)

    def _keep(self, tensor: Tensor) -> Tensor:
        self.tensors.append(tensor.detach())
        return tensor

    def __enter__(self) -> list[Tensor]:  # type: ignore[override]
        super().__enter__()
        return self.tensors


def storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Bytes by place in memory: tensors that share memory count once, and a view counts all that it keeps alive."""
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}


# --- modelled ----------------------------------------------------------------------------------------------------


def modelled(variant: Variant, model: PreTrainedConfig, shape: Shape) -> Bytes:
    """The same by formula: P parameters have 4 P bytes of weights and, if trained, 4 P of gradients and 8 P of Adam."""
    with torch.device("meta"):
        policy = Qwen2ForCausalLM(model)
    size, head = policy.num_parameters(), model.hidden_size + 1
    trained = size + (head if variant.value_head else 0) + (size + head if variant.critic else 0)
    passes = 2 if variant.critic else 1
    return Bytes(
        weights=FLOAT * (trained + (size if variant.reference else 0)),
        gradients=FLOAT * trained,
        optimizer=2 * FLOAT * trained,
        activations=passes * kept_floats(model, shape) * FLOAT,
    )


def kept_floats(model: PreTrainedConfig, shape: Shape) -> int:
    """Floats that one forward through a Qwen2 model keeps, without gradient checkpointing.

    A layer keeps of each token: both norms' inputs, normalized inputs and outputs (6 H); queries and what the heads
    give (2 A), keys and values (2 K); gate, activated gate, up and their product (4 I); one scale a norm and one
    normalizer a head. With padding, keys and values are kept for every attention head (2 A), and a row of the mask (S).
    Once for all layers: the last norm's, sine and cosine, and the states that the heads read. Vocabulary-sized tensors
    are not among them, since ``head_logprobs`` makes them again, a few at a time; nor are indices and masks of
    the completions, less than half a percent at the tiny model's width.
    """
    width, heads, length = model.hidden_size, model.num_attention_heads, shape.prompt + shape.completion
    head = width // heads
    key_heads, mask = (heads, length) if shape.padded else (model.num_key_value_heads, 0)
    layer = 6 * width + 2 * (heads + key_heads) * head + 4 * model.intermediate_size + heads + 2 + mask
    token = model.num_hidden_layers * layer + 2 * width + 2 * head + 1
    return shape.rows * (length * token + shape.completion * width)


# --- code --------------------------------------------------------------------------------------------------------


def lines_of_code(name: str) -> int:
    """Lines that hold code, so neither blank nor comment nor docstring; of ``file`` or ``file:function``."""
    file, _, function = name.partition(":")
    source = (PACKAGE / file).read_text("utf-8")
    tree: ast.AST = ast.parse(source)
    if function:
        tree = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == function)
    first, last = (tree.lineno, tree.end_lineno) if function else (1, len(source.splitlines()))
    texts = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, node.end_lineno + 1)
    }
    ignored = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    with tokenize.open(PACKAGE / file) as lines:
        used = {
            line
            for token in tokenize.generate_tokens(lines.readline)
            if token.type not in ignored
            for line in range(token.start[0], token.end[0] + 1)
        }
    return len({line for line in used - texts if first <= line <= last})


# --- record ------------------------------------------------------------------------------------------------------


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        tiny = Qwen2Config.from_pretrained(build_tiny_model(folder))
    sizes = {
        name: {
            "measured": asdict(measured(variant, tiny, TINY_SHAPE)),
            "modelled": asdict(modelled(variant, tiny, TINY_SHAPE)),
            "at 1.5B": asdict(modelled(variant, QWEN2_5_1_5B, LARGE_SHAPE)),
        }
        for name, variant in VARIANTS.items()
    }
    lines = {name: {file: lines_of_code(file) for file in files} for name, files in CODE.items()}
    RECORD.write_text(json.dumps({"bytes": sizes, "lines of code": lines}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
