"""A critic's values are those of the states before the tokens, in float32, and its head is nobody else's business."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from grpo_lightning.functional.masking import masked_sum
from grpo_lightning.models.critic import Critic, PolicyWithValues
from grpo_lightning.models.export import export_policy
from grpo_lightning.models.policy import Policy
from grpo_lightning.models.weights import named_weights
from grpo_lightning.types import SequenceBatch
from tests.unit.models.tiny import sequences, tiny_model, tiny_tokenizer

RAGGED = ((5, 4), (2, 7), (9, 1), (1, 3))
ARCHITECTURES = ["Llama", "Qwen2", "Gemma2", "GPT-2"]


def with_opinion(policy: PolicyWithValues | Critic) -> PolicyWithValues | Critic:
    """``policy`` with a head that is not 0."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        policy.value_head.weight.copy_(torch.randn(1, 32, generator=generator))
        policy.value_head.bias.fill_(0.5)
    return policy


def plain_values(model: PreTrainedModel, head: Tensor, batch: SequenceBatch) -> Tensor:
    """head · state + 0.5 at the position before each completion token, one unpadded row at a time, ``[B, T]``."""
    values = torch.zeros(batch.completion_mask.shape)
    for row in range(len(batch)):
        start, end = int(batch.prompt_lengths[row]), int(batch.sequence_lengths[row])
        output = model(input_ids=batch.input_ids[row, None, :end], output_hidden_states=True)
        for t in range(end - start):
            values[row, t] = (output.hidden_states[-1][0, start + t - 1] * head[0]).sum() + 0.5
    return values


@pytest.mark.parametrize("packing", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_values_are_those_of_the_states_before_the_tokens(name: str, packing: bool) -> None:
    batch = sequences(*RAGGED)
    shared = with_opinion(PolicyWithValues(Policy(tiny_model(name), packing=packing)))
    alone = with_opinion(Critic(Policy(tiny_model(name), packing=packing)))
    expected = plain_values(tiny_model(name), shared.value_head.weight, batch)
    assert expected[batch.completion_mask > 0].std() > 1
    for values in (shared(batch).values, shared(batch, only_values=True).values, alone(batch)):
        torch.testing.assert_close(values, expected, rtol=0, atol=1e-4)


def test_a_value_head_leaves_the_policy_as_it_is() -> None:
    model, batch = tiny_model("Qwen2"), sequences(*RAGGED)
    plain, valued = Policy(model)(batch, temperature=0.7), with_opinion(PolicyWithValues(Policy(model)))
    scores = valued(batch, temperature=0.7)
    assert torch.equal(scores.logprobs, plain.logprobs)
    assert torch.equal(scores.entropy, plain.entropy)
    assert not valued(batch, only_values=True).logprobs.any()


@pytest.mark.parametrize("kind", [PolicyWithValues, Critic])
def test_it_begins_without_an_opinion_and_without_a_random_number(kind: type[PolicyWithValues | Critic]) -> None:
    policy, state = Policy(tiny_model()), torch.get_rng_state()
    critic = kind(policy)
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(parameter.any() for parameter in critic.value_head.parameters())


@pytest.mark.parametrize("kind", [PolicyWithValues, Critic])
def test_values_are_in_float32_whatever_the_trunk_computes_in(kind: type[PolicyWithValues | Critic]) -> None:
    batch = sequences(*RAGGED)
    critic = with_opinion(kind(Policy(tiny_model())))
    critic.model.bfloat16()
    assert critic.value_head.weight.dtype == torch.float32
    row, column = batch.completion_mask.nonzero(as_tuple=True)
    for context in (torch.autocast("cpu", enabled=False), torch.autocast("cpu", dtype=torch.bfloat16)):
        with torch.no_grad(), context:
            found = critic(batch) if kind is Critic else critic(batch).values
            states = critic.predicting_states(batch, row, column)
        assert states.dtype == torch.bfloat16
        exact = states.double() @ critic.value_head.weight[0].double() + 0.5
        assert found.dtype == torch.float32
        torch.testing.assert_close(found[row, column].double(), exact, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_weight_of_a_critic_is_trained(name: str) -> None:
    """DDP waits for the gradient of each; a tied embedding stays, an untied head goes."""
    critic, batch = with_opinion(Critic(Policy(tiny_model(name)))), sequences(*RAGGED)
    masked_sum(critic(batch), batch.completion_mask).backward()
    assert [name for name, parameter in critic.named_parameters() if parameter.grad is None] == []
    assert "model.lm_head.weight" not in critic.state_dict()
    assert not critic.tied


def test_neither_the_sampler_nor_an_export_sees_the_head(tmp_path: Path) -> None:
    policy, valued = Policy(tiny_model("Qwen2")), with_opinion(PolicyWithValues(Policy(tiny_model("Qwen2"))))
    sent, plain = dict(named_weights(valued)), dict(named_weights(policy))
    assert sent.keys() == plain.keys()
    assert all(torch.equal(sent[name], plain[name]) for name in sent)
    assert valued.fingerprint() == policy.fingerprint()
    export_policy(valued, tiny_tokenizer(), tmp_path / "hf", eos_token_ids=(1,))
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "hf").state_dict()
    assert exported.keys() == policy.model.state_dict().keys()
