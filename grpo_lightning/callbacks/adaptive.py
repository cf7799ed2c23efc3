"""Weights of the loss that follow what they are to hold: the KL term's, and the entropy bonus's."""

from __future__ import annotations

from typing import Any

import lightning as L

from grpo_lightning.errors import UserError

KL, ENTROPY = "kl_sequence", "entropy"


class _Steered(L.Callback):
    """A coefficient that is changed after each rollout by the mean of one figure over its optimizer steps.

    A rollout is learned from with one coefficient: what is dropped or precomputed for it stays right. The figures are
    already those of all ranks, so all change theirs alike.

    Args:
        figure: name of the figure that is watched.
        name: of the coefficient among the figures that are logged.
    """

    def __init__(self, *, figure: str, name: str) -> None:
        self._figure, self._name = figure, name
        self._seen: list[float] = []

    def in_use(self, pl_module: Any) -> float:
        """The coefficient that the loss has now."""
        raise NotImplementedError

    def update(self, pl_module: Any, seen: float) -> None:
        """Change the coefficient.

        Args:
            pl_module: of the run.
            seen: the figure's mean over the last rollout's optimizer steps.
        """
        raise NotImplementedError

    def on_train_batch_start(self, *args: Any) -> None:
        self._seen = []

    def on_step_figures(self, trainer: L.Trainer, pl_module: Any, figures: dict[str, float]) -> None:
        """Note what an optimizer step showed, and log the coefficient that it had."""
        if self._figure in figures:
            self._seen.append(figures[self._figure])
        figures[self._name] = self.in_use(pl_module)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *args: Any) -> None:
        if self._seen:  # nothing was trained on otherwise
            self.update(pl_module, sum(self._seen) / len(self._seen))


