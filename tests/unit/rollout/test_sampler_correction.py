"""Importance weights, the off-policy mask and their figures, by hand and in general."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_lightning import ranks
from grpo_lightning.engines.base import Sampling
from grpo_lightning.errors import UserError
from grpo_lightning.rollout.sampler_correction import OffPolicyMask, SamplerCorrection, refuse_truncated_sampling
from grpo_lightning.rollout.sampler_gap import add_gap, gap_figures
from grpo_lightning.token_means import TokenMeans
from grpo_lightning.types import RolloutBatch

Corrections = SamplerCorrection | OffPolicyMask

RATIOS = [[1.0, 4.0, 0.25], [2.5, 0.8]]
"""Trainer to sampler; products 1 and 2, geometric means 1 and √2."""


def _batch(
    ratios: list[list[float]], *, advantages: list[Any] | None = None, quartiles: list[int] | None = None
) -> RolloutBatch:
    """A row per list, the trainer's probabilities 1/10; padding that must not be looked at."""
    rows, width = len(ratios), max(len(row) for row in ratios)
    trainer, sampler = torch.full((rows, width), torch.nan), torch.full((rows, width), -torch.inf)
    mask = torch.zeros(rows, width)
    for i, row in enumerate(ratios):
        trainer[i, : len(row)] = math.log(0.1)
        sampler[i, : len(row)] = torch.tensor([math.log(0.1 / ratio) for ratio in row])
        mask[i, : len(row)] = 1
    lengths = mask.sum(dim=1).long()
    signs = torch.tensor(advantages or [1.0] * rows)
    return RolloutBatch(
        input_ids=torch.zeros(rows, width + 1, dtype=torch.long),
        sequence_lengths=lengths + 1,
        prompt_lengths=torch.ones(rows, dtype=torch.long),
        completion_mask=mask,
        loss_weights=mask / mask.sum(),
        advantages=signs if signs.dim() == 2 else signs[:, None],
        old_logprobs=trainer,
        sampling_logprobs=sampler,
        length_quartile=None if quartiles is None else torch.tensor(quartiles),
    )


def _current(batch: RolloutBatch) -> torch.Tensor:
    """Log-probabilities of a policy that has moved on: no importance weight may depend on them."""
    return torch.full_like(batch.completion_mask, -3.0).requires_grad_()


def _figures(correction: Corrections, *batches: RolloutBatch, logprobs: torch.Tensor | None = None) -> dict[str, float]:
    figures = TokenMeans()
    for batch in batches:
        correction.add_figures(figures, _current(batch) if logprobs is None else logprobs, batch)
    return figures.result()


# --- weights ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [[1, 2, 0.25], [2, 0.8, 1]]),  # TIS: truncated at 2
        ({"lower": 0.5}, [[1, 2, 0.5], [2, 0.8, 1]]),
        ({"lower": 0.5, "upper": None}, [[1, 4, 0.5], [2.5, 0.8, 1]]),
        ({"upper": None}, [[1, 4, 0.25], [2.5, 0.8, 1]]),
        ({"lower": 0.0, "upper": math.inf}, [[1, 4, 0.25], [2.5, 0.8, 1]]),
        ({"action": "mask", "lower": 0.5, "upper": 3.0}, [[1, 0, 0], [2.5, 0.8, 1]]),  # IcePop
        ({"action": "mask"}, [[1, 0, 0.25], [0, 0.8, 1]]),
        ({"level": "sequence"}, [[1, 1, 1], [2, 2, 1]]),
        ({"level": "sequence", "upper": 1.5}, [[1, 1, 1], [1.5, 1.5, 1]]),
        ({"level": "sequence", "upper": 1.5, "action": "mask"}, [[1, 1, 1], [0, 0, 1]]),
        ({"level": "geometric"}, [[1, 1, 1], [math.sqrt(2), math.sqrt(2), 1]]),
        ({"level": "geometric", "upper": 1.5, "action": "mask"}, [[1, 1, 1], [math.sqrt(2), math.sqrt(2), 1]]),
        ({"level": "geometric", "upper": 1.25, "action": "mask"}, [[1, 1, 1], [0, 0, 1]]),
    ],
)
def test_weights_by_hand(options: dict[str, Any], expected: list[list[float]]) -> None:
    batch = _batch(RATIOS)
    weights = SamplerCorrection(**options).weights(_current(batch), batch)
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float32), rtol=0, atol=1e-6)
    assert not weights.requires_grad


