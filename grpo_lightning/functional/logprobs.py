"""Log-probabilities of sampled tokens, in float32 whatever the model computes in, without a ``[B, T, V]`` tensor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_BYTES = 64 * 2**20
"""Logits held at once. Peak extra memory of ``head_logprobs`` is at most 4 such chunks, forward or backward, beyond its
inputs, its two outputs and the gradients of its inputs; the head's weight in the dtype of the hidden states and its
gradient in float32 come on top where the head has another dtype."""


class TokenScores(NamedTuple):
    """What a language model says of given tokens."""

    logprobs: Tensor
    """Log-probability of each token; 0 where no token is trained, ``[B, T]``."""
    entropy: Tensor
    """Entropy of the distribution that the token was drawn from, in nats; 0 where no token is trained, ``[B, T]``."""


def logprobs_from_logits(logits: Tensor, targets: Tensor, *, temperature: float = 1.0) -> Tensor:
    """log softmax(logits / temperature)[target]: the plain form, for small inputs and as the yardstick in tests.

    Args:
        logits: any float dtype, ``[..., V]``.
        targets: token ids, ``[...]``.
        temperature: the one the tokens were sampled at; must be positive.

    Returns:
        float32 (float64 for float64 logits), ``[...]``.
    """
    scaled = _at_least_float32(logits) / _positive(temperature)
    return scaled.log_softmax(dim=-1).gather(-1, targets[..., None]).squeeze(-1)


def head_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    scale: float = 1.0,
    softcap: float | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of tokens from the last hidden states, a chunk of tokens at a time.

    logits = softcap(scale · (hidden @ weightᵀ + bias)) / temperature, with softcap(x) = c · tanh(x / c). The backward
    pass computes each chunk's logits again instead of keeping them. The matrix products run in the dtype of ``hidden``
    (or autocast's); the softmax and all sums over the vocabulary in float32 or better.

    Args:
        hidden: states that *predict* the targets, ``[N, H]``.
        weight: of the language-model head, ``[V, H]``.
        targets: token ids, ``[N]``.
        bias: of the head, ``[V]``.
        temperature: the one the tokens were sampled at; must be positive.
        scale: constant that some models multiply their logits by.
        softcap: bound of the logits that some models have (Gemma 2).
        chunk_bytes: logits held at once.

    Returns:
        Log-probabilities and entropies in nats, both ``[N]``, both differentiable.
    """
    if torch.is_autocast_enabled(hidden.device.type):
        hidden = hidden.to(torch.get_autocast_dtype(hidden.device.type))
    rows = max(1, chunk_bytes // (4 * weight.shape[0]))
    factor = scale if softcap is not None else scale / _positive(temperature)
    cap = (softcap, 1 / _positive(temperature)) if softcap is not None else None
    return _HeadLogprobs.apply(hidden, weight, targets, bias, factor, cap, rows)


class _HeadLogprobs(torch.autograd.Function):
    """``head_logprobs`` with recomputation; ``cap`` is (c, 1 / temperature) or None."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        bias: Tensor | None,
        factor: float,
        cap: tuple[float, float] | None,
        rows: int,
    ) -> tuple[Tensor, Tensor]:
        precise = torch.promote_types(hidden.dtype, torch.float32)
        low = weight.to(hidden.dtype)
        logprobs = torch.empty(len(hidden), dtype=precise, device=hidden.device)
        entropy, normalizer = torch.empty_like(logprobs), torch.empty_like(logprobs)
        for part in _slices(len(hidden), rows):
            logits = _logits(hidden[part], low, bias, factor, cap)
            logprobs[part], entropy[part], normalizer[part] = _scores(logits, targets[part])
            del logits  # or it would still be there while the next chunk's are made
        ctx.save_for_backward(hidden, weight, targets, bias, normalizer, entropy)
        ctx.factor, ctx.cap, ctx.rows = factor, cap, rows
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprobs: Tensor, grad_entropy: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, bias, normalizer, entropy = ctx.saved_tensors
        need_hidden, need_weight, _, need_bias, *_ = ctx.needs_input_grad
        grad_hidden = torch.empty_like(hidden) if need_hidden else None
        # Summed up over chunks in float32: in bfloat16 each of many additions would round.
        grad_weight = torch.zeros_like(weight, dtype=normalizer.dtype) if need_weight else None
        grad_bias = torch.zeros_like(bias, dtype=normalizer.dtype) if need_bias else None
        low = weight.to(hidden.dtype)
        with_entropy = bool(grad_entropy.any())
        columns = max(1, ctx.rows * len(weight) // max(hidden.shape[1], 1))
        for part in _slices(len(hidden), ctx.rows):
            logits = _logits(hidden[part], low, bias, ctx.factor, ctx.cap)
            slopes = grad_logprobs[part, None], grad_entropy[part, None] if with_entropy else None
            grad = _logits_gradient(logits, targets[part], normalizer[part, None], entropy[part, None], slopes, ctx.cap)
            del logits
            grad = grad.mul_(ctx.factor).to(hidden.dtype)
            if grad_hidden is not None:
                grad_hidden[part] = grad @ low
            if grad_weight is not None:
                # In pieces that are no larger than a chunk: the whole product is as large as the weight.
                for piece in _slices(len(weight), columns):
                    grad_weight[piece] += grad[:, piece].T @ hidden[part]
            if grad_bias is not None:
                grad_bias += grad.sum(dim=0, dtype=grad_bias.dtype)
            del grad
        if grad_weight is not None:
            grad_weight = grad_weight.to(weight.dtype)
        if grad_bias is not None:
            grad_bias = grad_bias.to(bias.dtype)
        return grad_hidden, grad_weight, None, grad_bias, None, None, None


def _logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, factor: float, cap: tuple[float, float] | None
) -> Tensor:
    """Logits at the sampling temperature, at least float32, ``[n, V]``; in place, so that there is one copy of them."""
    logits = _at_least_float32(hidden @ weight.T)
    if bias is not None:
        logits.add_(bias)
    if factor != 1:
        logits.mul_(factor)
    return logits if cap is None else logits.div_(cap[0]).tanh_().mul_(cap[0] * cap[1])


def _scores(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probability of the targets, entropy and log of the normalizer, each ``[n]``, from logits ``[n, V]``."""
    normalizer = logits.logsumexp(dim=-1)
    logprobs = logits.gather(1, targets[:, None]).squeeze(1) - normalizer
    mean_logit = (logits - normalizer[:, None]).exp_().mul_(logits).sum(dim=-1)
    return logprobs, normalizer - mean_logit, normalizer


def _logits_gradient(
    logits: Tensor,
    targets: Tensor,
    normalizer: Tensor,
    entropy: Tensor,
    slopes: tuple[Tensor, Tensor | None],
    cap: tuple[float, float] | None,
) -> Tensor:
    """Gradient with respect to (uncapped) logits, ``[n, V]``; ``slopes`` are those of log-probability and entropy.

    d log p_target = onehot - p;  d entropy = -p (log p + entropy);  d capped / d uncapped = (1 - tanh²) / temperature.
    """
    slope, entropy_slope = slopes
    cap_slope = None if cap is None else (logits / (cap[0] * cap[1])).square_().neg_().add_(1).mul_(cap[1])
    log_p = logits.sub_(normalizer)
    grad = log_p.exp()
    if entropy_slope is None:
        grad.mul_(-slope)
    else:
        grad.mul_(log_p.add_(entropy).mul_(entropy_slope).add_(slope).neg_())
    grad.scatter_add_(1, targets[:, None], slope.to(grad.dtype))
    return grad if cap_slope is None else grad.mul_(cap_slope)


def _slices(length: int, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, length, size))


def _at_least_float32(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _positive(temperature: float) -> float:
    if temperature <= 0:
        raise ValueError(f"temperature {temperature}: log-probabilities need a positive one (0 means greedy sampling)")
    return temperature
