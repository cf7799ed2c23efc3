"""Loss weights: what they sum to, that splits add up, and the length bias by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_lightning.functional.reduction import constant_length, sequence_mean, sequence_sum, token_mean

REDUCTIONS = [token_mean, sequence_mean, sequence_sum, constant_length]


def _mask(lengths: list[int], width: int | None = None) -> torch.Tensor:
    columns = torch.arange(width or max(*lengths, 1))
    return (columns < torch.tensor(lengths)[:, None]).float()


def _weights(reduction, mask: torch.Tensor, *, whole: torch.Tensor, max_length: int = 16) -> torch.Tensor:
    return reduction(mask, tokens=float(whole.sum()), sequences=float(len(whole)), max_length=max_length)


def test_a_short_and_a_long_completion_by_hand() -> None:
    # One completion of 1 token with loss 10, one of 4 tokens with loss 1 each; limit 8 tokens.
    mask = _mask([1, 4])
    values = torch.tensor([[10.0, 99, 99, 99], [1, 1, 1, 1]])

    def loss(reduction) -> float:
        return float((values * _weights(reduction, mask, whole=mask, max_length=8)).sum())

    assert loss(token_mean) == pytest.approx(14 / 5)
    assert loss(sequence_mean) == pytest.approx((10 + 1) / 2)  # the short one's token counts four times as much
    assert loss(sequence_sum) == pytest.approx((10 + 4) / 2)
    assert loss(constant_length) == pytest.approx(14 / 16)


@pytest.mark.parametrize(
    ("reduction", "ratio"), [(token_mean, 1.0), (sequence_mean, 4.0), (sequence_sum, 1.0), (constant_length, 1.0)]
)
def test_only_the_sequence_mean_favours_tokens_of_short_completions(reduction, ratio: float) -> None:
    mask = _mask([1, 4])
    weights = _weights(reduction, mask, whole=mask)
    assert (weights[0, 0] / weights[1, 0]).item() == pytest.approx(ratio)


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_means_weigh_one_in_all(lengths: list[int]) -> None:
    mask = _mask(lengths)
    for reduction in (token_mean, sequence_mean):
        assert _weights(reduction, mask, whole=mask).sum().item() == pytest.approx(1.0, abs=1e-6)
    mean_length = sum(lengths) / len(lengths)
    assert _weights(sequence_sum, mask, whole=mask).sum().item() == pytest.approx(mean_length, abs=1e-5)
    assert _weights(constant_length, mask, whole=mask).sum().item() == pytest.approx(mean_length / 16, abs=1e-6)


@settings(max_examples=60)
@given(data=st.data(), lengths=st.lists(st.integers(0, 9), min_size=1, max_size=8))
def test_parts_add_up_to_the_whole_however_it_is_split(data: st.DataObject, lengths: list[int]) -> None:
    mask = _mask(lengths, 9)
    part_of = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=len(lengths), max_size=len(lengths))))
    values = torch.linspace(-1, 2, mask.numel()).reshape(mask.shape)
    for reduction in REDUCTIONS:
        whole = (values * _weights(reduction, mask, whole=mask)).sum()
        parts = sum(
            (values[part_of == part] * _weights(reduction, mask[part_of == part], whole=mask)).sum()
            for part in range(4)
        )
        assert float(parts) == pytest.approx(float(whole), abs=1e-6)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_an_empty_window_weighs_nothing(reduction) -> None:
    mask = torch.zeros(2, 3)
    assert _weights(reduction, mask, whole=mask).tolist() == [[0, 0, 0], [0, 0, 0]]