def test_on_the_first_step_the_current_policy_is_the_one_that_sampled() -> None:
    batch = _batch([[1.5, 0.5]])
    batch.old_logprobs = None
    logprobs = torch.tensor([[math.log(0.1), math.log(0.05)]], requires_grad=True)
    weights = SamplerCorrection().weights(logprobs, batch)
    torch.testing.assert_close(weights, torch.tensor([[1.5, 0.25]]))
    assert not weights.requires_grad


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_no_distance_overflows_float32(level: Any) -> None:
    batch = _batch([[1.0, 1.0], [1.0, 1.0]])
    batch.sampling_logprobs = torch.tensor([[-1000.0, -1000.0], [1000.0, 1000.0]])
    weights = SamplerCorrection(level=level, upper=None).weights(_current(batch), batch)
    torch.testing.assert_close(weights, torch.tensor([[math.exp(20)] * 2, [math.exp(-20)] * 2]))


def test_a_nan_that_counts_is_not_hidden() -> None:
    for action in ("truncate", "mask"):
        batch = _batch([[1.0, 1.0]])
        batch.old_logprobs[0, 1] = torch.nan
        assert SamplerCorrection(action=action).weights(_current(batch), batch).isnan().tolist() == [[False, True]]


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"lower": 1.5}, "--model.correction.lower 1.5"),
        ({"lower": -0.5}, "--model.correction.lower -0.5"),
        ({"lower": math.nan}, "--model.correction.lower nan"),
        ({"upper": 0.5}, "--model.correction.upper 0.5"),
        ({"upper": math.nan}, "--model.correction.upper nan"),
    ],
)
def test_bounds_that_shut_out_a_sampler_without_a_mismatch_are_refused(options: dict[str, float], wrong: str) -> None:
    with pytest.raises(UserError, match=wrong):
        SamplerCorrection(**options)


# --- figures ------------------------------------------------------------------------------------------------------


def test_figures_of_truncated_tokens_by_hand() -> None:
    figures = _figures(SamplerCorrection(lower=0.5), _batch(RATIOS, quartiles=[3, 0]))
    # Weights 1, 2, 0.5 and 2, 0.8; outside were 4, 0.25 and 2.5.
    assert figures == pytest.approx(
        {
            "sampling/out_of_bounds/tokens": 3 / 5,
            "sampling/out_of_bounds/sequences": 1,
            "sampling/out_of_bounds/tokens_quartile_1": 1 / 2,
            "sampling/out_of_bounds/tokens_quartile_4": 2 / 3,
            "sampling/out_of_bounds/sequences_quartile_1": 1,
            "sampling/out_of_bounds/sequences_quartile_4": 1,
            "sampling/importance_sampling_ratio/min": 0.5,
            "sampling/importance_sampling_ratio/mean": 6.3 / 5,
            "sampling/importance_sampling_ratio/max": 2,
            "sampling/effective_sample_size": 6.3**2 / (1 + 4 + 0.25 + 4 + 0.64) / 5,
        },
        rel=1e-6,
    )


def test_figures_of_masked_sequences_by_hand() -> None:
    # A sequence has one weight: 1, 0 and 0.5, whatever its length.
    correction = SamplerCorrection(level="sequence", action="mask", upper=1.5)
    assert _figures(correction, _batch([*RATIOS, [0.5]])) == pytest.approx(
        {
            "sampling/out_of_bounds/tokens": 2 / 6,
            "sampling/out_of_bounds/sequences": 1 / 3,
            "sampling/importance_sampling_ratio/min": 0,
            "sampling/importance_sampling_ratio/mean": 0.5,
            "sampling/importance_sampling_ratio/max": 1,
            "sampling/effective_sample_size": 1.5**2 / 1.25 / 3,
        },
        rel=1e-6,
    )


def test_a_sequence_with_one_truncated_token_counts_once() -> None:
    figures = _figures(SamplerCorrection(), _batch([[4.0, 4.0, 1.0], [1.0], [1.0]]))
    assert figures["sampling/out_of_bounds/sequences"] == pytest.approx(1 / 3)
    assert figures["sampling/out_of_bounds/tokens"] == pytest.approx(2 / 5)


def test_rows_that_only_keep_a_rank_in_step_count_nowhere() -> None:
    batch = _batch([*RATIOS, [9.0, 9.0]], quartiles=[0, 0, 1])
    batch.loss_weights[2] = 0
    without = _batch(RATIOS, quartiles=[0, 0])
    for correction in (SamplerCorrection(), SamplerCorrection(level="geometric"), OffPolicyMask(0.1)):
        assert _figures(correction, batch) == pytest.approx(_figures(correction, without))


