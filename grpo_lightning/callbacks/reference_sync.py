"""A reference policy that follows the policy."""

from __future__ import annotations

import logging
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from grpo_lightning.errors import UserError

log = logging.getLogger(__name__)


class ReferenceSync(L.Callback):
    """reference <- alpha · policy + (1 - alpha) · reference, every n optimizer steps (TR-DPO, arXiv 2404.09656).

    The KL term then holds the policy near where it lately was, not near where it began. It is done between rollouts:
    after the rollout in which a multiple of n was reached, once. TRL's ``sync_ref_model``, with its defaults.

    Checkpoints hold the moved reference beside the policy, which makes them larger by the model's size, and a run
    that goes on from one must have this callback too. A run without a reference of its own is refused: at beta 0 there
    is none, and with an adapter it is the policy's frozen part.

    Args:
        alpha: share of the policy in the mix, above 0 and at most 1; 1 copies it.
        every_n_steps: optimizer steps (n).
    """

    def __init__(self, *, alpha: float = 0.6, every_n_steps: int = 512) -> None:
        if not 0 < alpha <= 1:
            raise UserError(f"ReferenceSync.alpha {alpha}: a share above 0 and at most 1; 1 copies the policy")
        if every_n_steps < 1:
            raise UserError(f"ReferenceSync.every_n_steps {every_n_steps}: optimizer steps, at least 1")
        self.alpha = alpha
        self.every_n_steps = every_n_steps
        self._step_before = 0

    def setup(self, trainer: L.Trainer, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        if pl_module.adapter is not None:
            raise UserError(
                "--model.adapter: ReferenceSync needs a reference of the policy's shape, and an adapter's reference is "
                "the model under it, which stays; leave out the callback or the adapter"
            )
        if not pl_module.needs_reference:
            raise UserError(
                "--trainer.callbacks ReferenceSync: no reference is loaded, since the objective has no KL term; set "
                "--model.objective.beta (0.04 is usual) or leave the callback out"
            )
        pl_module.reference_moves = True

    def on_fit_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        both = (pl_module.policy.model, pl_module.reference.model)  # a value head is the policy's alone
        policy, reference = ({name: p.shape for name, p in model.named_parameters()} for model in both)
        if policy != reference:
            raise UserError(
                f"--model.reference {pl_module.reference_path}: ReferenceSync mixes weights, so it must have the "
                f"architecture and size of --model.policy {pl_module.policy_path}"
            )

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        self._step_before = trainer.global_step

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *args: Any) -> None:
        if trainer.global_step // self.every_n_steps == self._step_before // self.every_n_steps:
            return
        with torch.no_grad():
            # The two lie alike on the ranks, so each rank mixes its own parts.
            policy, reference = pl_module.policy.model, pl_module.reference.model
            for ours, theirs in zip(policy.parameters(), reference.parameters(), strict=True):
                _own_part(theirs).lerp_(_own_part(ours), self.alpha)
        log.info("step %d: the reference is now %g of the policy", trainer.global_step, self.alpha)


def _own_part(parameter: Tensor) -> Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter
