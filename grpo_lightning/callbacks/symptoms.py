"""What usually means trouble in the figures of a run: figure, condition over some rollouts, words."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from grpo_lightning.rollout import sampler_gap

LENGTH, CUT = "completions/mean_length", "completions/clipped_ratio"
MISMATCH_FLOOR = 0.01
"""Nats: below it the sampler's and the trainer's arithmetic differ by rounding alone, however that has grown."""


class Seen:
    """The latest values of each figure, one a rollout, and what it was at the beginning of the run.

    Args:
        window: rollouts that the latest values and the beginning each are.
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self._latest: dict[str, list[float]] = {}
        self._first: dict[str, list[float]] = {}

    def add(self, name: str, value: float) -> None:
        """A rollout's value of a figure."""
        self._latest[name] = [*self._latest.get(name, []), value][-self.window - 1 :]
        if len(self._first.setdefault(name, [])) < self.window:
            self._first[name].append(value)

    def latest(self, name: str) -> float | None:
        """Mean over the latest rollouts, as many as there are; None if there are none."""
        values = self._latest.get(name, [])[-self.window :]
        return sum(values) / len(values) if values else None

    def now(self, name: str) -> float | None:
        """Mean over a whole window; None until there have been so many rollouts."""
        return self.latest(name) if len(self._first.get(name, [])) >= self.window else None

    def first(self, name: str) -> float:
        """Mean over the first rollouts of the run."""
        return sum(self._first[name]) / len(self._first[name])

    def before(self, name: str) -> list[float]:
        """The window before the latest rollout; empty until there is one."""
        values = self._latest.get(name, [])
        return values[:-1] if len(values) == self.window + 1 else []

    def last(self, name: str) -> float:
        """Of the latest rollout."""
        return self._latest[name][-1]

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        copies = [{name: list(values) for name, values in of.items()} for of in (self._latest, self._first)]
        return {"latest": copies[0], "first": copies[1]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint, which may be of a run with another window."""
        self._latest = {name: values[-self.window - 1 :] for name, values in state_dict["latest"].items()}
        self._first = {name: values[: self.window] for name, values in state_dict["first"].items()}


Numbers = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Symptom:
    """One thing that may be wrong."""

    name: str
    """Of its bound among the arguments of ``HealthCallback``."""
    shown: Callable[[Seen, float], Numbers | None]
    """From what was seen and the bound to the numbers of ``text``; None if nothing is wrong."""
    text: str
    """Told to the user; has the numbers, ``{bound}`` and ``{rollouts}`` filled in."""


def _collapse(seen: Seen, bound: float) -> Numbers | None:
    now = seen.now("entropy")
    return {"now": now, "first": seen.first("entropy")} if now is not None and now < bound else None


def _explosion(seen: Seen, bound: float) -> Numbers | None:
    now, reward = seen.now(LENGTH), seen.now("reward")
    if now is None or reward is None or now <= bound * seen.first(LENGTH) or reward > seen.first("reward"):
        return None
    return {"now": now, "first": seen.first(LENGTH), "reward": reward, "first_reward": seen.first("reward")}


def _truncation(seen: Seen, bound: float) -> Numbers | None:
    now = seen.now(CUT)
    return {"now": 100 * now, "percent": 100 * bound} if now is not None and now > bound else None


def _mismatch(seen: Seen, bound: float) -> Numbers | None:
    now = seen.now(sampler_gap.MEAN)
    if now is None or now <= max(bound * seen.first(sampler_gap.MEAN), MISMATCH_FLOOR):
        return None
    return {"now": now, "first": seen.first(sampler_gap.MEAN)}


def _runaway(seen: Seen, bound: float) -> Numbers | None:
    now = seen.now("kl")
    return {"now": now, "first": seen.first("kl")} if now is not None and now > bound else None


def _spike(seen: Seen, bound: float) -> Numbers | None:
    moved = [norm for norm in seen.before("grad_norm") if norm > 0]  # steps without a signal have none
    usual = statistics.median(moved) if moved else 0.0
    if not usual or seen.last("grad_norm") <= bound * usual:
        return None
    return {"now": seen.last("grad_norm"), "usual": usual}


SYMPTOMS = (
    Symptom(
        name="entropy",
        shown=_collapse,
        text="WARNING: the policy's entropy has collapsed: {now:.2g} nats a token over the last {rollouts} rollouts "
        "({first:.2g} at the start, bound {bound:g}). Completions of a prompt become alike, and then nothing is left "
        "to learn from. Try a wider upper clip range (--model.objective.init_args.epsilon_high), an entropy "
        "bonus (--model.entropy_coef 0.001, or callbacks.AdaptiveEntropy), or a lower --model.lr.",
    ),
    Symptom(
        name="length_growth",
        shown=_explosion,
        text="WARNING: completions grow without earning more: {now:.0f} tokens over the last {rollouts} rollouts, "
        "{first:.0f} at the start (bound: {bound:g} times), while the reward went from {first_reward:.3g} to "
        "{reward:.3g}. Try --rollout.reduction token_mean or constant_length of grpo_lightning.functional.reduction, "
        "SoftOverlongPunishment or CosineLength among the rewards, and read some samples for repetition.",
    ),
    Symptom(
        name="truncated",
        shown=_truncation,
        text="WARNING: the length limit cut {now:.0f}% of the completions of the last {rollouts} rollouts (bound "
        "{percent:.0f}%): they end before their answer and mostly earn nothing. Try a larger "
        "--rollout.max_completion_length, --rollout.mask_truncated true (no learning from what was cut), or a reward "
        "for brevity; if none ends by itself, the model may not know its end-of-sequence token.",
    ),
    Symptom(
        name="mismatch_growth",
        shown=_mismatch,
        text="WARNING: the sampler drifts away from the trainer: their log-probabilities differ by {now:.2g} nats a "
        "token over the last {rollouts} rollouts, {first:.2g} at the start (bound: {bound:g} times). The run stops at "
        "--model.max_logp_difference. Try a lower --model.lr, the sampler in the trainer's precision, or "
        "--model.correction.action mask, which leaves out the tokens that differ most.",
    ),
    Symptom(
        name="kl",
        shown=_runaway,
        text="WARNING: the policy runs away from its reference: KL {now:.2g} nats a token over the last {rollouts} "
        "rollouts, {first:.2g} at the start (bound {bound:g}). It may have lost its language or found a loophole: read "
        "some samples. Try a larger --model.objective.init_args.beta, callbacks.AdaptiveKL, or a lower --model.lr.",
    ),
    Symptom(
        name="grad_norm_spike",
        shown=_spike,
        text="WARNING: the gradient norm jumped to {now:.3g}, from a median of {usual:.3g} over the {rollouts} "
        "rollouts before (bound: {bound:g} times). One such step is scaled down to --model.max_grad_norm and does "
        "little; if the reward falls after it, try a lower --model.lr, more prompts a step (--data.prompts_per_step), "
        "or a lower --model.max_grad_norm.",
    ),
)

WATCHED = frozenset({"entropy", "grad_norm", "kl", "reward", LENGTH, CUT, sampler_gap.MEAN})
"""Figures that the conditions look at."""

FIRST_STEP = (
    "The first step's loss is {loss:.3g}. A loss near 0, above or below, is normal: on the first pass every ratio is 1 "
    "and the advantages of a group add up to 0. Its value says nothing; its gradient teaches. Watch the reward."
)
CONSTANT_REWARD = (
    "WARNING: after {rollouts} rollouts these rewards have scored every completion alike: {scores}. They teach nothing "
    "so far. Does the function look for a layout that the prompt does not ask for, or read another column? Call it on "
    "some completions in {samples}."
)
NOTHING_TO_LEARN = (
    "WARNING: nothing to learn for {rollouts} rollouts in a row: all completions of a prompt earned the same, for "
    "every prompt, or --rollout.mask_truncated left all of them out. Mean of each reward: {scores}; share of "
    "completions cut at the length limit: {cut:.0f}%. Read some in {samples}: do they keep the layout that the "
    "rewards look for (--data.template.answer_format), are they cut before their answer "
    "(--rollout.max_completion_length), are the questions far too hard or too easy, are all sums at a bound of "
    "--rollout.reward_clip?"
)
REWARD_HACKING = (
    "WARNING: held-out accuracy fell from {best:.1f}% to {accuracy:.1f}% while the reward rose from {earlier:.3g} to "
    "{reward:.3g}: the policy may collect reward without solving the problems. Compare rewards/<name>/mean with "
    "val/accuracy, read some of {samples}, weigh the reward for right answers more (--rollout.reward_weights, "
    "--rollout.reward_gates), and keep the best checkpoint (ModelCheckpoint, monitor val/accuracy)."
)
