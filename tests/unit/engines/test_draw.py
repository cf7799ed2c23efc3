from __future__ import annotations

import math

import pytest
import torch

from grpo_lightning.engines.base import Sampling
from grpo_lightning.engines.draw import draw, processed_logprobs, uniforms


def probabilities(probs: list[float], **options: float) -> list[float]:
    """What ``processed_logprobs`` makes of a distribution, rounded."""
    sampling = Sampling(max_completion_length=1, **options)  # type: ignore[arg-type]
    out = processed_logprobs(torch.tensor([probs]).log(), sampling).exp()[0]
    return [round(p, 5) for p in out.tolist()]


def test_temperature_divides_the_logits():
    logits = torch.tensor([[2.0, 0.0]])
    half = processed_logprobs(logits, Sampling(max_completion_length=1, temperature=0.5))
    assert half[0].tolist() == pytest.approx([-0.01815, -4.01815], abs=1e-5)
    greedy = processed_logprobs(logits, Sampling(max_completion_length=1, temperature=0))
    assert greedy[0].tolist() == pytest.approx([-0.12693, -2.12693], abs=1e-5)


def test_logprobs_are_float32_whatever_the_logits_are():
    logits = torch.randn(4, 32_000).to(torch.bfloat16)
    out = processed_logprobs(logits, Sampling(max_completion_length=1))
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), torch.log_softmax(logits.double(), dim=-1), atol=1e-5, rtol=0)


def test_filters():
    probs = [0.1, 0.4, 0.3, 0.2]
    assert probabilities(probs, top_k=2) == [0, 0.57143, 0.42857, 0]
    assert probabilities(probs, top_k=9) == probs
    # 0.4 alone is short of 0.6, with 0.3 it is not; 0.71 needs the third.
    assert probabilities(probs, top_p=0.6) == [0, 0.57143, 0.42857, 0]
    assert probabilities(probs, top_p=0.71) == [0, 0.44444, 0.33333, 0.22222]
    assert probabilities(probs, top_p=0.01) == [0, 1, 0, 0]
    # At least 0.6 of the likeliest: 0.24.
    assert probabilities(probs, min_p=0.6) == [0, 0.57143, 0.42857, 0]


def test_filters_come_in_order_each_on_what_is_left():
    # Top-k leaves 4/7 and 3/7; the nucleus of 0.55 is then the first alone (of the whole it would be both).
    assert probabilities([0.1, 0.4, 0.3, 0.2], top_k=2, top_p=0.55) == [0, 1, 0, 0]
    # The temperature comes before the nucleus: squared and normalized, 0.16 / 0.3 is above one half.
    assert probabilities([0.1, 0.4, 0.3, 0.2], temperature=0.5, top_p=0.5) == [0, 1, 0, 0]


def test_draw_inverts_the_cumulative_distribution():
    logprobs = torch.tensor([[0.2, 0.0, 0.5, 0.3]]).log().expand(6, 4)
    points = torch.tensor([0.0, 0.1999, 0.2001, 0.6999, 0.7001, 1 - 2**-53], dtype=torch.float64)
    assert draw(logprobs, points).tolist() == [0, 0, 2, 2, 3, 3]


def test_draw_never_takes_an_impossible_token():
    logprobs = torch.log_softmax(torch.tensor([[-math.inf, 1.0, -math.inf, 0.5, -math.inf]]), dim=-1).expand(2, 5)
    assert draw(logprobs, torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)).tolist() == [1, 3]


def test_draw_has_the_right_frequencies():
    probs = torch.tensor([0.05, 0.15, 0.3, 0.5])
    picks = draw(probs.log().expand(20_000, 4), uniforms(list(range(20_000)), 1)[:, 0])
    counts = torch.bincount(picks, minlength=4) / 20_000
    torch.testing.assert_close(counts, probs, atol=0.012, rtol=0)


def test_each_row_has_its_own_stream():
    table = uniforms([7, 8, 7, 2**62], 40)
    assert torch.equal(table[0], table[2])
    assert not torch.isclose(table[0], table[1]).any()
    assert torch.equal(uniforms([8], 40)[0], table[1])
    assert torch.equal(uniforms([7], 5)[0], table[0, :5])
    assert ((table >= 0) & (table < 1)).all()