def test_everything_masked_leaves_no_effective_sample() -> None:
    figures = _figures(SamplerCorrection(action="mask"), _batch([[3.0], [4.0]]))
    assert figures["sampling/effective_sample_size"] == 0
    assert figures["sampling/out_of_bounds/sequences"] == 1


def test_kl_of_sampler_and_trainer_by_hand() -> None:
    figures = gap_figures(_current(_batch(RATIOS)), _batch(RATIOS))
    # The ratios multiply to 2; k3 is ratio - log ratio - 1.
    logs = [abs(math.log(ratio)) for row in RATIOS for ratio in row]
    assert figures == pytest.approx(
        {
            "sampling/logp_difference/mean": sum(logs) / 5,
            "sampling/logp_difference/max": math.log(4),
            "sampling/kl_k1": -math.log(2) / 5,
            "sampling/kl_k3": (8.55 - math.log(2) - 5) / 5,
        },
        rel=1e-6,
    )


# --- the off-policy mask ------------------------------------------------------------------------------------------


def test_bad_sequences_that_have_become_unlikely_are_left_out() -> None:
    # Nats lost per token: 0.6 with one at 1.2 and one at 0; 0.4; 0.6 but good; gained.
    batch = _batch([[1.0, 1.0], [1.0], [1.0], [1.0]], advantages=[-1.0, -1.0, 0.5, -1.0])
    batch.sampling_logprobs = torch.tensor([[-1.0, -1.0], [-1.0, torch.nan], [-1.0, torch.nan], [-5.0, torch.nan]])
    batch.old_logprobs = torch.full((4, 2), -50.0)  # the distance is from the current policy
    logprobs = torch.tensor([[-2.2, -1.0], [-1.4, -9.0], [-1.6, -9.0], [-1.0, -9.0]], requires_grad=True)
    mask = OffPolicyMask(0.5)
    weights = mask.weights(logprobs, batch)
    assert weights.tolist() == [[0, 0], [1, 1], [1, 1], [1, 1]]
    assert not weights.requires_grad
    assert weights.dtype == torch.float32
    assert _figures(mask, batch, logprobs=logprobs) == pytest.approx(
        {
            "sampling/off_policy/tokens": 2 / 5,
            "sampling/off_policy/sequences": 1 / 4,
            "sampling/off_policy/kl": (0.6 + 0.4 + 0.6 - 4.0) / 4,
        }
    )


def test_of_a_sequence_with_an_advantage_per_token_the_bad_ones_are_left_out() -> None:
    batch = _batch([[1.0, 1.0, 1.0]], advantages=[[-1.0, 0.0, 2.0]])
    logprobs = batch.sampling_logprobs - 1
    assert OffPolicyMask(0.5).weights(logprobs, batch).tolist() == [[0, 1, 1]]


def test_an_advantage_of_zero_is_not_negative() -> None:
    batch = _batch([[1.0]], advantages=[0.0])
    assert OffPolicyMask(0.5).weights(batch.sampling_logprobs - 1, batch).tolist() == [[1]]


@pytest.mark.parametrize("threshold", [0.0, -1.0, math.nan])
def test_a_threshold_must_be_positive(threshold: float) -> None:
    with pytest.raises(UserError, match=r"--model\.off_policy_threshold"):
        OffPolicyMask(threshold)


# --- in general ---------------------------------------------------------------------------------------------------

CORRECTIONS: list[Corrections] = [
    *(
        SamplerCorrection(level=level, action=action, lower=0.7, upper=1.4)  # type: ignore[arg-type]
        for level in ("token", "sequence", "geometric")
        for action in ("truncate", "mask")
    ),
    OffPolicyMask(0.1),
]
rows = st.lists(
    st.tuples(
        st.lists(st.floats(0.25, 4), min_size=1, max_size=4), st.sampled_from([-1.0, 0.0, 1.0]), st.integers(0, 3)
    ),
    min_size=2,
    max_size=6,
)
any_correction = st.sampled_from(CORRECTIONS)


def _of_rows(drawn: list[tuple[list[float], float, int]]) -> RolloutBatch:
    ratios, advantages, quartiles = (list(column) for column in zip(*drawn, strict=True))
    return _batch(ratios, advantages=advantages, quartiles=quartiles)


