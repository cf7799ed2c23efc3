"""What a rollout took, by hand: phases that follow each other, tokens, and the operations that it needs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import GPT2Config, Qwen2Config

from grpo_lightning import ranks
from grpo_lightning.callbacks import throughput
from grpo_lightning.callbacks.throughput import ThroughputCallback, needed_flops, trained_groups
from grpo_lightning.functional.reduction import token_mean
from grpo_lightning.models.flops import Group, Shape, forward_flops
from grpo_lightning.rollout.windows import cut_windows, pad_rows
from grpo_lightning.types import Completion, Prompt, PromptBatch, Rollout, RolloutBatch, ScoredPrompts

CONFIG = Qwen2Config(
    hidden_size=8, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=10, vocab_size=9
)
PROMPTS, LENGTHS = [3, 5], [[1, 2], [4, 2]]
"""Tokens of two prompts, and of their two completions each."""
TRAINER = SimpleNamespace(precision="32-true")


def rollout(*, updates: int = 1, passes: int = 1, keep: list[bool] | None = None) -> Rollout:
    prompts = [Prompt(token_ids=[1] * n, text="") for n in PROMPTS]
    groups = [[Completion(token_ids=[2] * n, logprobs=[-1.0] * n, finished=True) for n in ns] for ns in LENGTHS]
    rows = pad_rows(
        [[1] * PROMPTS[row // 2] for row in range(4)], [c.token_ids for g in groups for c in g], pad_token_id=0
    )
    batch = RolloutBatch(**vars(rows), advantages=torch.ones(4, 1), completion_numbers=torch.arange(4))
    windows = cut_windows(
        batch,
        updates=updates,
        micro_batch_tokens=8,  # several micro-batches
        reduction=token_mean,
        max_completion_length=4,
        keep=None if keep is None else torch.tensor(keep),
    )
    rewards = torch.zeros(2, 2)
    return Rollout(
        prompts=prompts, positions=[0, 1], completions=groups, rewards=rewards, reward_terms={},
        sampled=ScoredPrompts(prompts, groups, rewards, {}), advantages=rewards, windows=windows, passes=passes,
        temperature=1.0, metrics={},
    )  # fmt: skip


def module(**changes: Any) -> Any:
    settings = {"adapter": None, "needs_reference": False, "steps_per_batch": 1, "model_config": CONFIG}
    settings |= {"device": torch.device("cpu"), "dtype_name": "float32"}
    return SimpleNamespace(**(settings | changes))


def test_rows_are_put_together_by_prompt_again() -> None:
    everything = {(group.prompt, tuple(sorted(group.completions))) for group in trained_groups(rollout())}
    assert everything == {(3, (1, 2)), (5, (2, 4))}
    assert trained_groups(rollout(updates=2, keep=[False, True, False, False])) == [Group(3, (2,))]


def test_a_row_that_only_keeps_a_rank_in_step_is_not_counted() -> None:
    of_two_ranks = rollout()
    for batch in of_two_ranks.windows[0].micro_batches:
        batch.loss_weights[batch.completion_numbers == 3] = 0.0
    groups = {(group.prompt, tuple(sorted(group.completions))) for group in trained_groups(of_two_ranks)}
    assert groups == {(3, (1, 2)), (5, (4,))}


def test_needed_operations() -> None:
    shape = Shape.of(CONFIG)
    groups = [Group(prompt, tuple(lengths)) for prompt, lengths in zip(PROMPTS, LENGTHS, strict=True)]
    everything = forward_flops(shape, groups)
    assert needed_flops(shape, rollout(), module()) == (3 * everything, 4 * everything)
    assert needed_flops(shape, rollout(), module(needs_reference=True)) == (3 * everything, 5 * everything)
    assert needed_flops(shape, rollout(), module(adapter=object())) == (2 * everything, 3 * everything)
    assert needed_flops(shape, rollout(passes=2), module()) == (6 * everything, 8 * everything)  # and the old ones
    assert needed_flops(shape, rollout(updates=2), module()) == (3 * everything, 5 * everything)
    second = forward_flops(shape, groups[1:])
    kept = rollout(keep=[False, False, True, True])
    assert needed_flops(shape, kept, module()) == (3 * second, 3 * second + everything)


def seen(
    monkeypatch: pytest.MonkeyPatch, batch: PromptBatch, pl_module: Any, *steps: dict[str, float]
) -> list[dict[str, float]]:
    """The figures of these optimizer steps of a rollout that took from second 10 to second 18."""
    times = iter([10.0, 18.0])
    monkeypatch.setattr(throughput, "now", lambda: next(times))
    monkeypatch.setattr(throughput, "peak_flops", lambda device, dtype: 1e6)
    callback = ThroughputCallback()
    callback.on_train_start(TRAINER, pl_module)
    callback.on_train_batch_start(TRAINER, pl_module, batch, 0)
    figures = [dict(step) for step in steps]
    for step in figures:
        callback.on_step_figures(TRAINER, pl_module, step)
    return figures


UPDATE = {"time/forward_backward": 1.0, "time/optimizer": 0.25, "time/update": 1.25}
FIRST = {"time/sync": 0.5, "time/generate": 3.0, "time/reward": 9.0, "time/reward_wait": 0.5, "time/score": 0.5}


def test_what_a_rollout_took_comes_with_its_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = PromptBatch([])
    batch.rollout = rollout(updates=2)
    pl_module = module(steps_per_batch=2)
    first, last = seen(monkeypatch, batch, pl_module, FIRST | UPDATE, UPDATE)
    assert first == FIRST | UPDATE
    assert last["step_time"] == 8.0
    assert last["time/other"] == 8.0 - 4.5 - 2.5
    assert last["tokens_per_second"] == (2 * 3 + 2 * 5 + 9) / 8
    update, step = needed_flops(Shape.of(CONFIG), batch.rollout, pl_module)
    assert last["mfu/update"] == pytest.approx(update / 2.5 / 1e6)
    assert last["mfu/step"] == pytest.approx(step / 8 / 1e6)


def test_ranks_work_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two alike: twice the tokens and operations, on twice the devices."""
    batch = PromptBatch([])
    batch.rollout = rollout()
    (alone,) = seen(monkeypatch, batch, module(), FIRST | UPDATE)
    monkeypatch.setattr(ranks, "world_size", lambda: 2)
    monkeypatch.setattr(ranks, "all_sum", lambda values: 2 * values)
    (both,) = seen(monkeypatch, batch, module(), FIRST | UPDATE)
    assert both["tokens_per_second"] == 2 * alone["tokens_per_second"]
    assert both["mfu/step"] == pytest.approx(alone["mfu/step"])
    monkeypatch.setattr(ranks, "all_max", lambda values: values + 2)
    (slower,) = seen(monkeypatch, batch, module(), FIRST | UPDATE)
    assert slower["step_time"] == 10.0


def test_another_layout_has_no_utilisation(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = PromptBatch([])
    batch.rollout = rollout()
    (figures,) = seen(monkeypatch, batch, module(model_config=GPT2Config()), FIRST | UPDATE)
    assert figures["step_time"] == 8.0
    assert not [name for name in figures if name.startswith("mfu")]


def test_a_supervised_step_has_no_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    (figures,) = seen(monkeypatch, PromptBatch([]), module(), {"time/update": 1.0})
    assert figures == {"time/update": 1.0}
