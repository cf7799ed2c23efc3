"""The gradient norm and its clipping."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from grpo_lightning.models.clipping import clip_grad_norm


def _parameters(*gradients: list[float]) -> list[nn.Parameter]:
    parameters = []
    for gradient in gradients:
        parameter = nn.Parameter(torch.zeros(len(gradient)))
        parameter.grad = torch.tensor(gradient)
        parameters.append(parameter)
    return parameters


def test_returns_the_norm_before_clipping_and_scales_all_gradients_alike() -> None:
    parameters = _parameters([3.0, 0.0], [4.0])
    assert clip_grad_norm(parameters, 1.0) == pytest.approx(5.0)
    assert [p.grad.tolist() for p in parameters] == [pytest.approx([0.6, 0.0]), pytest.approx([0.8])]


@pytest.mark.parametrize("bound", [10.0, None])
def test_a_small_gradient_is_left_alone(bound: float | None) -> None:
    parameters = _parameters([3.0], [4.0])
    assert clip_grad_norm(parameters, bound) == pytest.approx(5.0)
    assert [p.grad.tolist() for p in parameters] == [[3.0], [4.0]]


@pytest.mark.parametrize("bound", [1.0, None])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_gradient_shows_in_the_norm(bound: float | None, bad: float) -> None:
    assert not math.isfinite(clip_grad_norm(_parameters([1.0], [bad]), bound))


def test_parameters_without_gradient_do_not_count() -> None:
    assert clip_grad_norm([*_parameters([3.0, 4.0]), nn.Parameter(torch.ones(2))], None) == pytest.approx(5.0)
    assert clip_grad_norm([nn.Parameter(torch.ones(2))], 1.0) == 0.0
