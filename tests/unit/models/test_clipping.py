"""The gradient norm and its clipping."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from grpo_lightning.models.clipping import clip_grad_norm


def _model(*gradients: list[float] | None) -> nn.Module:
    """Parameters with these gradients; None is one of two numbers without a gradient."""
    model = nn.ParameterList()
    for gradient in gradients:
        parameter = nn.Parameter(torch.zeros(len(gradient or [0, 0])))
        parameter.grad = None if gradient is None else torch.tensor(gradient)
        model.append(parameter)
    return model


def _gradients(model: nn.Module) -> list[list[float]]:
    return [parameter.grad.tolist() for parameter in model.parameters()]


def test_returns_the_norm_before_clipping_and_scales_all_gradients_alike() -> None:
    model = _model([3.0, 0.0], [4.0])
    assert clip_grad_norm(model, 1.0) == pytest.approx(5.0)
    assert _gradients(model) == [pytest.approx([0.6, 0.0]), pytest.approx([0.8])]


@pytest.mark.parametrize("bound", [10.0, None])
def test_a_small_gradient_is_left_alone(bound: float | None) -> None:
    model = _model([3.0], [4.0])
    assert clip_grad_norm(model, bound) == pytest.approx(5.0)
    assert _gradients(model) == [[3.0], [4.0]]


@pytest.mark.parametrize("bound", [1.0, None])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_gradient_shows_in_the_norm(bound: float | None, bad: float) -> None:
    assert not math.isfinite(clip_grad_norm(_model([1.0], [bad]), bound))


def test_parameters_without_gradient_do_not_count() -> None:
    assert clip_grad_norm(_model([3.0, 4.0], None), None) == pytest.approx(5.0)
    assert clip_grad_norm(_model(None), 1.0) == 0.0
