"""The critic's loss, its clip share and its explained variance against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from grpo_lightning.functional.values import explained_variance, fit_sums, value_loss

NAN = math.nan
RETURNS = torch.tensor([[1.0, 1.0, 1.0, -1.0, NAN]], dtype=torch.float64)
OLD = torch.tensor([[0.0, 0.5, 0.0, 0.0, 3.0]], dtype=torch.float64)


def values() -> Tensor:
    """Far towards the return, near it, far away from it, beyond it on the other side, and without one."""
    return torch.tensor([[0.9, 0.6, -0.4, -1.5, 7.0]], dtype=torch.float64, requires_grad=True)


def test_the_larger_error_counts() -> None:
    """Held values: 0.2, 0.6, -0.2, -0.2. Errors -0.1 and -0.8; -0.4 twice; -1.4 and -1.2; -0.5 and 0.8."""
    given = values()
    loss, clipped = value_loss(given, RETURNS, OLD, clip=0.2)
    expected = torch.tensor([[0.5 * 0.8**2, 0.5 * 0.4**2, 0.5 * 1.4**2, 0.5 * 0.8**2, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)
    assert clipped.tolist() == [[1, 0, 0, 1, 0]]
    loss.sum().backward()
    slopes = torch.tensor([[0.0, -0.4, -1.4, 0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(given.grad, slopes, rtol=0, atol=1e-12)


def test_without_a_clip_it_is_half_the_squared_error() -> None:
    given = values()
    loss, clipped = value_loss(given, RETURNS, OLD, clip=None)
    expected = torch.tensor([[0.5 * 0.1**2, 0.5 * 0.4**2, 0.5 * 1.4**2, 0.5 * 0.5**2, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)
    assert not clipped.any()
    loss.sum().backward()
    slopes = torch.tensor([[-0.1, -0.4, -1.4, -0.5, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(given.grad, slopes, rtol=0, atol=1e-12)


def test_a_value_within_the_clip_is_not_counted_as_clipped_for_rounding() -> None:
    old = torch.linspace(-1, 1, 1000)[None] / 3
    moved = old + 0.1 * torch.sin(torch.arange(1000))
    _, clipped = value_loss(moved, torch.zeros_like(old) + 0.7, old, clip=0.2)
    assert not clipped.any()


@pytest.mark.parametrize("clip", [None, 0.2])
def test_nothing_leaks_from_a_token_without_a_return(clip: float | None) -> None:
    given = torch.tensor([[0.5, math.inf]], requires_grad=True)
    loss, _ = value_loss(given, torch.tensor([[1.0, NAN]]), torch.tensor([[0.5, NAN]]), clip=clip)
    torch.where(torch.tensor([[True, False]]), loss, 0.0).sum().backward()
    assert given.grad is not None
    assert given.grad[0, 0] == -0.5


def explained(values: list[float], returns: list[float]) -> float:
    """Of two parts that are added up, with a token in each that does not count."""
    parts = [(values[:1], returns[:1]), (values[1:], returns[1:])]
    sums = [
        fit_sums(torch.tensor([[*v, 5.0]]), torch.tensor([[*r, NAN]]), torch.tensor([[*[1.0] * len(v), 0.0]]))
        for v, r in parts
    ]
    return explained_variance(*(float(a + b) for a, b in zip(*sums, strict=True)))


def test_explained_variance() -> None:
    """Returns 0, 1, 2, 3 have variance 1.25; errors 0, 0, 1, 1 have 0.25."""
    assert explained([0.0, 1.0, 1.0, 2.0], [0.0, 1.0, 2.0, 3.0]) == pytest.approx(1 - 0.25 / 1.25)
    assert explained([5.0, 6.0, 7.0, 8.0], [0.0, 1.0, 2.0, 3.0]) == pytest.approx(1)  # a constant off
    assert explained([0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 2.0, 3.0]) == pytest.approx(0)
    assert explained([3.0, 2.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0]) == pytest.approx(-3)  # backwards
    assert explained([0.3, 0.7], [0.1, 0.1]) == 0  # nothing to explain
    assert explained_variance(0, 0, 0, 0, 0) is None
