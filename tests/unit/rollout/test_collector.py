"""From prompts to a rollout with a scripted sampler: metrics by hand, rows, masks, and what rewards are shown."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_lightning.advantages import group_centered
from grpo_lightning.engines.base import ModelSpec, RolloutEngine, Sampling
from grpo_lightning.functional.logprobs import TokenScores
from grpo_lightning.functional.reduction import token_mean
from grpo_lightning.rewards.scoring.runner import RewardScorer
from grpo_lightning.rollout.collector import RolloutCollector
from grpo_lightning.rollout.passes import Learner
from grpo_lightning.types import Completion, Layout, Prompt, Rollout, SequenceBatch
from tests.unit.models.tiny import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
EOS = TOKENIZER.eos_token_id


class ScriptedEngine(RolloutEngine):
    """Answers every call with the same completions, and remembers what it was asked."""

    def __init__(self, groups: list[list[Completion]]) -> None:
        self.groups = groups
        self.asked: dict[str, Any] = {}

    def start(self, model: ModelSpec) -> None:
        """Nothing to build."""

    def load_weights(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """No weights."""

    def generate(self, prompts, sampling, *, group_size, seeds) -> list[list[Completion]]:
        self.asked = {"prompts": prompts, "sampling": sampling, "group_size": group_size, "seeds": seeds}
        return self.groups

    def close(self) -> None:
        """Nothing to free."""


def _ids(text: str) -> list[int]:
    return TOKENIZER(text).input_ids


def _answer(text: str, *, finished: bool = True) -> Completion:
    ids = _ids(text) + ([EOS] if finished else [])
    return Completion(token_ids=ids, logprobs=[-0.5 - i for i in range(len(ids))], finished=finished)


EMPTY = Completion(token_ids=[], logprobs=[], finished=False)


def _prompt(text: str, **columns: Any) -> Prompt:
    return Prompt(token_ids=_ids(text), text=text, columns=columns)


class Scripted:
    """A reward that gives the scores it was made with, in order, and keeps what it was shown."""

    inline = True

    def __init__(self, *scores: float | None, name: str = "scripted") -> None:
        self.scores = list(scores)
        self.__name__ = name
        self.shown: dict[str, Any] = {}

    def __call__(self, **keywords: Any) -> list[float | None]:
        self.shown = keywords
        return self.scores


def _collect(
    groups: list[list[Completion]],
    *rewards: Scripted,
    prompts: list[Prompt] | None = None,
    weights: list[float] | None = None,
    updates: int = 1,
    passes: int = 1,
    micro_batch_tokens: int = 10_000,
    drop: bool = False,
    layout: Layout = "padded",
    score_old=None,
    score_reference=None,
) -> Rollout:
    engine = ScriptedEngine(groups)
    collector = RolloutCollector(
        RewardScorer(list(rewards), reward_weights=weights),
        tokenizer=TOKENIZER,
        group_size=len(groups[0]),
        sampling=Sampling(max_completion_length=8, temperature=0.7),
        advantages=group_centered,
        reduction=token_mean,
        updates=updates,
        passes=passes,
        micro_batch_tokens=micro_batch_tokens,
    )
    prompts = prompts or [_prompt("1+1"), _prompt("23+4")][: len(groups)]
    rollout = collector.collect(
        prompts,
        engine=engine,
        seeds=list(range(10, 10 + len(prompts))),
        positions=range(len(prompts)),
        learner=Learner(
            score_old=score_old or _refuse,
            score_reference=score_reference,
            drops_zero_advantage=drop,
            layout=layout,
        ),
    )
    assert engine.asked == {
        "prompts": [prompt.token_ids for prompt in prompts],
        "sampling": collector.sampling,
        "group_size": len(groups[0]),
        "seeds": list(range(10, 10 + len(prompts))),
    }
    return rollout


def _refuse(batch: SequenceBatch) -> Tensor:
    raise AssertionError("no pass over the old policy is needed")


TWO_GROUPS = [
    [_answer("2"), _answer("31"), _answer("2222", finished=False)],
    [_answer("27"), _answer("27"), _answer("2")],
]
"""Lengths 2, 3, 4 (cut) and 3, 3, 2, end-of-sequence tokens included."""


# --- metrics by hand ----------------------------------------------------------------------------------------------


def test_metrics_carry_trls_names_and_the_figures_of_a_hand_count() -> None:
    correct = Scripted(1.0, 0.0, 0.0, 1.0, 1.0, 1.0, name="correct")
    short = Scripted(0.5, 0.5, None, 0.5, 0.5, 0.5, name="short")
    metrics = _collect(TWO_GROUPS, correct, short, weights=[1.0, 2.0]).metrics
    # Totals: 2, 1, 0 (the second reward does not apply) and 2, 2, 2.
    expected = {
        "reward": 9 / 6,
        "reward_std": (1.0 + 0.0) / 2,  # sample std of 2, 1, 0 is 1
        "frac_reward_zero_std": 0.5,
        "rewards/correct/mean": 4 / 6,
        "rewards/correct/std": math.sqrt((4 * (1 / 3) ** 2 + 2 * (2 / 3) ** 2) / 5),
        "rewards/short/mean": 0.5,
        "rewards/short/std": 0.0,
        "completions/mean_length": 17 / 6,
        "completions/min_length": 2,
        "completions/max_length": 4,
        "completions/mean_terminated_length": 13 / 5,
        "completions/min_terminated_length": 2,
        "completions/max_terminated_length": 3,
        "completions/clipped_ratio": 1 / 6,
        "rollout/frac_dropped_sequences": 0.0,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)
    assert {"time/generate", "time/reward", "time/score"} <= metrics.keys()
    assert all(math.isfinite(value) for value in metrics.values())


def test_a_rollout_that_nothing_ended_and_nothing_scored_has_finite_metrics() -> None:
    cut = [[_answer("22", finished=False), _answer("2", finished=False)]]
    metrics = _collect(cut, Scripted(None, None)).metrics
    assert metrics["completions/clipped_ratio"] == 1.0
    assert metrics["completions/mean_terminated_length"] == 0.0
    assert (metrics["reward"], metrics["reward_std"], metrics["frac_reward_zero_std"]) == (0.0, 0.0, 1.0)
    assert all(math.isfinite(value) for value in metrics.values())


# --- advantages and rows ------------------------------------------------------------------------------------------


def test_each_prompt_is_its_own_group_also_when_the_question_comes_twice() -> None:
    same = [_prompt("1+1"), _prompt("1+1")]
    rollout = _collect(TWO_GROUPS, Scripted(3.0, 0.0, 0.0, 6.0, 0.0, 0.0), prompts=same)
    assert rollout.advantages.tolist() == [[2.0, -1.0, -1.0], [4.0, -2.0, -2.0]]


def test_rows_carry_prompt_completion_mask_advantage_and_the_samplers_logprobs() -> None:
    rollout = _collect(TWO_GROUPS, Scripted(3.0, 0.0, 0.0, 6.0, 0.0, 0.0))
    (window,) = rollout.windows
    (batch,) = window.micro_batches
    assert window.tokens == 17
    lengths = batch.sequence_lengths.tolist()
    by_ids = {tuple(ids[: lengths[i]]): i for i, ids in enumerate(batch.input_ids.tolist())}
    row = by_ids[(*_ids("1+131"), EOS)]
    assert batch.prompt_lengths[row].item() == 3
    assert batch.completion_mask[row].tolist() == [1, 1, 1, 0]
    assert batch.advantages[row].tolist() == [-1.0]
    assert batch.sampling_logprobs[row].tolist() == [-0.5, -1.5, -2.5, 0.0]
    cut = by_ids[tuple(_ids("1+12222"))]
    assert batch.completion_mask[cut].tolist() == [1, 1, 1, 1]
    assert batch.loss_weights.sum().item() == pytest.approx(1.0)
    assert len(by_ids) == 5  # "27" was sampled twice


def test_an_answer_that_is_only_the_end_token_counts_as_one() -> None:
    groups = [[_answer(""), _answer("2"), _answer("3")]]
    rollout = _collect(groups, Scripted(0.0, 1.0, 0.5))
    assert rollout.completions[0][0].text == ""
    assert rollout.advantages.tolist() == [[-0.5, 0.5, 0.0]]
    assert rollout.metrics["completions/min_length"] == 1
    batch = rollout.windows[0].micro_batches[0]
    assert sorted(batch.completion_mask.sum(dim=1).tolist()) == [1, 2, 2]


def test_a_completion_without_a_token_does_not_shift_its_siblings() -> None:
    # Counted in, its reward of 100 would turn the sibling's 0.5 into -49.5.
    groups = [[EMPTY, _answer("2"), _answer("3")]]
    rollout = _collect(groups, Scripted(100.0, 1.0, 0.0))
    assert rollout.advantages.tolist() == [[0.0, 0.5, -0.5]]
    batch = rollout.windows[0].micro_batches[0]
    assert sorted(batch.completion_mask.sum(dim=1).tolist()) == [0, 2, 2]
    assert batch.loss_weights.isfinite().all()
    assert rollout.metrics["completions/min_length"] == 0
    assert rollout.metrics["reward"] == pytest.approx(101 / 3)  # what was scored is still reported


def test_a_group_of_nothing_but_empty_completions_teaches_nothing() -> None:
    rollout = _collect([[EMPTY, EMPTY]], Scripted(1.0, 0.0), drop=True)
    assert rollout.advantages.tolist() == [[0.0, 0.0]]
    assert rollout.windows[0].micro_batches == []


# --- dropped rows -------------------------------------------------------------------------------------------------


def test_rows_without_advantage_are_left_out_but_still_counted() -> None:
    scores = Scripted(
        1.0, 0.5, 0.0, 1.0, 1.0, 1.0
    )  # the second of the first group is the mean; the second group is flat
    rollout = _collect(TWO_GROUPS, scores, drop=True)
    (batch,) = rollout.windows[0].micro_batches
    assert sorted(batch.advantages.flatten().tolist()) == [-0.5, 0.5]
    assert rollout.metrics["rollout/frac_dropped_sequences"] == pytest.approx(4 / 6)
    assert rollout.windows[0].tokens == 17
    assert batch.loss_weights.unique().tolist() == pytest.approx([0.0, 1 / 17])


def test_nothing_is_dropped_where_every_token_has_a_gradient() -> None:
    rollout = _collect(TWO_GROUPS, Scripted(1.0, 0.5, 0.0, 1.0, 1.0, 1.0), drop=False)
    assert sum(len(batch) for batch in rollout.windows[0].micro_batches) == 6
    assert rollout.metrics["rollout/frac_dropped_sequences"] == 0.0


# --- passes over old and reference policy -------------------------------------------------------------------------


def _row_sums(batch: SequenceBatch) -> Tensor:
    """Stands for log-probabilities: tells which rows, trimmed how, were scored."""
    return -batch.completion_mask * batch.input_ids.sum(dim=1, keepdim=True)


@pytest.mark.parametrize(("updates", "passes"), [(2, 1), (1, 2), (2, 2)])
def test_old_logprobs_are_taken_once_per_micro_batch_when_a_step_is_off_policy(updates: int, passes: int) -> None:
    scored: list[int] = []

    def score_old(batch: SequenceBatch) -> TokenScores:
        scored.append(id(batch))
        return TokenScores(_row_sums(batch), torch.zeros(batch.completion_mask.shape))

    rollout = _collect(
        TWO_GROUPS, Scripted(3.0, 0.0, 0.0, 6.0, 0.0, 0.0),
        updates=updates, passes=passes, micro_batch_tokens=14, score_old=score_old,
    )  # fmt: skip
    batches = [batch for window in rollout.windows for batch in window.micro_batches]
    assert len(rollout.windows) == updates
    assert len(batches) > updates
    assert scored == [id(batch) for batch in batches]  # the very micro-batches that are trained
    for batch in batches:
        assert torch.equal(batch.old_logprobs, _row_sums(batch))
        assert batch.ref_logprobs is None
    assert rollout.passes == passes
    assert rollout.temperature == 0.7


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize(
    ("layout", "bound", "sizes"),
    [
        ("padded", 38, [5, 1]),  # a sixth row of 7 would not fit
        ("packed", 38, [6]),  # 7 + 7 + 7 + 6 + 6 + 5 tokens
        ("packed", 37, [5, 1]),
        ("shared", 24, [6]),  # less twice each prompt, of 3 and 4 tokens
        ("shared", 23, [3, 3]),
    ],
)
def test_a_micro_batch_holds_what_the_layout_lets_it(layout: Layout, bound: int, sizes: list[int], drop: bool) -> None:
    rewards = Scripted(3.0, 0.0, 0.0, 6.0, 0.0, 0.0)
    (window,) = _collect(TWO_GROUPS, rewards, micro_batch_tokens=bound, drop=drop, layout=layout).windows
    assert [len(batch) for batch in window.micro_batches] == sizes


def test_one_on_policy_step_needs_no_old_logprobs() -> None:
    rollout = _collect(TWO_GROUPS, Scripted(3.0, 0.0, 0.0, 6.0, 0.0, 0.0), score_old=_refuse)
    assert rollout.windows[0].micro_batches[0].old_logprobs is None


def test_the_reference_scores_where_there_is_one() -> None:
    rollout = _collect(TWO_GROUPS, Scripted(3.0, 0.0, 0.0, 6.0, 0.0, 0.0), score_reference=_row_sums)
    (batch,) = rollout.windows[0].micro_batches
    assert torch.equal(batch.ref_logprobs, _row_sums(batch))
    assert batch.old_logprobs is None


# --- what rewards are shown ---------------------------------------------------------------------------------------


def test_rewards_see_the_text_without_its_end_but_with_the_tags_that_are_special_tokens() -> None:
    groups = [[_answer("<think>a</think>4"), _answer("<think>a</think>4", finished=False)]]
    reward = Scripted(1.0, 0.0)
    rollout = _collect(groups, reward, prompts=[_prompt("2+2", answer="4")])
    assert reward.shown["completions"] == ["<think>a</think>4", "<think>a</think>4"]
    assert reward.shown["answer"] == ["4", "4"]
    assert reward.shown["prompts"] == ["2+2", "2+2"]
    assert reward.shown["completion_ids"] == [c.token_ids for c in groups[0]]
    assert [c.text for c in rollout.completions[0]] == ["<think>a</think>4", "<think>a</think>4"]


def test_a_tag_that_the_template_has_opened_stands_before_the_text() -> None:
    prompt = _prompt("2+2")
    prompt.prefill = "<think>"
    reward = Scripted(1.0, 0.0)
    _collect([[_answer("a</think>4"), _answer("b")]], reward, prompts=[prompt])
    assert reward.shown["completions"] == ["<think>a</think>4", "<think>b"]


def test_padding_tokens_inside_an_answer_stay_visible() -> None:
    inside = Completion(token_ids=[*_ids("2"), TOKENIZER.pad_token_id, EOS], logprobs=[-1.0] * 3, finished=True)
    reward = Scripted(1.0, 0.0)
    _collect([[inside, _answer("3")]], reward, prompts=[_prompt("2+2")])
    assert reward.shown["completions"] == ["2<pad>", "3"]


def test_columns_that_a_reward_logs_come_along() -> None:
    class Logging(Scripted):
        def __call__(self, *, log_extra, log_metric, **keywords: Any) -> list[float | None]:
            log_extra("verdict", ["a", "b"])
            log_metric("judged", 2.0)
            return super().__call__(**keywords)

    rollout = _collect([[_answer("2"), _answer("3")]], Logging(1.0, 0.0), prompts=[_prompt("2+2")])
    assert rollout.logged_columns == {"verdict": ["a", "b"]}
    assert rollout.metrics["judged"] == 2.0


# --- rewards per step, and what goes on beside the rewards ---------------------------------------------------------


def test_a_reward_per_step_pays_tokens() -> None:
    outcome = Scripted(1.0, 0.0, 0.0, name="right")
    steps = Scripted([(1.0, 0), (0.0, 2)], None, [(0.5, 1)], name="steps")  # type: ignore[arg-type]
    group = [[_answer("31"), _answer("2"), _answer("22")]]
    rollout = _collect(group, outcome, steps, weights=[1.0, 2.0], updates=1)
    (window,) = rollout.windows
    rows = {int(b.completion_numbers[i]): b.advantages[i] for b in window.micro_batches for i in range(len(b))}
    # Centered outcomes: 2/3, -1/3, -1/3. Centered steps: +0.5 to the first token, -0.5 to the third; 0 for the other.
    assert rows[0].tolist() == pytest.approx([2 / 3 + 2 * 0.0, 2 / 3 - 2 * 0.5, 2 / 3 - 2 * 0.5])
    assert rows[1].tolist() == pytest.approx([-1 / 3] * len(rows[1]))
    assert rows[2].tolist() == pytest.approx([-1 / 3] * len(rows[2]))
    assert rollout.advantages[0].tolist() == pytest.approx([2 / 3 - 2 / 3, -1 / 3, -1 / 3], abs=1e-6)
    assert rollout.metrics["rewards/steps/mean"] == pytest.approx(0.5)  # means over steps: 0.5, none, 0.5
    assert rollout.rewards[0].tolist() == [1.0 + 2 * 0.5, 0.0, 2 * 0.5]


def test_a_completion_is_kept_if_any_of_its_tokens_has_an_advantage() -> None:
    steps = Scripted([(1.0, 0), (0.0, 1)], [(0.5, 1)], name="steps")  # type: ignore[arg-type]
    rollout = _collect([[_answer("3"), _answer("2")]], steps, drop=True)
    (window,) = rollout.windows
    assert [b.completion_numbers.tolist() for b in window.micro_batches] == [[0]]
    assert window.micro_batches[0].advantages.tolist() == [[0.0, -0.5]]  # +0.5 - 0.5, then -0.5
    assert rollout.metrics["rollout/frac_dropped_sequences"] == 0.5


def test_the_passes_do_not_wait_for_the_rewards() -> None:
    passed = threading.Event()

    class Waits(Scripted):
        def __call__(self, **keywords: Any) -> list[float | None]:
            assert passed.wait(20), "the reference pass waits for the rewards"
            return super().__call__(**keywords)

    def score_reference(batch: SequenceBatch) -> Tensor:
        passed.set()
        return torch.zeros_like(batch.completion_mask)

    rollout = _collect([[_answer("3"), _answer("2")]], Waits(1.0, 0.0), score_reference=score_reference)
    assert rollout.advantages.tolist() == [[0.5, -0.5]]


def test_a_reward_that_fails_beside_the_passes_ends_the_rollout() -> None:
    class Fails(Scripted):
        def __call__(self, **keywords: Any) -> list[float | None]:
            raise ValueError("no key")

    with pytest.raises(RuntimeError, match="no key"):
        _collect([[_answer("3"), _answer("2")]], Fails(name="fails"), score_reference=_zeros)


def _zeros(batch: SequenceBatch) -> Tensor:
    return torch.zeros_like(batch.completion_mask)
