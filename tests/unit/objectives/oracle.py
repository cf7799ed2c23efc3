"""Every objective, KL form and reduction once more, written from the papers as plain loops over Python numbers.

Nothing here is shared with the package. A log-probability is a complex number: nudged by ``1e-100j``, the loss's
imaginary part is the exact derivative, since nothing is subtracted (complex step). A stop-gradient is then the real
part, and a minimum compares real parts. Rows hold trained tokens only: there is no mask to get wrong.
"""

from __future__ import annotations

import cmath
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

STEP = 1e-100


@dataclass(frozen=True)
class Row:
    """One completion's trained tokens, in order."""

    logprobs: tuple[complex, ...]
    old: tuple[float, ...]
    ref: tuple[float, ...]
    advantages: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.logprobs)


def held(x: complex) -> float:
    """Stop-gradient."""
    return x.real


def least(a: complex, b: complex) -> complex:
    return a if a.real <= b.real else b


def greatest(a: complex, b: complex) -> complex:
    return a if a.real >= b.real else b


def bounded(x: complex, low: float, high: float) -> complex:
    return complex(low) if x.real < low else complex(high) if x.real > high else x


# --- the policy's term of each token ------------------------------------------------------------------------------


def reinforce(row: Row) -> list[complex]:
    """-A log π (Williams 1992)."""
    return [-a * p for p, a in zip(row.logprobs, row.advantages, strict=True)]


def clipped(row: Row, low: float, high: float, delta: float | None = None) -> list[complex]:
    """-min(r A, clip(r, 1-low, 1+high) A) (PPO, 1707.06347; asymmetric: DAPO, 2503.14476, eq. 8); where A < 0 never
    worse than -delta A (dual clip, 1912.09729)."""
    losses = []
    for p, q, a in zip(row.logprobs, row.old, row.advantages, strict=True):
        ratio = cmath.exp(p - q)
        gain = least(ratio * a, bounded(ratio, 1 - low, 1 + high) * a)
        if delta is not None and a < 0:
            gain = greatest(gain, complex(delta * a))
        losses.append(-gain)
    return losses


def mean_log_ratio(row: Row) -> complex:
    return sum((p - q for p, q in zip(row.logprobs, row.old, strict=True)), 0j) / len(row)


def gspo(row: Row, low: float, high: float) -> list[complex]:
    """s = (π(y)/π_old(y))^(1/|y|), one for all tokens: -min(s A, clip(s) A) (2507.18071)."""
    s = cmath.exp(mean_log_ratio(row))
    return [-least(s * a, bounded(s, 1 - low, 1 + high) * a) for a in row.advantages]


def rloo(row: Row, low: float, high: float) -> list[complex]:
    """-min(W A, clip(W) A) with W = π(y)/π_old(y), the completion as one action (2402.14740, with PPO's clip)."""
    w = cmath.exp(sum(p - q for p, q in zip(row.logprobs, row.old, strict=True)))
    return [-least(w * a, bounded(w, 1 - low, 1 + high) * a) for a in row.advantages]


def gspo_token(row: Row, low: float, high: float) -> list[complex]:
    """s_t = sg[s] π_t / sg[π_t]: the value of GSPO, each token with its own advantage (2507.18071)."""
    s = held(cmath.exp(mean_log_ratio(row)))
    losses = []
    for p, a in zip(row.logprobs, row.advantages, strict=True):
        s_t = s * cmath.exp(p - held(p))
        losses.append(-least(s_t * a, bounded(s_t, 1 - low, 1 + high) * a))
    return losses


def cispo(row: Row, low: float, high: float) -> list[complex]:
    """-sg[clip(r, 1-low, 1+high)] A log π (MiniMax-M1, 2506.13585)."""
    losses = []
    for p, q, a in zip(row.logprobs, row.old, row.advantages, strict=True):
        weight = held(bounded(cmath.exp(p - q), 1 - low, 1 + high))
        losses.append(-weight * a * p)
    return losses


def sapo(row: Row, tau: float, tau_negative: float) -> list[complex]:
    """-4/τ σ(τ (r - 1)) A with its own τ where A <= 0 (2511.20347)."""
    losses = []
    for p, q, a in zip(row.logprobs, row.old, row.advantages, strict=True):
        scale = tau if a > 0 else tau_negative
        gate = 4 / scale / (1 + cmath.exp(-scale * (cmath.exp(p - q) - 1)))
        losses.append(-gate * a)
    return losses


