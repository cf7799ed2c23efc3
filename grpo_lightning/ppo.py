"""PPO: a critic says what each token was worth."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from grpo_lightning.advantages import GAE
from grpo_lightning.errors import UserError
from grpo_lightning.functional.masking import masked_sum
from grpo_lightning.functional.values import explained_variance, fit_sums, value_loss
from grpo_lightning.models.critic import Critic, PolicyWithValues
from grpo_lightning.models.optimizers import ParameterGroup
from grpo_lightning.models.policy import Policy
from grpo_lightning.models.sharding import reshard
from grpo_lightning.rollout.passes import Learner
from grpo_lightning.rollout_module import RolloutModule
from grpo_lightning.strategies import distributed
from grpo_lightning.token_means import TokenMeans
from grpo_lightning.types import RolloutBatch, SequenceBatch, Window


class PPOModule(RolloutModule):
    """Proximal Policy Optimization with a critic (arXiv 1707.06347; for language models, arXiv 2203.02155).

    The policy's loss is GRPO's; its advantages come token by token from a critic's values (``advantages.GAE``) in place
    of a comparison within the group, so one completion of each prompt is enough. Values are those of the states before
    the tokens, the same that predict them. One optimizer step moves both. The critic's parameters, or the value head's,
    are clipped by themselves, each to ``max_grad_norm``: a separate critic's large error does not shrink the policy's
    step.

    With an adapter, a value head on the trunk is trained whole beside it, and so is a critic of its own.

    Args:
        policy: Hugging Face id or folder of the causal language model to train.
        critic: id or folder of a model that becomes the critic, its language-model head replaced by one of values; it
            must read the policy's token ids. Null puts a value head on the policy's own trunk: no second model, but the
            value loss then moves the trunk too. Either head begins at 0.
        critic_lr: learning rate of the critic, or of the value head alone where that is on the policy's trunk; null is
            the policy's. It usually has to be higher (verl's examples: 10 times).
        value_coef: weight of the value loss beside the policy's. What it does to a critic of its own is little, since
            Adam's steps do not depend on the gradient's scale; on a shared trunk it settles who moves the trunk.
        value_clip: how far one rollout may move a value, in units of the reward; null is any far.
        gamma: discount per token.
        gae_lambda: λ of the advantages: 1 trusts the rewards alone, 0 the critic's next value.
        kwargs: see ``RolloutModule`` and ``PolicyModule``.
    """

    def __init__(
        self,
        policy: str,
        *,
        critic: str | None = None,
        critic_lr: float | None = None,
        value_coef: float = 0.5,
        value_clip: float | None = 0.2,
        gamma: float = 1.0,
        gae_lambda: float = 0.95,
        **kwargs: Any,
    ) -> None:
        super().__init__(policy, **kwargs)
        if critic_lr is not None and not 0 <= critic_lr < math.inf:
            raise UserError(f"--model.critic_lr {critic_lr}: the learning rate must not be negative")
        if not 0 < value_coef < math.inf:
            raise UserError(f"--model.value_coef {value_coef}: must be positive, or the critic would learn nothing")
        if value_clip is not None and not value_clip > 0:
            raise UserError(f"--model.value_clip {value_clip}: must be positive; null turns clipping off")
        if critic is not None:
            self.check_vocabulary(critic, flag="--model.critic")
        self.critic_path = critic
        self.critic_lr = critic_lr
        self.value_coef = value_coef
        self.value_clip = value_clip
        self._estimator = GAE(gamma=gamma, lam=gae_lambda)
        self.critic: nn.Module | None = None
        """None where the values come from a head on the policy's trunk."""

    @property
    def estimator(self) -> GAE:
        return self._estimator

    @property
    def drops_zero_advantage(self) -> bool:
        """Never: the critic learns from every completion."""
        return False

    # --- models --------------------------------------------------------------------------------------------------

    def build_policy(self, path: str, *, flag: str = "--model.policy", trained: bool = True) -> Policy:
        policy = super().build_policy(path, flag=flag, trained=trained)
        return PolicyWithValues(policy) if trained and self.critic_path is None else policy

    def configure_model(self) -> None:
        super().configure_model()
        if self.critic_path is not None and self.critic is None:
            # All of it is trained, and so in float32, also beside an adapter on a policy in bfloat16.
            critic = Critic(super().build_policy(self.critic_path, flag="--model.critic")).float()
            self.critic = distributed(critic.train(), self.trainer.strategy)

    def parameter_groups(self) -> list[ParameterGroup]:
        assert self.policy is not None
        shared = self.critic is None
        policy, critic = (self.policy.model, self.policy.value_head) if shared else (self.policy, self.critic)
        return [ParameterGroup(policy), ParameterGroup(critic, prefix="critic/", lr=self.critic_lr)]

    # --- learning ------------------------------------------------------------------------------------------------

    def learner(self, *, temperature: float) -> Learner:
        return replace(super().learner(temperature=temperature), score_values=self.score_values)

    def score_values(self, batch: SequenceBatch) -> Tensor:
        """The critic's values without gradient, by the code and in the dtype of ``training_step``, ``[B, T]``."""
        with torch.no_grad(), self.trainer.precision_plugin.forward_context():
            if self.critic is None:
                values = self.policy(batch, only_values=True).values
            else:
                values = self.critic(batch)
        reshard(self.critic or self.policy)
        return values

    def loss(
        self, batch: RolloutBatch, *, window: Window[RolloutBatch], temperature: float, figures: TokenMeans
    ) -> Tensor:
        """The policy's loss and, times ``value_coef``, the critic's: one backward, since DDP wants every gradient in
        each."""
        assert self.policy is not None
        scores = self.policy(batch, temperature=temperature)
        values = scores.values if self.critic is None else self.critic(batch)
        of_policy = self.policy_loss(scores, batch, window=window, figures=figures)
        return of_policy + self.value_coef * self.critic_loss(values, batch, figures=figures)

    def critic_loss(self, values: Tensor, batch: RolloutBatch, *, figures: TokenMeans) -> Tensor:
        """A micro-batch's part of the value loss of its optimizer step, reduced as the policy's is.

        Sampler correction and top-entropy mask do not concern it: a state is worth what it earns, whoever sampled it.

        Args:
            values: of the current critic, with gradient, ``[B, T]``.
            batch: the micro-batch.
            figures: gets what is logged, in verl's names.

        Returns:
            Scalar; times the number of ranks, over which DDP and FSDP average.
        """
        assert batch.returns is not None and batch.values is not None
        loss, clipped = value_loss(values, batch.returns, batch.values, clip=self.value_clip)
        known = batch.counted * ~batch.returns.isnan()
        figures.add_mean("critic/vf_loss", loss, known)
        figures.add_mean("critic/vf_clipfrac", clipped, known)
        figures.add_mean("critic/vpred_mean", values, known)
        figures.add_mean("critic/returns/mean", batch.returns, known)
        # Of the values that the advantages were made with, which have not seen these rewards.
        figures.add_sums("critic/vf_explained_var", explained_variance, *fit_sums(batch.values, batch.returns, known))
        return masked_sum(loss, batch.loss_weights)
