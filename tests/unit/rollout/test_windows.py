"""Windows, micro-batches and loss weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_lightning.errors import UserError
from grpo_lightning.functional.reduction import constant_length, sequence_mean, token_mean
from grpo_lightning.rollout.windows import by_length, by_prompt, cut_windows, pad_rows
from grpo_lightning.types import RolloutBatch, Window


def _batch(completions: list[int], *, prompt: int = 3) -> RolloutBatch:
    """One row per completion length; the last prompt token tells the row, the advantage too."""
    padded = pad_rows(
        [[50] * (prompt - 1) + [row] for row in range(len(completions))],
        [[60] * n for n in completions],
        pad_token_id=0,
    )
    return RolloutBatch(
        **vars(padded) | {"advantages": torch.arange(len(completions)).float()[:, None]},
    )


def _rows(window: Window[RolloutBatch]) -> list[list[int]]:
    return [[int(a) for a in micro_batch.advantages.flatten()] for micro_batch in window.micro_batches]


def _cut(batch: RolloutBatch, **options) -> list[Window[RolloutBatch]]:
    defaults = {"updates": 1, "micro_batch_tokens": 1000, "reduction": token_mean, "max_completion_length": 16}
    return cut_windows(batch, **defaults | options)


# --- micro-batches ------------------------------------------------------------------------------------------------


def test_rows_of_like_length_come_together_the_longest_first() -> None:
    # 2 x 9 fits 20, 3 x 9 does not; then 4 x 5 fits.
    assert by_length([3, 9, 5, 4, 9, 5], 20) == [[1, 4], [2, 5, 3, 0]]


def test_a_row_above_the_bound_is_alone() -> None:
    assert by_length([30, 2, 25, 2], 20) == [[0], [2], [1, 3]]


def test_no_rows_make_no_micro_batch() -> None:
    assert by_length([], 20) == []


@given(lengths=st.lists(st.integers(1, 60), max_size=40), bound=st.integers(1, 200))
def test_the_bound_holds_and_every_row_comes_once(lengths: list[int], bound: int) -> None:
    groups = by_length(lengths, bound)
    assert sorted(row for group in groups for row in group) == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[row] for row in group) <= bound
    order = [lengths[row] for group in groups for row in group]
    assert order == sorted(order, reverse=True)


def test_rows_that_share_a_prompt_stay_together_and_the_largest_part_comes_first() -> None:
    # 4 + 3 + 2 = 9 and 2 + 1 + 9 = 12 tokens: 12 first, then 9 beside it if both fit.
    rows = {"prompts": [4, 4, 2, 2], "completions": [3, 2, 1, 9], "new_prompts": [True, False, True, False]}
    assert by_prompt(**rows, micro_batch_tokens=21) == [[2, 3, 0, 1]]
    assert by_prompt(**rows, micro_batch_tokens=20) == [[2, 3], [0, 1]]
    # 2 + 1 + 9 exceeds 11, so 2 + 9 is a part of its own; 2 + 1 goes where 4 + 3 + 2 leaves no room, but 11 neither.
    assert by_prompt(**rows, micro_batch_tokens=11) == [[3], [0, 1], [2]]
    # One above the bound is alone.
    assert by_prompt(**rows, micro_batch_tokens=5) == [[3], [0], [1], [2]]


def test_a_completion_counts_a_sixteenth_of_a_prompt_that_it_shares() -> None:
    # 40 + 5, then twice 5 + 2.
    rows = {"prompts": [40] * 3, "completions": [5] * 3, "new_prompts": [True, False, False]}
    assert by_prompt(**rows, micro_batch_tokens=59) == [[0, 1, 2]]
    assert by_prompt(**rows, micro_batch_tokens=58) == [[0, 1], [2]]


def test_rows_with_prompts_of_their_own_are_counted_without_padding() -> None:
    every = {"prompts": [1] * 4, "new_prompts": [True] * 4}
    assert by_prompt(completions=[8, 4, 4, 0], **every, micro_batch_tokens=20) == [[0, 1, 2, 3]]
    assert by_length([9, 5, 5, 1], 20) == [[0, 1], [2, 3]]


@given(
    rows=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30), st.booleans()), max_size=30),
    bound=st.integers(1, 200),
)
def test_the_bound_holds_for_prompts_counted_once_and_every_row_comes_once(
    rows: list[tuple[int, int, bool]], bound: int
) -> None:
    prompts, news = [], []
    for i, (prompt, _, new) in enumerate(rows):
        news.append(new or i == 0)
        prompts.append(prompt if news[-1] else prompts[-1])
    completions = [completion for _, completion, _ in rows]
    owners = np.cumsum(news)
    groups = by_prompt(prompts, completions, news, bound)
    assert sorted(row for group in groups for row in group) == list(range(len(rows)))
    for group in groups:
        brought = {owners[row]: prompts[row] for row in group}
        assert len(group) == 1 or sum(brought.values()) + sum(completions[row] for row in group) <= bound


def test_the_prompts_of_groups_are_found_by_their_tokens() -> None:
    batch = pad_rows([[5, 6], [5, 6], [5, 6, 7], [5, 7], [5, 7]], [[1], [2, 3], [4], [1], [1]], pad_token_id=0)
    assert batch.new_prompts.tolist() == [True, False, True, True, False]


def test_the_bound_counts_prompt_and_padding() -> None:
    # Sequences of 3 + 7, 3 + 2, 3 + 2 tokens: 10 alone, 2 x 5 together.
    (window,) = _cut(_batch([2, 7, 2]), micro_batch_tokens=10)
    assert _rows(window) == [[1], [0, 2]]
    assert [m.input_ids.shape for m in window.micro_batches] == [(1, 10), (2, 5)]
    assert [m.completion_mask.shape for m in window.micro_batches] == [(1, 7), (2, 2)]


# --- windows ------------------------------------------------------------------------------------------------------


def test_windows_follow_the_order_of_the_prompts() -> None:
    windows = _cut(_batch([1, 5, 2, 4, 3, 6]), updates=3)
    assert [sorted(row for group in _rows(w) for row in group) for w in windows] == [[0, 1], [2, 3], [4, 5]]
    assert [w.tokens for w in windows] == [6, 6, 9]


def test_weights_of_each_window_are_made_from_its_own_totals() -> None:
    windows = _cut(_batch([1, 3, 2, 2]), updates=2)
    for window in windows:
        assert sum(float(m.loss_weights.sum()) for m in window.micro_batches) == pytest.approx(1.0)
        assert {w for m in window.micro_batches for w in m.loss_weights.unique().tolist()} <= {0.0, 0.25}


def test_dropped_rows_still_count_in_the_weights() -> None:
    # Three of four rows are dropped; each of the 8 tokens still weighs 1/8, so the gradient is that of all rows.
    keep = torch.tensor([False, True, False, False])
    (window,) = _cut(_batch([1, 3, 2, 2]), keep=keep)
    assert _rows(window) == [[1]]
    assert window.tokens == 8
    assert window.micro_batches[0].loss_weights.tolist() == [[0.125] * 3]
    (window,) = _cut(_batch([1, 3, 2, 2]), keep=keep, reduction=sequence_mean)
    assert window.micro_batches[0].loss_weights.tolist() == [pytest.approx([1 / 12] * 3)]
    (window,) = _cut(_batch([1, 3, 2, 2]), keep=keep, reduction=constant_length)
    assert window.micro_batches[0].loss_weights.tolist() == [pytest.approx([1 / 64] * 3)]


def test_a_window_whose_rows_are_all_dropped_has_no_micro_batch() -> None:
    windows = _cut(_batch([1, 3, 2, 2]), updates=2, keep=torch.tensor([False, False, True, True]))
    assert [len(w.micro_batches) for w in windows] == [0, 1]


def test_an_empty_completion_is_a_row_without_weight() -> None:
    (window,) = _cut(_batch([0, 2]), reduction=sequence_mean)
    (micro_batch,) = window.micro_batches
    assert _rows(window) == [[1, 0]]
    assert micro_batch.loss_weights.tolist() == [[0.25, 0.25], [0.0, 0.0]]  # two sequences, two tokens
    (window,) = _cut(_batch([0, 0]))
    assert window.micro_batches[0].loss_weights.abs().sum().item() == 0.0


@settings(max_examples=50)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=4, max_size=12).filter(lambda rows: len(rows) % 2 == 0),
    bound=st.integers(1, 60),
    reduction=st.sampled_from([token_mean, sequence_mean, constant_length]),
)
def test_the_weighted_sum_does_not_depend_on_the_micro_batches(lengths: list[int], bound: int, reduction) -> None:
    def totals(tokens: int) -> list[float]:
        windows = _cut(_batch(lengths), updates=2, micro_batch_tokens=tokens, reduction=reduction)
        assert sorted(r for w in windows for group in _rows(w) for r in group) == list(range(len(lengths)))
        # A loss of 1 + row number at every token stands for any loss.
        return [sum(float((m.loss_weights * (1 + m.advantages)).sum()) for m in w.micro_batches) for w in windows]

    assert totals(bound) == pytest.approx(totals(10_000), abs=1e-5)


def test_an_idle_rank_runs_one_short_row_at_weight_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    # As on a rank whose rows were all dropped while another rank has three micro-batches.
    monkeypatch.setattr("grpo_lightning.ranks.all_max", lambda values: torch.tensor(3))
    (window,) = _cut(_batch([5, 1, 4]), keep=torch.tensor([False, False, True]))
    assert _rows(window) == [[2], [1], [1]]
    assert len({id(m) for m in window.micro_batches}) == 3  # each its own: the last one is told by identity
    assert [float(m.loss_weights.sum()) for m in window.micro_batches] == pytest.approx([0.4, 0.0, 0.0])


def test_weights_are_of_all_ranks_and_undo_the_average_over_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two ranks: this one has 8 tokens in 4 rows, the other 24 tokens in 4 rows. DDP divides gradients by 2.
    other = torch.tensor([24.0, 4.0], dtype=torch.float64)
    monkeypatch.setattr("grpo_lightning.ranks.all_sum", lambda values: values + other)
    monkeypatch.setattr("grpo_lightning.ranks.world_size", lambda: 2)
    (window,) = _cut(_batch([1, 3, 2, 2]))
    assert window.tokens == 32
    assert sum(float(m.loss_weights.sum()) for m in window.micro_batches) == pytest.approx(2 * 8 / 32)


# --- padding ------------------------------------------------------------------------------------------------------


def test_rows_are_padded_on_the_right_only() -> None:
    batch = pad_rows([[7, 8], [9]], [[1, 2, 3], [4]], pad_token_id=0)
    assert batch.input_ids.tolist() == [[7, 8, 1, 2, 3], [9, 4, 0, 0, 0]]
    assert batch.sequence_lengths.tolist() == [5, 2]
    assert batch.prompt_lengths.tolist() == [2, 1]
    assert batch.completion_mask.tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch.attention_mask.tolist() == [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]


def test_a_padding_id_inside_prompt_or_completion_is_a_token() -> None:
    batch = pad_rows([[7, 0, 8], [9]], [[5, 0], [0]], pad_token_id=0)
    assert batch.attention_mask.tolist() == [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]
    assert batch.completion_mask.tolist() == [[1, 1], [1, 0]]


def test_a_padding_id_that_ends_sequences_is_trained_where_it_was_written_and_only_there() -> None:
    """The end of a chat's turn in a prompt, that of a completion, and the padding after it are the same token."""
    batch = pad_rows([[7, 1], [9, 1, 8]], [[5, 1], [4, 6, 3]], pad_token_id=1)
    assert batch.input_ids.tolist() == [[7, 1, 5, 1, 1, 1], [9, 1, 8, 4, 6, 3]]
    assert batch.attention_mask.tolist() == [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]]
    assert batch.completion_mask.tolist() == [[1, 1, 0], [1, 1, 1]]
    assert batch.completion_ids[0, :2].tolist() == [5, 1]


def test_nothing_but_empty_completions_is_still_a_batch() -> None:
    batch = pad_rows([[7], [8]], [[], []], pad_token_id=0)
    assert batch.completion_mask.tolist() == [[0], [0]]
    assert batch.input_ids.tolist() == [[7], [8]]


@pytest.mark.parametrize(
    ("reduction", "message"),
    [
        (lambda mask, **_: mask.sum(dim=1), r"returned \[2\] for a mask \[2, 5\]: return one for each token"),
        (lambda mask, **_: None, "returned NoneType"),
        (lambda mask, **_: mask / 0, "returned NaN or infinite weights"),
    ],
)
def test_what_a_reduction_of_the_users_own_returns_is_looked_at(reduction, message) -> None:
    with pytest.raises(UserError, match=message):
        _cut(_batch([5, 2]), reduction=reduction)
