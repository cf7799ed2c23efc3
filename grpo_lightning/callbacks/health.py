"""Says in plain words, once in a run, that something looks wrong: with the figure that was seen and what to try."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import lightning as L
import torch

from grpo_lightning import ranks
from grpo_lightning.callbacks.symptoms import (
    CONSTANT_REWARD,
    FIRST_STEP,
    NOTHING_TO_LEARN,
    REWARD_HACKING,
    SYMPTOMS,
    WATCHED,
    Seen,
)
from grpo_lightning.errors import UserError
from grpo_lightning.module import GRPOModule
from grpo_lightning.types import PromptBatch, Rollout

log = logging.getLogger(__name__)

ACCURACY = "val/accuracy"
ROUNDING = 1e-9
"""Of the mean of equal scores."""


class HealthCallback(L.Callback):
    """Watches the figures of a run and tells, once each, what usually means trouble.

    Nothing is stopped or changed. Figures are those of all ranks, so it is the same on any number of them; each is
    averaged over the latest ``window`` rollouts (of a gradient's norm the largest of a rollout counts). What was said
    is kept in checkpoints: a resumed run does not repeat it. Any bound may be null: it is then not watched.

    Args:
        enabled: false says nothing.
        window: rollouts that are looked at together, and that the beginning of the run is.
        nothing_to_learn: rollouts in a row in which every advantage is 0. Advantages are looked at, not total rewards,
            which may be equal where rewards are normalized one by one.
        constant_reward: rollouts from the start in which a reward scored all completions alike; one in which it
            applied to none does not count.
        entropy: least entropy of a token, in nats.
        length_growth: times the length at the beginning, unless the reward has risen with it.
        truncated: share of completions that the length limit cut.
        mismatch_growth: times the difference of the sampler's and the trainer's log-probabilities at the beginning.
        kl: largest KL divergence from the reference, in nats a token.
        grad_norm_spike: times the median gradient norm of the window before.
        accuracy_drop: by which held-out accuracy falls while the reward rises.
    """

    def __init__(
        self,
        *,
        enabled: bool = True,
        window: int = 10,
        nothing_to_learn: int | None = 50,
        constant_reward: int | None = 20,
        entropy: float | None = 0.01,
        length_growth: float | None = 2.0,
        truncated: float | None = 0.25,
        mismatch_growth: float | None = 3.0,
        kl: float | None = 0.5,
        grad_norm_spike: float | None = 10.0,
        accuracy_drop: float | None = 0.05,
    ) -> None:
        self.enabled, self.window = enabled, window
        self.nothing_to_learn, self.constant_reward = nothing_to_learn, constant_reward
        self.accuracy_drop = accuracy_drop
        self.bounds = {
            "entropy": entropy,
            "length_growth": length_growth,
            "truncated": truncated,
            "mismatch_growth": mismatch_growth,
            "kl": kl,
            "grad_norm_spike": grad_norm_spike,
        }
        counts = {"window": window, "nothing_to_learn": nothing_to_learn, "constant_reward": constant_reward}
        for name, count in counts.items():
            if count is not None and count < 1:
                raise UserError(f"--health.{name} {count}: a number of rollouts, at least 1")
        for name, bound in (self.bounds | {"accuracy_drop": accuracy_drop}).items():
            if bound is not None and not bound > 0:
                raise UserError(f"--health.{name} {bound}: must be above 0; null does not watch it")
        self._said: list[str] = []
        self._seen = Seen(window)
        self._steps: dict[str, list[float]] = {}
        """Figures of the current rollout's optimizer steps."""
        self._flat = 0
        self._flat_terms: dict[str, float] = defaultdict(float)
        """Sum of each reward's means over the rollouts in a row without an advantage."""
        self._applied: dict[str, int] = defaultdict(int)
        """Rollouts in which each reward has scored a completion."""
        self._constant: dict[str, float | None] = {}
        """The one score that each reward has given so far; None if it has given several."""
        self._best: list[float] = []
        """Best held-out accuracy, and the reward then."""

    # --- what is looked at -----------------------------------------------------------------------------------------

    def on_train_batch_start(self, *args: Any) -> None:
        self._steps = defaultdict(list)

    def on_step_figures(self, trainer: L.Trainer, pl_module: Any, figures: dict[str, float]) -> None:
        """Note what an optimizer step showed."""
        loss = figures.get("loss", math.nan)
        if trainer.global_step == 1 and isinstance(pl_module, GRPOModule) and math.isfinite(loss):
            self._say("first_step", FIRST_STEP, level=logging.INFO, loss=loss)
        for name in WATCHED & figures.keys():
            if math.isfinite(figures[name]):  # steps that are skipped for it have a message of their own
                self._steps[name].append(figures[name])

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: PromptBatch, batch_idx: int
    ) -> None:
        if batch.rollout is None or not self.enabled:
            return
        for name, values in self._steps.items():
            self._seen.add(name, max(values) if name == "grad_norm" else sum(values) / len(values))
        self._look_at_rewards(batch, samples=Path(trainer.default_root_dir) / "samples")
        for symptom in SYMPTOMS:
            bound = self.bounds[symptom.name]
            if bound is None or (symptom.name == "mismatch_growth" and batch.rollout.truncated):
                continue  # where sampling is truncated, the two differ by design
            if numbers := symptom.shown(self._seen, bound):
                self._say(symptom.name, symptom.text, bound=bound, rollouts=self.window, **numbers)

    def _look_at_rewards(self, batch: PromptBatch, *, samples: Path) -> None:
        rollout = batch.rollout
        assert rollout is not None
        metrics, names = rollout.metrics, list(rollout.reward_terms)
        means = {name: metrics[f"rewards/{name}/mean"] for name in names}
        constant: list[str] = []
        for name in self._that_apply(rollout):
            self._applied[name] += 1
            before = self._constant.get(name, means[name])
            same = metrics[f"rewards/{name}/std"] < ROUNDING and before is not None
            self._constant[name] = before if same and abs(means[name] - before) < ROUNDING else None
            if self._constant[name] is not None and self._applied[name] == self.constant_reward:
                constant.append(f"{name} {means[name]:.4g}")
        if constant:
            self._say(
                f"constant_reward {', '.join(constant)}", CONSTANT_REWARD,
                rollouts=self.constant_reward, scores=", ".join(constant), samples=samples,
            )  # fmt: skip
        masked = all(window.tokens == 0 for window in rollout.windows)
        if ranks.all_max(rollout.advantages.abs().max()).item() != 0 and not masked:
            self._flat = 0
            self._flat_terms.clear()
            return
        self._flat += 1
        for name, mean in means.items():
            self._flat_terms[name] += mean
        if self._flat == self.nothing_to_learn:
            scores = ", ".join(f"{name} {total / self._flat:.4g}" for name, total in self._flat_terms.items())
            self._say(
                "nothing_to_learn", NOTHING_TO_LEARN,
                rollouts=self._flat, scores=scores, cut=100 * metrics["completions/clipped_ratio"], samples=samples,
            )  # fmt: skip

    @staticmethod
    def _that_apply(rollout: Rollout) -> list[str]:
        """Rewards that have scored a completion of this rollout on any rank."""
        terms = rollout.reward_terms
        known = torch.tensor([float(term.isfinite().any()) for term in terms.values()])
        return [name for name, applies in zip(terms, ranks.all_max(known).tolist(), strict=True) if applies]

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Compare with the best evaluation so far."""
        figures, reward = trainer.callback_metrics, self._seen.latest("reward")
        if trainer.sanity_checking or ACCURACY not in figures or reward is None or not self.enabled:
            return
        accuracy = float(figures[ACCURACY])
        if not math.isfinite(accuracy):
            return
        problems = sum(
            float(figures[name]) for name in figures if name.startswith("val/") and name.endswith("/problems")
        )
        if not self._best or accuracy >= self._best[0]:
            self._best = [accuracy, reward]
            return
        best, earlier = self._best
        noise = 2 * math.sqrt(2 * best * (1 - best) / problems) if problems else 0.0
        if self.accuracy_drop and best - accuracy > max(self.accuracy_drop, noise) and reward > earlier:
            self._say(
                "accuracy_drop", REWARD_HACKING,
                accuracy=100 * accuracy, best=100 * best, reward=reward, earlier=earlier,
                samples=Path(trainer.default_root_dir) / "samples",
            )  # fmt: skip

    def _say(self, name: str, text: str, *, level: int = logging.WARNING, **numbers: Any) -> None:
        if self.enabled and name not in self._said:
            self._said.append(name)
            log.log(level, "%s", text.format(**numbers))

    # --- checkpoints -----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {
            "said": list(self._said),
            "seen": self._seen.state_dict(),
            "flat": self._flat,
            "flat_terms": dict(self._flat_terms),
            "applied": dict(self._applied),
            "constant": dict(self._constant),
            "best": list(self._best),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._said, self._flat = state_dict["said"], state_dict["flat"]
        self._applied = defaultdict(int, state_dict["applied"])
        self._seen.load_state_dict(state_dict["seen"])
        self._flat_terms = defaultdict(float, state_dict["flat_terms"])
        self._constant, self._best = state_dict["constant"], state_dict["best"]
