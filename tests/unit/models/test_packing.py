"""Sequences one behind the other in a row score as they do padded, and do not see each other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from grpo_lightning.errors import UserError
from grpo_lightning.models import packing
from grpo_lightning.models.packing import pack
from grpo_lightning.models.policy import Policy
from grpo_lightning.types import SequenceBatch
from tests.unit.models.tiny import ARCHITECTURES, COMMON, sequences, tiny_model

RAGGED = ((5, 4), (2, 7), (9, 1), (1, 3), (1, 1))
"""Longer, as long as, and shorter than the sliding windows of 4."""
ROOMY = {name: {"sliding_window": 10} for name, (_, own) in ARCHITECTURES.items() if "sliding_window" in own}
"""Windows that no sequence fills."""


def packed_policy(name: str = "Llama", attention: str = "sdpa", **options: Any) -> Policy:
    model = tiny_model(name, **options)
    model.set_attn_implementation(attention)
    return Policy(model, packing=True)


def scores_and_gradients(policy: Policy, batch: SequenceBatch, *, packed: bool) -> tuple[Tensor, Tensor, list[Tensor]]:
    policy.packing = packed
    scores = policy(batch, temperature=0.7)
    slopes = torch.linspace(-1, 1, batch.completion_mask.numel()).reshape(batch.completion_mask.shape)
    loss = (slopes * batch.completion_mask * (scores.logprobs + 0.1 * scores.entropy)).sum()
    gradients = torch.autograd.grad(loss, list(policy.parameters()))
    return scores.logprobs.detach(), scores.entropy.detach(), list(gradients)


def test_a_row_of_all_tokens_with_positions_that_restart() -> None:
    packed = pack(sequences((2, 1), (1, 1), (1, 3)))
    assert packed.positions.tolist() == [[0, 1, 2, 0, 1, 0, 1, 2, 3]]
    assert packed.starts.tolist() == [0, 3, 5]
    assert packed.places.tolist() == [[[[0, 1, 2, 9], [3, 4, 9, 9], [5, 6, 7, 8]]]]
    batch = sequences((2, 1), (1, 1), (1, 3))
    assert packed.input_ids[0].tolist() == [*batch.input_ids[0, :3], *batch.input_ids[1, :2], *batch.input_ids[2]]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    ("name", "options"),
    [(name, {}) for name in ARCHITECTURES] + list(ROOMY.items()),
    ids=[*ARCHITECTURES, *(f"{name}, roomy window" for name in ROOMY)],
)
def test_scores_and_gradients_are_those_of_padded_rows(name: str, options: dict[str, Any], attention: str) -> None:
    policy, batch = packed_policy(name, attention, **options), sequences(*RAGGED)
    logprobs, entropy, gradients = scores_and_gradients(policy, batch, packed=True)
    expected, expected_entropy, expected_gradients = scores_and_gradients(policy, batch, packed=False)
    # Under ``packed_sdpa`` nothing is computed otherwise than padded, a mask sums over other numbers of zeros.
    same = attention == "sdpa" and name in ("Llama", "Qwen2", "Qwen3", "GPT-2", "Phi")
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=2e-6 if same else 1e-5)
    torch.testing.assert_close(entropy, expected_entropy, rtol=0, atol=2e-6 if same else 1e-5)
    largest = max(float(gradient.abs().max()) for gradient in expected_gradients)
    for mine, theirs in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=(1e-6 if same else 4e-6) * largest)


def test_what_stands_in_the_padding_does_not_matter() -> None:
    policy, batch = packed_policy(), sequences(*RAGGED)
    before = policy(batch).logprobs
    batch.input_ids[batch.attention_mask == 0] = 77
    assert torch.equal(policy(batch).logprobs, before)


def test_the_rest_of_the_model_sees_no_padding() -> None:
    """20 + 1 + 1 tokens in three rows: 22 and not 60; the attention alone has three rows of 20."""
    policy, seen = packed_policy(), []
    attention = packing.sdpa_attention_forward

    def watched(module, query, key, value, mask, **kwargs):
        seen.append((query.shape, key.shape, mask))
        return attention(module, query, key, value, mask, **kwargs)

    policy.model.model.layers[0].mlp.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "sdpa_attention_forward", watched)
        policy(sequences((18, 2), (1, 0), (1, 0)))
    assert seen[:2] == [((3, 4, 20, 8), (3, 2, 20, 8), None), (1, 22, 32)]


def test_gradient_checkpointing_changes_nothing() -> None:
    kept, again = packed_policy(), packed_policy()
    again.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    results = [scores_and_gradients(policy.train(), sequences(*RAGGED), packed=True) for policy in (kept, again)]
    assert torch.equal(results[0][0], results[1][0])
    for mine, theirs in zip(results[0][2], results[1][2], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


def test_under_autocast_packed_scores_are_near_the_exact_ones() -> None:
    policy, batch = packed_policy(), sequences(*RAGGED)
    exact = policy(batch).logprobs
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = policy(batch).logprobs
    assert low.dtype == torch.float32
    assert 0 < (low - exact).abs().max() < 0.5


def test_a_model_with_packed_attention_still_computes_and_saves_as_ever(tmp_path) -> None:
    policy, plain, batch = packed_policy("Qwen2"), tiny_model("Qwen2"), sequences(*RAGGED)
    for inputs in ({}, {"attention_mask": batch.attention_mask}):
        ours, theirs = (model(input_ids=batch.input_ids, **inputs).logits for model in (policy.model, plain))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    policy.model.save_pretrained(tmp_path)
    assert "packed" not in (tmp_path / "config.json").read_text()


# --- verify -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_attention_model_passes_verification(name: str, attention: str) -> None:
    policy = packed_policy(name, attention)
    policy.verify()
    assert policy.packing
    assert all(parameter.grad is None for parameter in policy.parameters())


RECURRENT = {
    "MambaForCausalLM": {"state_size": 4, "expand": 2, "conv_kernel": 4},
    "Lfm2ForCausalLM": {"layer_types": ["conv", "full_attention"]},
    "BloomForCausalLM": {"n_layer": 2, "n_head": 4},  # positions by biases that it makes of the mask
}


@pytest.mark.parametrize("name", RECURRENT)
def test_a_model_that_carries_something_over_is_refused(name: str) -> None:
    """Also at weights so small that the scores tell next to nothing."""
    kind = getattr(transformers, name)
    torch.manual_seed(0)
    model = kind(kind.config_class(**COMMON | RECURRENT[name])).eval()
    Policy(model).verify()
    with pytest.raises(UserError, match=rf"--model.packing true: {name} \(--model.attn_implementation \w+\) does not"):
        Policy(model, packing=True).verify()


def test_positions_that_do_not_restart_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = packed_policy("GPT-2")
    monkeypatch.setattr(
        "grpo_lightning.models.policy.pack",
        lambda batch: pack(batch)._replace(positions=torch.arange(int(batch.sequence_lengths.sum()))[None]),
    )
    with pytest.raises(UserError, match="GPT2LMHeadModel"):
        policy.verify()


def test_verification_works_in_bfloat16() -> None:
    policy = Policy(tiny_model().bfloat16(), packing=True)
    policy.verify()
