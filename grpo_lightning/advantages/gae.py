"""Generalized advantage estimation: a critic's values say what was to be expected before each token."""

from __future__ import annotations

import torch
from torch import Tensor

from grpo_lightning.advantages.tokens import TokenCredit, TokenEstimator, whitened
from grpo_lightning.errors import UserError

EPS = 1e-8
"""Keeps the whitening from dividing by 0; far below group_normalized's 1e-4, since no group's spread is as small as a
batch's may rightly be once the critic explains most of the rewards."""


class GAE(TokenEstimator):
    """A_t = Σ_k (γλ)^k · δ_{t+k} with δ_t = r_t + γ·V_{t+1} - V_t (arXiv 1506.02438, equation 16).

    The critic is to learn the returns A_t + V_t. λ = 1 is the reward to come less the value, without bias and noisy;
    λ = 0 trusts the critic's next value in place of all that follows.

    Nothing follows a completion's last token, so the value after it is 0, also where the length limit cut it: the limit
    is part of the task (what was written is scored as it stands, and the policy is to learn to end in time), and what
    cannot go on is worth nothing more (arXiv 1712.00378, section 2). TRL, verl and OpenRLHF do the same.

    Args:
        gamma: discount γ per token, above 0 and at most 1; 1 is usual, since an answer is worth the same however late.
        lam: λ, from 0 to 1.
        whiten: advantages less their mean and divided by their standard deviation over all tokens of the rollout, all
            ranks together, as TRL and verl do. The returns stay as they are.

    Raises:
        UserError: if gamma or lam is out of range.
    """

    needs_values = True

    def __init__(self, *, gamma: float = 1.0, lam: float = 0.95, whiten: bool = True) -> None:
        if not 0 < gamma <= 1:
            raise UserError(f"gamma {gamma} (--model.gamma): a discount per token, above 0 and at most 1 (1 is usual)")
        if not 0 <= lam <= 1:
            raise UserError(
                f"lam {lam} (--model.gae_lambda): from 0 (the critic's next value) to 1 (what truly followed)"
            )
        self.gamma = gamma
        self.lam = lam
        self.whiten = whiten

    def __call__(self, rewards: Tensor, *, mask: Tensor, values: Tensor | None = None) -> TokenCredit:
        """Advantages 0 and returns NaN outside the mask: what has no known reward says nothing about its value."""
        assert values is not None, "generalized advantage estimation without a critic's values"
        known = mask.bool()
        rewards_, values_ = (torch.where(known, tensor.double(), 0.0) for tensor in (rewards, values))
        advantages = torch.zeros_like(values_)
        later = next_value = torch.zeros_like(values_[..., 0])
        for token in range(values_.shape[-1] - 1, -1, -1):
            surprise = rewards_[..., token] + self.gamma * next_value - values_[..., token]
            advantages[..., token] = later = surprise + self.gamma * self.lam * later
            next_value = values_[..., token]
        returns = torch.where(known, advantages + values_, torch.nan)
        advantages = whitened(advantages, mask=mask, eps=EPS) if self.whiten else advantages
        return TokenCredit(advantages=advantages.to(rewards.dtype), returns=returns.to(rewards.dtype))
