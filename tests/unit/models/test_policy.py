"""A policy's log-probabilities are the model's own, token for token, in every architecture."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PhimoeConfig, PhimoeForCausalLM, PreTrainedModel

from grpo_lightning.errors import UserError
from grpo_lightning.models.policy import Policy
from grpo_lightning.types import SequenceBatch
from tests.unit.models.tiny import ARCHITECTURES, COMMON, sequences, tiny_model, uniform_model

RAGGED = ((5, 4), (2, 7), (9, 1), (1, 3))


def _plain(model: PreTrainedModel, batch: SequenceBatch, *, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies ``[B, T]`` from full forward passes, one unpadded row at a time."""
    logprobs = torch.zeros(batch.completion_mask.shape, dtype=torch.float64)
    entropy = torch.zeros_like(logprobs)
    for row in range(len(batch)):
        start, end = int(batch.prompt_lengths[row]), int(batch.sequence_lengths[row])
        ids = batch.input_ids[row, :end]
        log_p = (model(input_ids=ids[None]).logits[0].double() / temperature).log_softmax(-1)
        for t in range(end - start):
            position = start + t - 1
            logprobs[row, t] = log_p[position, ids[start + t]]
            entropy[row, t] = -(log_p[position].exp() * log_p[position]).sum()
    return logprobs, entropy


def test_a_uniform_model_gives_each_completion_token_one_in_97_and_no_prompt_token_anything() -> None:
    # An end-of-sequence token is a token like any other: three rows of 4, 7 and 1 tokens give 12 figures.
    batch = sequences((5, 4), (2, 7), (9, 1))
    batch.input_ids[1, 8] = 1  # <eos>
    logprobs, entropy = Policy(uniform_model())(batch)
    assert logprobs.shape == (3, 7)
    assert logprobs[batch.completion_mask > 0].tolist() == pytest.approx([-4.574711] * 12, abs=1e-6)
    assert entropy[batch.completion_mask > 0].tolist() == pytest.approx([4.574711] * 12, abs=1e-6)
    assert logprobs[batch.completion_mask == 0].abs().max().item() == 0.0
    assert entropy[batch.completion_mask == 0].abs().max().item() == 0.0


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_equals_a_plain_forward_pass(name: str, temperature: float) -> None:
    model, batch = tiny_model(name), sequences(*RAGGED)
    scores = Policy(model)(batch, temperature=temperature)
    logprobs, entropy = _plain(model, batch, temperature=temperature)
    torch.testing.assert_close(scores.logprobs.double(), logprobs, rtol=0, atol=1e-5)
    torch.testing.assert_close(scores.entropy.double(), entropy, rtol=0, atol=1e-5)
    assert scores.logprobs[batch.completion_mask > 0].std() > 0.3  # the comparison says something


@pytest.mark.parametrize("name", ["Llama", "Gemma2", "GPT-2"])
def test_gradients_equal_those_of_a_plain_forward_pass(name: str) -> None:
    model, batch = tiny_model(name), sequences(*RAGGED)
    slopes = torch.linspace(-1, 1, batch.completion_mask.numel()).reshape(batch.completion_mask.shape)

    def gradients(logprobs: Tensor) -> list[Tensor]:
        return torch.autograd.grad((slopes * batch.completion_mask * logprobs).sum(), list(model.parameters()))

    ours, plain = gradients(Policy(model)(batch).logprobs), gradients(_plain(model, batch)[0])
    for mine, theirs in zip(ours, plain, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4 * max(1.0, float(theirs.abs().max())))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_padding_does_not_change_a_row(name: str) -> None:
    policy, batch = Policy(tiny_model(name)), sequences(*RAGGED)
    together = policy(batch)
    for row in range(len(batch)):
        alone = policy(batch.rows(torch.tensor([row])))
        width = alone.logprobs.shape[1]
        torch.testing.assert_close(together.logprobs[row, :width], alone.logprobs[0], rtol=0, atol=5e-6)
        torch.testing.assert_close(together.entropy[row, :width], alone.entropy[0], rtol=0, atol=5e-6)


def test_what_stands_in_the_padding_does_not_matter() -> None:
    policy, batch = Policy(tiny_model()), sequences(*RAGGED)
    before = policy(batch)
    batch.input_ids[batch.attention_mask == 0] = 77
    after = policy(batch)
    assert torch.equal(before.logprobs, after.logprobs)


def test_rows_without_a_token_give_zero_gradients_and_no_nan() -> None:
    policy = Policy(tiny_model())
    logprobs, entropy = policy(sequences((3, 0), (2, 1)).rows(torch.tensor([0])))
    (logprobs.sum() + entropy.sum()).backward()
    gradients = [parameter.grad for parameter in policy.parameters() if parameter.grad is not None]
    assert gradients
    assert all(float(gradient.abs().max()) == 0.0 for gradient in gradients)


