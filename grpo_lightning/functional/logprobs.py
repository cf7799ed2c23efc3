"""Log-probabilities of sampled tokens, in float32 whatever the model computes in, without a ``[B, T, V]`` tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_BYTES = 64 * 2**20
"""Logits that ``head_logprobs`` holds at once: enough for a GPU to compute longer than it takes to start."""
CPU_CHUNK_BYTES = 16 * 2**20
"""The same on a CPU, near whose cores they then stay; in smaller pieces its threads would wait for each other more."""


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
    scaled = logits.to(_precise(logits.dtype)) / _positive(temperature)
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
    chunk_bytes: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of tokens from the last hidden states, a block of logits at a time.

    logits = softcap(scale · (hidden @ weightᵀ + bias)) / temperature, with softcap(x) = c · tanh(x / c). A block has
    some of the tokens and some of the vocabulary. Forward, each block is folded into three running sums per token (as
    in online softmax, arXiv 1805.02867); backward makes its logits again instead of keeping them. The matrix products
    run in the dtype of ``hidden`` (or autocast's), the softmax and all sums over the vocabulary in float32 or better.

    Peak extra memory, forward or backward: four blocks, a block's rows of ``weight`` and of its gradient, and two
    ``[N, H]`` in float32; nothing grows with N times V, and no copy of ``weight`` is made.

    Args:
        hidden: states that *predict* the targets, ``[N, H]``.
        weight: of the language-model head, ``[V, H]``.
        targets: token ids, ``[N]``.
        bias: of the head, ``[V]``.
        temperature: the one the tokens were sampled at; must be positive.
        scale: constant that some models multiply their logits by.
        softcap: bound of the logits that some models have (Gemma 2).
        chunk_bytes: logits held at once; None is ``CPU_CHUNK_BYTES`` or ``CHUNK_BYTES``.

    Returns:
        Log-probabilities and entropies in nats, both ``[N]``, both differentiable.
    """
    if torch.is_autocast_enabled(hidden.device.type):
        hidden = hidden.to(torch.get_autocast_dtype(hidden.device.type))
    if chunk_bytes is None:
        chunk_bytes = CPU_CHUNK_BYTES if hidden.device.type == "cpu" else CHUNK_BYTES
    logits = max(1, chunk_bytes // 4)
    # Square, as matrix products like it best; wider where tokens are few, but not for a large part of the weight.
    columns = min(len(weight), max(math.isqrt(logits), logits // max(*hidden.shape, 1)))
    form = _Form(
        factor=scale if softcap is not None else scale / _positive(temperature),
        cap=(softcap, 1 / _positive(temperature)) if softcap is not None else None,
        rows=min(max(1, len(hidden)), max(1, logits // columns)),
        columns=columns,
    )
    return _HeadLogprobs.apply(hidden, weight, targets, bias, form)


class _Form(NamedTuple):
    """How logits are made of products, and in blocks of which size."""

    factor: float
    cap: tuple[float, float] | None
    """Bound of the logits and 1 / temperature, or None."""
    rows: int
    columns: int


class _Logits:
    """Makes one block of logits after the other in the same memory, which is cheaper to use than new memory."""

    def __init__(self, hidden: Tensor, form: _Form) -> None:
        precise, size = _precise(hidden.dtype), form.rows * form.columns
        self.kept, self.spare = (torch.empty(size, dtype=precise, device=hidden.device) for _ in range(2))
        self.product = self.kept if hidden.dtype == precise else torch.empty_like(self.kept, dtype=hidden.dtype)
        self.form = form

    def __call__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """Logits of n tokens for v entries of the vocabulary, and memory for as many more, ``[n, v]``."""
        shape = len(hidden), len(weight)
        logits, product, spare = (x[: math.prod(shape)].view(shape) for x in (self.kept, self.product, self.spare))
        torch.mm(hidden, weight.T, out=product)
        if product.dtype != logits.dtype:
            logits.copy_(product)
        if bias is not None:
            logits.add_(bias)
        if self.form.factor != 1:
            logits.mul_(self.form.factor)
        if self.form.cap is not None:
            bound, over_temperature = self.form.cap
            logits.div_(bound).tanh_().mul_(bound * over_temperature)
        return logits, spare


class _HeadLogprobs(torch.autograd.Function):
    """``head_logprobs`` with recomputation."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, form: _Form
    ) -> tuple[Tensor, Tensor]:
        chosen = torch.zeros(len(hidden), dtype=_precise(hidden.dtype), device=hidden.device)
        largest = torch.full_like(chosen, torch.finfo(chosen.dtype).min / 2)  # -inf - -inf would be NaN
        # Σ exp(l - largest) and Σ (l - largest) exp(l - largest): small numbers, however large the logits l are.
        total, moment = torch.zeros_like(chosen), torch.zeros_like(chosen)
        make = _Logits(hidden, form)
        for columns in _slices(len(weight), form.columns):
            low, offset = weight[columns].to(hidden.dtype), None if bias is None else bias[columns]
            for rows in _slices(len(hidden), form.rows):
                logits, spare = make(hidden[rows], low, offset)
                index, inside = _within(targets[rows], columns)
                chosen[rows] += logits.gather(1, index).squeeze(1).where(inside, 0)
                raised = torch.maximum(largest[rows], logits.amax(dim=1))
                rise = largest[rows] - raised
                decay = rise.exp()
                p = torch.exp(logits.sub_(raised[:, None]), out=spare)
                moment[rows] = decay * (moment[rows] + rise * total[rows]) + logits.mul_(p).sum(dim=1)
                total[rows] = decay * total[rows] + p.sum(dim=1)
                largest[rows] = raised
        log_total = total.log()
        logprobs, entropy = (chosen - largest) - log_total, log_total - moment / total
        ctx.save_for_backward(hidden, weight, targets, bias, largest + log_total, entropy)
        ctx.form = form
        ctx.set_materialize_grads(False)  # None: no loss has the entropy in it, and nothing is computed for it
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor | None, entropy_slope: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, bias, normalizer, entropy = ctx.saved_tensors
        need_hidden, need_weight, _, need_bias, _ = ctx.needs_input_grad
        form, precise = ctx.form, normalizer.dtype
        slope = torch.zeros_like(normalizer) if slope is None else slope * form.factor
        entropy_slope = None if entropy_slope is None else entropy_slope * form.factor
        # Summed up over blocks in float32: in bfloat16 each of many additions would round.
        grad_hidden = torch.zeros_like(hidden, dtype=precise) if need_hidden else None
        grad_weight = torch.empty_like(weight) if need_weight else None
        grad_bias = torch.empty_like(bias) if need_bias else None
        make = _Logits(hidden, form)
        for columns in _slices(len(weight), form.columns):
            low, offset = weight[columns].to(hidden.dtype), None if bias is None else bias[columns]
            grad_low, grad_offset = torch.zeros_like(low, dtype=precise), low.new_zeros(len(low), dtype=precise)
            for rows in _slices(len(hidden), form.rows):
                block = make(hidden[rows], low, offset)
                slopes = slope[rows], None if entropy_slope is None else entropy_slope[rows]
                target = _within(targets[rows], columns)
                grad = _logits_gradient(block, target, normalizer[rows], entropy[rows], slopes, form.cap)
                grad = grad.to(hidden.dtype)
                if grad_hidden is not None:
                    _add_product(grad_hidden[rows], grad, low)
                if grad_weight is not None:
                    _add_product(grad_low, grad.T, hidden[rows])
                if grad_bias is not None:
                    grad_offset += grad.sum(dim=0, dtype=precise)
            if grad_weight is not None:
                grad_weight[columns] = grad_low
            if grad_bias is not None:
                grad_bias[columns] = grad_offset
        return None if grad_hidden is None else grad_hidden.to(hidden.dtype), grad_weight, None, grad_bias, None


def _within(targets: Tensor, columns: slice) -> tuple[Tensor, Tensor]:
    """Columns of tokens' targets in a block, any where it has none, ``[n, 1]``, and whether it has one, ``[n]``.

    Not by a condition or ``nonzero``: a GPU would have to wait for it.
    """
    local, last = targets - columns.start, columns.stop - columns.start - 1
    return local.clamp(0, last)[:, None], (local >= 0) & (local <= last)


def _logits_gradient(
    block: tuple[Tensor, Tensor],
    target: tuple[Tensor, Tensor],
    normalizer: Tensor,
    entropy: Tensor,
    slopes: tuple[Tensor, Tensor | None],
    cap: tuple[float, float] | None,
) -> Tensor:
    """Gradient with respect to (uncapped) logits, ``[n, v]``.

    d log p_target = onehot - p;  d entropy = -p (log p + entropy);  d capped / d uncapped = (1 - tanh²) / temperature.
    ``block`` is logits and spare memory, ``target`` of ``_within``, ``slopes`` those of log-probability and entropy.
    """
    (logits, spare), (index, inside), (slope, entropy_slope) = block, target, slopes
    cap_slope = None if cap is None else (logits / (cap[0] * cap[1])).square_().neg_().add_(1).mul_(cap[1])
    log_p = logits.sub_(normalizer[:, None])
    grad = torch.exp(log_p, out=spare)
    if entropy_slope is None:
        grad.mul_(-slope[:, None])
    else:
        grad.mul_(log_p.add_(entropy[:, None]).mul_(entropy_slope[:, None]).add_(slope[:, None]).neg_())
    grad.scatter_add_(1, index, slope.where(inside, 0)[:, None])
    return grad if cap_slope is None else grad.mul_(cap_slope)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right, whose dtype may be lower."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


def _slices(length: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


def _precise(dtype: torch.dtype) -> torch.dtype:
    """At least float32."""
    return torch.promote_types(dtype, torch.float32)


def _positive(temperature: float) -> float:
    if temperature <= 0:
        raise ValueError(f"temperature {temperature}: log-probabilities need a positive one (0 means greedy sampling)")
    return temperature