def _moved(batch: RolloutBatch) -> torch.Tensor:
    """A current policy halfway back to the sampler, row by row the same whatever the batch."""
    assert batch.old_logprobs is not None
    assert batch.sampling_logprobs is not None
    return (batch.old_logprobs + batch.sampling_logprobs) / 2


def _all_figures(correction: Corrections, *batches: RolloutBatch) -> TokenMeans:
    figures = TokenMeans()
    for batch in batches:
        correction.add_figures(figures, _moved(batch), batch)
        add_gap(figures, _moved(batch), batch, batch.counted)
    return figures


@given(drawn=rows, correction=any_correction, cut=st.integers(1, 5), seed=st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_neither_order_nor_split_changes_anything(
    drawn: list[Any], correction: Corrections, cut: int, seed: Any
) -> None:
    whole = _of_rows(drawn)
    order = list(range(len(drawn)))
    seed.shuffle(order)
    cut = min(cut, len(order) - 1)
    parts = [whole.rows(torch.tensor(order[:cut])), whole.rows(torch.tensor(order[cut:]))]
    assert _all_figures(correction, *parts).result() == pytest.approx(_all_figures(correction, whole).result())
    expected = correction.weights(_moved(whole), whole)
    for part, numbers in zip(parts, (order[:cut], order[cut:]), strict=True):
        weights = correction.weights(_moved(part), part)
        torch.testing.assert_close(weights, expected[numbers, : weights.shape[1]])
        assert weights.isfinite().all()


@given(drawn=rows, correction=any_correction, padding=st.integers(1, 5))
@settings(max_examples=40)
def test_padding_changes_nothing(drawn: list[Any], correction: Corrections, padding: int) -> None:
    batch = _of_rows(drawn)
    padded = dataclasses.replace(
        batch,
        **{
            name: torch.nn.functional.pad(getattr(batch, name), (0, padding), value=value)
            for name, value in {
                "completion_mask": 0.0,
                "loss_weights": 0.0,
                "old_logprobs": torch.inf,
                "sampling_logprobs": torch.nan,
            }.items()
        },
    )
    width = batch.completion_mask.shape[1]
    weights = correction.weights(_moved(padded), padded)
    torch.testing.assert_close(weights[:, :width], correction.weights(_moved(batch), batch))
    assert (weights[:, width:] == 1).all()
    assert _all_figures(correction, padded).result() == pytest.approx(_all_figures(correction, batch).result())


@given(drawn=rows, correction=any_correction)
@settings(max_examples=30)
def test_two_ranks_get_the_figures_of_one(drawn: list[Any], correction: Corrections) -> None:
    whole = _of_rows(drawn)
    halves = [_all_figures(correction, whole.rows(torch.arange(len(drawn))[part::2])) for part in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        sent: dict[str, list[torch.Tensor]] = {"all_sum": [], "all_max": []}
        for name, kept in sent.items():  # what each rank would send
            patch.setattr(ranks, name, lambda values, kept=kept: kept.append(values) or values)
        for half in halves:
            half.result()
        together: dict[str, Callable[..., torch.Tensor]] = {
            "all_sum": lambda values: sum(sent["all_sum"]),
            "all_max": lambda values: torch.stack(sent["all_max"]).amax(dim=0),
        }
        for name, reduce in together.items():
            patch.setattr(ranks, name, reduce)
        result = halves[0].result()
    assert result == pytest.approx(_all_figures(correction, whole).result())


# --- sampling that cuts -------------------------------------------------------------------------------------------


def test_a_cut_distribution_is_refused_with_the_way_out() -> None:
    sampling = Sampling(max_completion_length=8, top_p=0.9, top_k=5)
    with pytest.raises(UserError) as refused:
        refuse_truncated_sampling(sampling, flag="--model.correction", way_out="--model.correction false")
    (line,) = str(refused.value).splitlines()
    for part in ("--rollout.top_p 0.9, --rollout.top_k 5", "--rollout.top_p 1 --rollout.top_k 0", "correction false"):
        assert part in line


def test_min_p_is_refused_too_and_whole_distributions_are_not() -> None:
    with pytest.raises(UserError, match=r"--rollout\.min_p 0\.1: --model\.off_policy_threshold"):
        refuse_truncated_sampling(
            Sampling(max_completion_length=8, min_p=0.1),
            flag="--model.off_policy_threshold",
            way_out="--model.off_policy_threshold null",
        )
    refuse_truncated_sampling(Sampling(max_completion_length=8, temperature=0.7), flag="--model.correction", way_out="")
