"""Sequences one behind the other in a row score as they do padded, share their prompts, and do not see each other."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from grpo_lightning.models import packing
from grpo_lightning.models.packing import pack, spread
from grpo_lightning.models.policy import Policy
from grpo_lightning.types import SequenceBatch
from tests.unit.models.tiny import ARCHITECTURES, COMMON, sequences, tiny_model

GROUPS = ((5, (4, 7, 1)), (3, (2, 2, 9)), (12, (0, 3, 9, 12)), (1, (1,)), (7, (2,)))
"""Prompts and the completions that share them, which are longer, as long, and shorter than their prompts; the longest
sequences exceed the sliding windows of 4."""
RAGGED = ((5, 4), (2, 7), (9, 1), (1, 3), (1, 1))
"""Longer, as long as, and shorter than the sliding windows of 4."""
ROOMY = {name: {"sliding_window": 10} for name, (_, own) in ARCHITECTURES.items() if "sliding_window" in own}
"""Windows that no sequence fills."""


def grouped(*groups: tuple[int, tuple[int, ...]]) -> SequenceBatch:
    """Random prompts of so many tokens, each with completions of so many."""
    batch = sequences(*((prompt, completion) for prompt, completions in groups for completion in completions))
    row = 0
    for prompt, completions in groups:
        batch.input_ids[row : row + len(completions), :prompt] = batch.input_ids[row, :prompt].clone()
        row += len(completions)
    return batch


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
    batch = sequences((2, 1), (1, 1), (1, 3))
    packed = pack(batch)
    assert packed.positions.tolist() == [[0, 1, 2, 0, 1, 0, 1, 2, 3]]
    assert packed.places.tolist() == [[0, 1, 2, 9], [3, 4, 9, 9], [5, 6, 7, 8]]
    assert packed.input_ids[0].tolist() == [*batch.input_ids[0, :3], *batch.input_ids[1, :2], *batch.input_ids[2]]


def test_a_prompt_stands_there_once_for_all_that_share_it() -> None:
    batch = grouped((2, (1, 2)), (1, (1,)))
    shared, each = pack(batch), pack(batch, share_prompts=False)
    assert shared.positions.tolist() == [[0, 1, 2, 2, 3, 0, 1]]
    assert shared.places.tolist() == [[0, 1, 2, 7], [0, 1, 3, 4], [5, 6, 7, 7]]
    assert shared.owners.tolist() == [0, 0, 2]
    assert shared.input_ids[0].tolist() == [
        *batch.input_ids[0, :3],
        *batch.input_ids[1, 2:4],
        *batch.input_ids[2, :2],
    ]
    assert each.places.tolist() == [[0, 1, 2, 9], [3, 4, 5, 6], [7, 8, 9, 9]]


def test_each_token_asks_in_a_block_and_sees_its_own_sequence() -> None:
    """Two completions of 1 and 2 tokens behind a prompt of 3 ask by themselves; 5 behind a prompt of 1 with it."""
    batch = grouped((3, (1, 2)), (1, (5,)))
    whole, prompt, completions = spread(pack(batch), batch).blocks
    assert whole.queries.tolist() == [[6, 7, 8, 9, 10, 11]]
    assert whole.mask is None
    assert prompt.queries.tolist() == [[0, 1, 2]]
    assert completions.queries.tolist() == [[4, 5], [3, 12]]  # 12 is padding
    assert completions.keys.tolist() == [[4, 5, 0, 1, 2], [3, 12, 0, 1, 2]]
    assert completions.mask.int().tolist() == [
        [[[1, 0, 1, 1, 1], [1, 1, 1, 1, 1]]],
        [[[1, 0, 1, 1, 1], [1, 0, 1, 1, 1]]],  # padding sees what the last token sees
    ]
    assert spread(pack(batch), batch).back.tolist() == [6, 7, 8, 11, 9, 10, 0, 1, 2, 3, 4, 5]


def test_the_example_that_the_docstring_gives() -> None:
    batch = grouped((3, (2, 5)))
    packed = pack(batch)
    assert packed.positions[0].tolist() == [0, 1, 2, 3, 4, 3, 4, 5, 6, 7]
    spread_over = spread(packed, batch)
    asked = [[0, 1, 2, 5, 6, 7, 8, 9], [0, 1, 2], [3, 4]]
    assert [block.queries.tolist() for block in spread_over.blocks] == [[places] for places in asked]
    assert [block.keys.tolist() for block in spread_over.blocks] == [[asked[0]], [asked[1]], [[3, 4, 0, 1, 2]]]
    assert [block.mask is None for block in spread_over.blocks] == [True, True, False]
    assert (len(spread_over.queries), len(spread_over.keys)) == (13, 16)
    assert spread_over.back.tolist() == [0, 1, 2, 11, 12, 3, 4, 5, 6, 7]


def test_in_a_layer_with_a_window_a_token_sees_so_many() -> None:
    batch = grouped((3, (1, 2)))
    assert all(block.windowed is None for block in spread(pack(batch), batch, window=5).blocks)
    found = spread(pack(batch), batch, window=2)
    prompt, completions = found.blocks
    assert prompt.windowed.int().tolist() == [[[[1, 0, 0], [1, 1, 0], [0, 1, 1]]]]
    assert completions.windowed.int().tolist() == [
        [[[1, 0, 0, 0, 1], [1, 1, 0, 0, 0]]],
        [[[1, 0, 0, 0, 1], [1, 0, 0, 0, 1]]],
    ]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])  # eager in place of flash, which needs a GPU: without sharing
@pytest.mark.parametrize(
    ("name", "options"),
    [(name, {}) for name in ARCHITECTURES] + list(ROOMY.items()),
    ids=[*ARCHITECTURES, *(f"{name}, roomy window" for name in ROOMY)],
)
def test_scores_and_gradients_are_those_of_padded_rows(name: str, options: dict[str, Any], attention: str) -> None:
    policy, batch = packed_policy(name, attention, **options), grouped(*GROUPS)
    assert policy.layout == ("shared" if attention == "sdpa" else "padded")
    logprobs, entropy, gradients = scores_and_gradients(policy, batch, packed=True)
    expected, expected_entropy, expected_gradients = scores_and_gradients(policy, batch, packed=False)
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(entropy, expected_entropy, rtol=0, atol=1e-5)
    largest = max(float(gradient.abs().max()) for gradient in expected_gradients)
    for mine, theirs in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5 * largest)


def test_what_stands_in_the_padding_does_not_matter() -> None:
    policy, batch = packed_policy(), sequences(*RAGGED)
    before = policy(batch).logprobs
    batch.input_ids[batch.attention_mask == 0] = 77
    assert torch.equal(policy(batch).logprobs, before)


def test_the_model_sees_no_padding_and_each_prompt_once() -> None:
    """A prompt of 20 with 2 + 1 + 1 tokens in three rows: 24 and not 66; in the attention 20 ask, and 3 rows of 2."""
    policy, seen = packed_policy(), []
    attention = packing.sdpa_attention_forward

    def watched(module, query, key, value, mask, **kwargs):
        seen.append((query.shape, key.shape, mask is None))
        return attention(module, query, key, value, mask, **kwargs)

    policy.model.model.layers[0].mlp.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "sdpa_attention_forward", watched)
        policy(grouped((20, (2, 1, 1))))
    assert seen[:3] == [((1, 4, 20, 8), (1, 2, 20, 8), True), ((3, 4, 2, 8), (3, 2, 22, 8), False), (1, 24, 32)]


def test_gradient_checkpointing_changes_nothing() -> None:
    kept, again = packed_policy(), packed_policy()
    again.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    results = [scores_and_gradients(policy.train(), grouped(*GROUPS), packed=True) for policy in (kept, again)]
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
    assert policy.layout == ("shared" if attention == "sdpa" else "padded")
    assert all(parameter.grad is None for parameter in policy.parameters())


RECURRENT = {
    "MambaForCausalLM": {"state_size": 4, "expand": 2, "conv_kernel": 4},
    "Lfm2ForCausalLM": {"layer_types": ["conv", "full_attention"]},
    "BloomForCausalLM": {"n_layer": 2, "n_head": 4},  # positions by biases that it makes of the mask
}


@pytest.mark.parametrize("name", RECURRENT)
def test_a_model_that_carries_something_over_is_padded(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Also at weights so small that the scores tell next to nothing."""
    kind = getattr(transformers, name)
    torch.manual_seed(0)
    model = kind(kind.config_class(**COMMON | RECURRENT[name])).eval()
    policy = Policy(model, packing=True)
    policy.verify()
    assert policy.layout == "padded"
    messages = [text for text in caplog.messages if "--model" in text]
    if model.config._attn_implementation == "sdpa":  # others would not have been packed anyway
        (message,) = messages
        assert message.startswith(f"--model.packing true: sequences are padded after all, since {name} (--model.attn_")
    else:
        assert messages == []
    policy(grouped(*GROUPS))