def test_only_trained_positions_reach_the_head() -> None:
    policy, seen = Policy(tiny_model()), []
    batch = sequences((20, 2), (3, 1))
    original = torch.nn.functional.linear

    def states(hidden, weight, targets, **_):
        seen.append(hidden.shape)
        return original(hidden, weight)[:, 0], original(hidden, weight)[:, 0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("grpo_lightning.models.policy.head_logprobs", states)
        policy(batch)
    assert seen == [(3, 32)]


@pytest.mark.parametrize("training", [False, True])
def test_gradient_checkpointing_changes_neither_values_nor_gradients(training: bool) -> None:
    batch = sequences(*RAGGED)
    kept = Policy(tiny_model())
    computed_again = copy.deepcopy(kept)
    computed_again.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    results = []
    for policy in (kept, computed_again):
        scores = policy.train(training)(batch)
        scores.logprobs.sum().backward()
        results.append((scores.logprobs, [parameter.grad for parameter in policy.parameters()]))
    (one, one_gradients), (other, other_gradients) = results
    assert torch.equal(one, other)
    for mine, theirs in zip(one_gradients, other_gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)
    assert computed_again.model.config.use_cache == kept.model.config.use_cache


def test_with_and_without_gradient_the_values_are_bit_equal() -> None:
    # Or the first ratio of old to new log-probabilities would not be 1.
    policy, batch = Policy(tiny_model()).train(), sequences(*RAGGED)
    with torch.no_grad():
        old = policy(batch).logprobs
    assert torch.equal(policy(batch).logprobs, old)


def test_under_autocast_the_softmax_stays_in_float32() -> None:
    policy, batch = Policy(tiny_model()), sequences(*RAGGED)
    exact = policy(batch).logprobs
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            old = policy(batch).logprobs
        scores = policy(batch)
    assert scores.logprobs.dtype == torch.float32
    assert torch.equal(scores.logprobs, old)
    assert 0 < (scores.logprobs - exact).abs().max() < 0.5
    scores.logprobs.sum().backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in policy.parameters())


# --- verify -------------------------------------------------------------------------------------------------------


class _Squashed(LlamaForCausalLM):
    """A model that does something to its logits that no config field tells."""

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = output.logits.sign() * output.logits.abs().sqrt()
        return output


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_passes_verification(name: str) -> None:
    Policy(tiny_model(name)).verify()


def test_logits_changed_in_an_unknown_way_are_refused() -> None:
    model = tiny_model("Llama")
    model.__class__ = _Squashed
    with pytest.raises(UserError, match="_Squashed changes its logits"):
        Policy(model).verify()


def test_a_cap_that_is_not_applied_would_be_noticed() -> None:
    policy = Policy(tiny_model("Gemma2"))
    policy.softcap = None
    with pytest.raises(UserError, match="Gemma2ForCausalLM"):
        policy.verify()


def test_nan_weights_are_refused_too() -> None:
    model = tiny_model()
    torch.nn.init.constant_(model.lm_head.weight, torch.nan)
    with pytest.raises(UserError, match="LlamaForCausalLM"):
        Policy(model).verify()


class _Noisy(torch.nn.Module):
    """A layer that draws in training, and not when it samples."""

    def __init__(self, layer: torch.nn.Module, *, size: float) -> None:
        super().__init__()
        self.layer, self.size = layer, size

    def forward(self, states: Tensor) -> Tensor:
        noise = torch.rand_like(states) if self.training else 0.0
        return self.layer(states) * (1 + self.size * noise)


def test_a_model_that_is_random_in_training_is_refused() -> None:
    model = tiny_model()
    model.model.layers[0].mlp = _Noisy(model.model.layers[0].mlp, size=0.0).eval()
    state = torch.get_rng_state()
    Policy(model).verify()  # what it draws does nothing
    assert torch.equal(torch.get_rng_state(), state)
    assert not model.training
    model.model.layers[0].mlp.size = 0.1
    with pytest.raises(UserError, match="LlamaForCausalLM scores tokens otherwise in training than when it samples"):
        Policy(model).verify()


def test_a_mixture_that_draws_its_experts_in_training_is_refused() -> None:
    options = COMMON | {"num_local_experts": 4, "router_jitter_noise": 1.0}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = PhimoeForCausalLM(PhimoeConfig(**options)).eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    with pytest.raises(UserError, match="PhimoeForCausalLM scores tokens otherwise in training"):
        Policy(model).verify()


def test_verification_works_in_bfloat16() -> None:
    Policy(tiny_model().bfloat16()).verify()
