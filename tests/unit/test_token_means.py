"""Means over the tokens of a step, not means of means."""

from __future__ import annotations

import math

import pytest
import torch

from grpo_lightning.token_means import TokenMeans


def test_every_token_counts_the_same_whatever_its_micro_batch() -> None:
    # Three samples of 1 in one micro-batch and one sample of 0 in the other: 0.75. The mean of the means is 0.5.
    means = TokenMeans()
    means.add({"x": torch.ones(3, 1)}, torch.ones(3, 1))
    means.add({"x": torch.zeros(1, 1)}, torch.ones(1, 1))
    assert means.result() == {"x": 0.75}


def test_masked_tokens_do_not_count_even_if_they_are_nan() -> None:
    means = TokenMeans()
    means.add({"a": torch.tensor([[1.0, torch.nan]]), "b": torch.tensor([[8.0, torch.inf]])}, torch.tensor([[1.0, 0]]))
    means.add({"a": torch.tensor([[2.0, 6.0]]), "b": torch.tensor([[0.0, 1.0]])}, torch.ones(1, 2))
    assert means.result() == {"a": 3.0, "b": 3.0}


def test_maxima_and_totals_are_not_averaged() -> None:
    means = TokenMeans()
    for values, total in (([[1.0, 9.0]], 0.25), ([[5.0, 9.0]], 0.5)):
        means.add_max("max", torch.tensor(values), torch.tensor([[1.0, 0.0]]))
        means.add_total("loss", torch.tensor(total, requires_grad=True))
    assert means.result() == {"loss": 0.75, "max": 5.0}


def test_the_maximum_of_negative_figures_is_negative_and_of_none_is_no_figure() -> None:
    means = TokenMeans()
    means.add_max("some", torch.tensor([[-3.0, -2.0, 7.0]]), torch.tensor([[1.0, 1.0, 0.0]]))
    means.add_max("none", torch.tensor([[4.0]]), torch.zeros(1, 1))
    assert means.result() == {"some": -2.0}


def test_a_nan_that_counts_shows() -> None:
    means = TokenMeans()
    means.add({"x": torch.tensor([[torch.nan, 1.0]])}, torch.ones(1, 2))
    means.add_max("worst", torch.tensor([[torch.nan, 1.0]]), torch.ones(1, 2))
    result = means.result()
    assert all(value != value for value in result.values())


def test_of_no_token_there_is_no_figure() -> None:
    assert TokenMeans().result() == {}
    means = TokenMeans()
    means.add({"x": torch.ones(1, 1)}, torch.zeros(1, 1), shares={"y": torch.ones(1, 1)})
    assert means.result() == {}
    assert means.result(all_tokens=4) == {"y": 0.0}  # there were tokens, all of them left out


def test_sums_are_exact_over_many_tokens() -> None:
    # float32 sums of a million tenths are off by more than 1e-3 of the mean.
    means = TokenMeans()
    for _ in range(8):
        means.add({"x": torch.full((1, 250_000), 0.1)}, torch.ones(1, 250_000))
    assert means.result()["x"] == pytest.approx(float(torch.tensor(0.1)), rel=1e-9)


def test_a_share_counts_what_was_left_out() -> None:
    figures = TokenMeans()
    figures.add({}, torch.tensor([[1.0, 1.0, 0.0]]), shares={"clipped": torch.tensor([[1.0, 0.0, 1.0]])})
    figures.add({}, torch.tensor([[1.0]]), shares={"clipped": torch.tensor([[1.0]])})
    # Two of three tokens here, of eight in the whole step.
    assert figures.result(all_tokens=8) == {"clipped": 0.25}


def test_a_mean_with_a_denominator_of_its_own_does_not_count_the_tokens_of_others() -> None:
    figures = TokenMeans()
    for lengths, mask in (([4.0, 2.0, torch.nan], [1.0, 1.0, 0.0]), ([9.0], [1.0])):  # of sequences
        figures.add_mean("length", torch.tensor(lengths), torch.tensor(mask))
        figures.add({"x": torch.ones(1, 4)}, torch.ones(1, 4))
    figures.add_mean("none", torch.ones(2), torch.zeros(2))
    assert figures.result() == {"x": 1.0, "length": 5.0}


def test_a_formula_sees_the_totals_and_is_not_averaged() -> None:
    figures = TokenMeans()
    for weights in ([1.0, 1.0], [4.0]):
        w = torch.tensor(weights)
        figures.add_sums("squared", lambda total, squares: total**2 / squares, w.sum(), w.square().sum())
    assert figures.result() == {"squared": 2.0}  # 6² / 18; the mean of 2 and 1 is 1.5


def test_the_minimum_is_the_smallest_of_all_micro_batches() -> None:
    figures = TokenMeans()
    for values in ([0.5, -7.0], [0.25, 0.125]):
        figures.add_min("least", torch.tensor([values]), torch.tensor([[1.0, 0.0]]))
    figures.add_min("none", torch.tensor([[4.0]]), torch.zeros(1, 1))
    figures.add_min("broken", torch.tensor([[torch.nan, 1.0]]), torch.ones(1, 2))
    result = figures.result()
    assert math.isnan(result.pop("broken"))
    assert result == {"least": 0.25}