def test_positions_that_do_not_restart_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = packed_policy("GPT-2")
    monkeypatch.setattr(
        "grpo_lightning.models.policy.pack",
        lambda batch, **options: (packed := pack(batch, **options))._replace(
            positions=torch.arange(packed.positions.numel())[None]
        ),
    )
    policy.verify()
    assert policy.layout == "padded"


def test_code_that_takes_no_such_arguments_is_padded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    policy = packed_policy()
    forward = policy.model.model.forward

    def narrow(
        input_ids, attention_mask=None, position_ids=None, past_key_values=None, inputs_embeds=None, use_cache=False
    ):
        return forward(input_ids, attention_mask=attention_mask, position_ids=position_ids, use_cache=use_cache)

    monkeypatch.setattr(policy.model.model, "forward", narrow)
    policy.verify()
    assert policy.layout == "padded"
    assert "unexpected keyword argument 'spread_over'" in caplog.text


def without_window(attention, *call, sliding_window=None, **kwargs):
    return attention(*call, **kwargs)


def with_own_mask(attention, module, query, key, value, mask, **kwargs):
    return attention(module, query, key, value, torch.zeros(1, 1, query.shape[2], key.shape[2]), **kwargs)


@pytest.mark.parametrize(
    ("name", "layer", "fault"),
    [
        ("Mistral", without_window, "MistralAttention does not say whether it has the sliding window"),
        ("Llama", with_own_mask, "LlamaAttention makes a mask of its own"),
    ],
    ids=["a hidden window", "a mask of its own"],
)
def test_layers_that_do_not_tell_what_they_see_are_padded(
    name: str, layer: Any, fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    policy, attention = packed_policy(name), partial(layer, packing.packed_sdpa)
    monkeypatch.setitem(transformers.AttentionInterface._global_mapping, "sdpa", attention)
    policy.verify()
    assert policy.layout == "padded"
    assert fault in caplog.text


def test_a_window_of_no_tokens_is_none() -> None:
    policy = packed_policy()
    policy.model.config.sliding_window = 0  # Qwen2-MoE's way of saying so
    policy.verify()
    assert policy.layout == "shared"


def test_verification_works_in_bfloat16() -> None:
    policy = Policy(tiny_model().bfloat16(), packing=True)
    policy.verify()
    assert policy.layout == "shared"  # it would be padded without an error