class AdaptiveKL(_Steered):
    """Holds the KL divergence from the reference near a target by changing the objective's ``beta``.

    After each rollout: x (1 + rate) if ``kl_sequence`` was above 1.5 x target, x (1 - rate) if it was below 0.5 x
    target, within [minimum, maximum]. ``kl_sequence`` is the KL summed over a sequence's tokens and averaged over
    sequences, so the same target is a tighter one for longer completions. (As PPO's adaptive penalty, arXiv 1707.06347,
    section 4, by smaller steps.) It begins at ``--model.objective.beta``, and a resumed run goes on with the
    value that its checkpoint was written at. Logs ``kl_coef``.

    Args:
        target: of ``kl_sequence``, in nats.
        rate: share by which beta changes at a time.
        minimum: smallest beta.
        maximum: largest beta.
    """

    def __init__(self, *, target: float = 3.0, rate: float = 0.1, minimum: float = 0.001, maximum: float = 0.5) -> None:
        super().__init__(figure=KL, name="kl_coef")
        if target <= 0:
            raise UserError(f"AdaptiveKL.target {target}: nats of a whole sequence, above 0")
        if not 0 < rate < 1:
            raise UserError(f"AdaptiveKL.rate {rate}: a share between 0 and 1; 0.1 changes beta by a tenth")
        if not 0 < minimum <= maximum:
            raise UserError(
                f"AdaptiveKL.minimum {minimum}, maximum {maximum}: above 0 and in this order (at beta 0 the reference "
                "is not there to be compared with)"
            )
        self.target, self.rate = target, rate
        self.minimum, self.maximum = minimum, maximum
        self._beta: float | None = None

    def setup(self, trainer: L.Trainer, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        objective = getattr(pl_module, "objective", None)
        beta = getattr(objective, "beta", None)
        if beta is None:
            owner = type(pl_module if objective is None else objective).__name__
            raise UserError(f"--trainer.callbacks AdaptiveKL: {owner} has no KL term whose weight could be changed")
        if beta == 0:
            raise UserError(
                "--model.objective.beta 0: AdaptiveKL has no KL term to weigh, since no reference is loaded; set the "
                "weight to begin with (0.04 is usual) or leave the callback out"
            )
        if not self.minimum <= beta <= self.maximum:
            raise UserError(
                f"--model.objective.beta {beta}: AdaptiveKL keeps it within [{self.minimum}, {self.maximum}]; begin "
                "inside, or change its minimum and maximum"
            )

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        if self._beta is None:
            self._beta = pl_module.objective.beta
        pl_module.objective.beta = self._beta

    def in_use(self, pl_module: Any) -> float:
        return float(pl_module.objective.beta)

    def update(self, pl_module: Any, seen: float) -> None:
        assert self._beta is not None
        if seen > 1.5 * self.target:
            self._beta = min(self._beta * (1 + self.rate), self.maximum)
        elif seen < 0.5 * self.target:
            self._beta = max(self._beta * (1 - self.rate), self.minimum)
        pl_module.objective.beta = self._beta

    def state_dict(self) -> dict[str, Any]:
        return {"beta": self._beta}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._beta = state_dict["beta"]


class AdaptiveEntropy(_Steered):
    """Holds the policy's entropy above a target by changing the weight of the entropy bonus (Skywork-OR1, 2505.22312).

    After each rollout the coefficient c becomes c + delta if ``entropy`` was at or below the target, else c - delta,
    within [minimum, maximum]; the bonus has weight c in the next rollout if it was at or below the target, else none at
    all. It begins at ``--model.entropy_coef``, without a bonus until the entropy has been seen. A resumed run goes on
    where its checkpoint was written. Logs ``entropy_coef``, the weight in use. TRL's ``use_adaptive_entropy``, which
    changes it after each optimizer step instead.

    Args:
        target: least entropy of a token, in nats, on average over the trained tokens.
        delta: by which the coefficient changes at a time.
        minimum: smallest coefficient.
        maximum: largest coefficient.
    """

    def __init__(
        self, *, target: float = 0.2, delta: float = 0.005, minimum: float = 0.0, maximum: float = 1.0
    ) -> None:
        super().__init__(figure=ENTROPY, name="entropy_coef")
        if target <= 0:
            raise UserError(f"AdaptiveEntropy.target {target}: nats of a token, above 0")
        if delta <= 0:
            raise UserError(f"AdaptiveEntropy.delta {delta}: above 0 (0.005 is usual)")
        if not 0 <= minimum <= maximum:
            raise UserError(f"AdaptiveEntropy.minimum {minimum}, maximum {maximum}: at least 0 and in this order")
        self.target, self.delta = target, delta
        self.minimum, self.maximum = minimum, maximum
        self._coefficient: float | None = None
        self._low = False
        """Whether the entropy was last seen at or below the target."""

    def setup(self, trainer: L.Trainer, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        begin = getattr(pl_module, "entropy_coef", None)
        if begin is None:
            raise UserError(f"--trainer.callbacks AdaptiveEntropy: {type(pl_module).__name__} has no entropy bonus")
        if not self.minimum <= begin <= self.maximum:
            raise UserError(
                f"--model.entropy_coef {begin}: AdaptiveEntropy keeps it within [{self.minimum}, {self.maximum}]; "
                "begin inside, or change its minimum and maximum"
            )
        pl_module.entropy_steered = True  # without a bonus too, `entropy` must be that of every trained token

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        if self._coefficient is None:
            self._coefficient = float(pl_module.entropy_coef)
        self._apply(pl_module)

    def _apply(self, pl_module: Any) -> None:
        pl_module.entropy_coef = self._coefficient if self._low else 0.0

    def in_use(self, pl_module: Any) -> float:
        return float(pl_module.entropy_coef)

    def update(self, pl_module: Any, seen: float) -> None:
        assert self._coefficient is not None
        self._low = seen <= self.target
        step = self.delta if self._low else -self.delta
        self._coefficient = min(max(self._coefficient + step, self.minimum), self.maximum)
        self._apply(pl_module)

    def state_dict(self) -> dict[str, Any]:
        return {"coefficient": self._coefficient, "low": self._low}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._coefficient, self._low = state_dict["coefficient"], state_dict["low"]
