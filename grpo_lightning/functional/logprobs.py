"""Log-probabilities of sampled tokens, in float32 whatever the model computes in, without a ``[B, T, V]`` tensor."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_BYTES = 64 * 2**20
"""Logits held at once. Peak extra memory of ``head_logprobs`` is at most 4 such chunks, forward or backward, beyond its
inputs, its two outputs and the gradients of its inputs."""


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
        for start in range(0, len(hidden), rows):
            part = slice(start, start + rows)
            logits, _ = _logits(hidden[part], low, bias, factor, cap)
            normalizer[part] = logits.logsumexp(dim=-1)
            logprobs[part] = logits.gather(1, targets[part, None]).squeeze(1) - normalizer[part]
            probabilities = (logits - normalizer[part, None]).exp_()
            entropy[part] = normalizer[part] - torch.linalg.vecdot(probabilities, logits)
        ctx.save_for_backward(hidden, weight, targets, bias, normalizer, entropy)
        ctx.factor, ctx.cap, ctx.rows = factor, cap, rows
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprobs: Tensor, grad_entropy: Tensor) -> tuple[Tensor | None, ...]:  # noqa: N805
        hidden, weight, targets, bias, normalizer, entropy = ctx.saved_tensors
        need_hidden, need_weight, _, need_bias, *_ = ctx.needs_input_grad
        grad_hidden = torch.empty_like(hidden) if need_hidden else None
        grad_weight = torch.zeros_like(weight) if need_weight else None
        grad_bias = torch.zeros_like(bias) if need_bias else None
        low = weight.to(hidden.dtype)
        with_entropy = bool(grad_entropy.any())
        for start in range(0, len(hidden), ctx.rows):
            part = slice(start, start + ctx.rows)
            logits, tanh = _logits(hidden[part], low, bias, ctx.factor, ctx.cap)
            log_p = logits.sub_(normalizer[part, None])
            p = log_p.exp()
            # d log p_target = onehot - p;  d entropy = -p (log p + entropy)
            slope = grad_logprobs[part, None]
            grad = p * (-slope - grad_entropy[part, None] * (log_p + entropy[part, None])) if with_entropy else p * -slope
            grad.scatter_add_(1, targets[part, None], slope.to(grad.dtype))
            if tanh is not None:
                grad.mul_(1 - tanh.square()).mul_(ctx.cap[1])
            grad = grad.mul_(ctx.factor).to(hidden.dtype)
            if grad_hidden is not None:
                grad_hidden[part] = grad @ low
            if grad_weight is not None:
                grad_weight += grad.T @ hidden[part]
            if grad_bias is not None:
                grad_bias += grad.sum(dim=0, dtype=grad_bias.dtype)
        return grad_hidden, grad_weight, None, grad_bias, None, None, None


def _logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, factor: float, cap: tuple[float, float] | None
) -> tuple[Tensor, Tensor | None]:
    """Logits at the sampling temperature ``[n, V]``, at least float32, and tanh(x / c) where they are capped."""
    logits = _at_least_float32(hidden @ weight.T)
    if bias is not None:
        logits = logits + bias
    logits = logits * factor if factor != 1 else logits
    if cap is None:
        return logits, None
    tanh = (logits / cap[0]).tanh_()
    return tanh * (cap[0] * cap[1]), tanh


def _at_least_float32(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _positive(temperature: float) -> float:
    if temperature <= 0:
        raise ValueError(f"temperature {temperature}: log-probabilities need a positive one (0 means greedy sampling)")
    return temperature