def gmpo(row: Row, low: float, high: float) -> list[complex]:
    """-A Π_t c_t^(1/|y|), c_t = min(r, clip(r)) where A > 0 and max(r, clip(r)) where A < 0; r is clipped to
    [e^-low, e^high], so its logarithm to [-low, high] (2507.20673)."""
    total = 0j
    for p, q, a in zip(row.logprobs, row.old, row.advantages, strict=True):
        log_ratio = p - q
        choose = least if a > 0 else greatest
        total += choose(log_ratio, bounded(log_ratio, -low, high))
    s = cmath.exp(total / len(row))
    return [-s * a for a in row.advantages]


def luspo(row: Row, low: float, high: float) -> list[complex]:
    """GSPO times the completion's length (2602.05261), for a mean over tokens to be taken of."""
    return [len(row) * x for x in gspo(row, low, high)]


def vespo(row: Row, k: float, rate: float, k_negative: float, rate_negative: float) -> list[complex]:
    """-sg[φ(W)] A log π with φ(W) = W^k e^(rate (1-W)) of the whole sequence's ratio W; its own k and rate where
    A < 0 (2602.10693)."""
    w = cmath.exp(mean_log_ratio(row) * len(row))
    losses = []
    for p, a in zip(row.logprobs, row.advantages, strict=True):
        power, fall = (k, rate) if a >= 0 else (k_negative, rate_negative)
        losses.append(-held(w**power * cmath.exp(fall * (1 - w))) * a * p)
    return losses


# --- the KL of each token (Schulman 2020; times the ratio: DeepSeek-V3.2, 2512.02556) -------------------------------


def kl(row: Row, *, estimator: str, times_ratio: bool) -> list[complex]:
    """An estimate of KL(policy || reference); times π/π_old where asked for, held constant with k2, whose gradient is
    the one that is averaged over the policy's own samples (2510.01555)."""
    values = []
    for p, q, r in zip(row.logprobs, row.old, row.ref, strict=True):
        ratio, difference = cmath.exp(p - q), r - p
        if estimator == "k1":
            value = -difference
        elif estimator == "k2":
            value, ratio = difference**2 / 2, held(ratio)
        else:
            value = cmath.exp(difference) - difference - 1
        values.append(value * ratio if times_ratio else value)
    return values


# --- one number of the tokens' losses -------------------------------------------------------------------------------

Losses = Sequence[Sequence[complex]]


def token_mean(losses: Losses, longest: int) -> complex:
    return sum((sum(row) for row in losses), 0j) / sum(len(row) for row in losses)


def sequence_mean(losses: Losses, longest: int) -> complex:
    return sum((sum(row) / max(len(row), 1) for row in losses), 0j) / len(losses)


def sequence_sum(losses: Losses, longest: int) -> complex:
    return sum((sum(row) for row in losses), 0j) / len(losses)


def constant_length(losses: Losses, longest: int) -> complex:
    return sum((sum(row) for row in losses), 0j) / (len(losses) * longest)


# --- loss and gradient ----------------------------------------------------------------------------------------------

Policy = Callable[[Row], list[complex]]


def loss(
    rows: Sequence[Row],
    policy: Policy,
    reduction: Callable[[Losses, int], complex],
    *,
    longest: int,
    beta: float = 0.0,
    penalty: Policy | None = None,
) -> complex:
    """The loss of one optimizer step; ``penalty`` is the KL form, ``longest`` the length limit of a completion."""
    losses = [policy(row) if len(row) else [] for row in rows]
    if penalty is not None:
        losses = [
            [x + beta * y for x, y in zip(xs, penalty(row), strict=True)] for xs, row in zip(losses, rows, strict=True)
        ]
    return reduction(losses, longest)


def gradient(rows: Sequence[Row], of: Callable[[Sequence[Row]], complex]) -> list[list[float]]:
    """Derivative of ``of`` by each trained token's log-probability."""
    slopes = []
    for i, row in enumerate(rows):
        slopes.append([])
        for t, p in enumerate(row.logprobs):
            nudged = replace(row, logprobs=(*row.logprobs[:t], p + STEP * 1j, *row.logprobs[t + 1 :]))
            slopes[-1].append(of([*rows[:i], nudged, *rows[i + 1 :]]).imag / STEP)
    return slopes
