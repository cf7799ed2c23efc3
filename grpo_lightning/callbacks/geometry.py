"""Whether the numbers of a run fit together; each check is one line that names the nearest valid numbers."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from typing import Any

from grpo_lightning.advantages import AdvantageEstimator, TokenEstimator
from grpo_lightning.data.datamodule import PromptDataModule
from grpo_lightning.engines.base import Sampling
from grpo_lightning.errors import UserError
from grpo_lightning.objectives import Objective
from grpo_lightning.objectives.regularized import RegularizedObjective
from grpo_lightning.rollout.sampler_correction import refuse_truncated_sampling
from grpo_lightning.rollout_module import RolloutModule

log = logging.getLogger(__name__)


def check_estimator(
    estimator: AdvantageEstimator | TokenEstimator,
    module: RolloutModule,
    *,
    group_size: int,
    normalize_each_reward: bool,
    clips: bool,
    tries: int,
    mask_truncated: bool,
) -> None:
    """Whether advantages can be made that way.

    Args:
        estimator: of advantages.
        module: that learns from them.
        group_size: G.
        normalize_each_reward: each reward is normalized by itself.
        clips: the sum of the rewards is bounded.
        tries: of dynamic sampling.
        mask_truncated: completions that the length limit cut are not trained on.
    """
    of_tokens = isinstance(estimator, TokenEstimator)
    name = getattr(estimator, "__name__", type(estimator).__name__)
    if group_size < 2 and not of_tokens:
        raise UserError(
            f"--rollout.group_size {group_size}: {name} compares a completion with the others of its group; use 2 or "
            "more (8 is usual)"
        )
    needed = isinstance(module.estimator, TokenEstimator) and module.estimator.needs_values
    given = isinstance(estimator, TokenEstimator) and estimator.needs_values
    if needed and not given:
        raise UserError(f"--rollout.advantages {name}: {type(module).__name__} takes its advantages from its critic")
    if given and not needed:
        raise UserError(
            f"--rollout.advantages {name}: needs a critic, which {type(module).__name__} has not; use "
            "grpo_lightning.PPOModule"
        )
    penalizes = module.objective.penalizes_reward
    if of_tokens and module.objective.level != "token":
        raise UserError(
            f"--rollout.advantages {name}: advantages by token, of which {_of_sequences(module.objective)} would see "
            "the mean; use advantages of whole completions, or an objective of tokens (GSPO: "
            "--model.objective.token_gradient true)"
        )
    if tries > 1 and (of_tokens or penalizes):
        raise UserError(
            f"--rollout.dynamic_sampling_tries {tries} passes over groups whose rewards are all alike, which teach too "
            + (f"with --rollout.advantages {name}" if of_tokens else "with --model.objective.kl_in reward")
            + "; leave one of them out"
        )
    if mask_truncated and penalizes and not of_tokens:
        raise UserError(
            "--rollout.mask_truncated true: a completion that is not trained on has no KL, and so would be paid better "
            "than its group with --model.objective.kl_in reward; leave one of them out"
        )
    if not normalize_each_reward:
        return
    if clips:
        raise UserError(
            "--rollout.reward_clip bounds the sum of the rewards, which --rollout.normalize_each_reward does not "
            "train on; leave one of them out"
        )
    if of_tokens or penalizes:
        raise UserError(
            "--rollout.normalize_each_reward adds up advantages of whole rewards; it does not go with "
            + (f"--rollout.advantages {name}" if of_tokens else "a KL term in the reward (--model.objective.kl_in)")
        )


def check_ratios(module: RolloutModule, sampling: Sampling) -> None:
    """Whether what compares the sampler's probabilities with the policy's own can do so, and does so.

    Args:
        module: that learns.
        sampling: how completions are drawn.
    """
    if module.correction is not None and module.correction.level == "token" and module.objective.level != "token":
        raise UserError(
            f"--model.correction.level token: of weights by token {_of_sequences(module.objective)} would see the "
            f"mean, which is next to 1; use {module.objective.level}, or leave level out"
        )
    objective = f"--model.objective {type(module.objective).__name__}"
    for uses, flag, way_out in (
        (module.objective.corrects_sampler, objective, "another --model.objective"),
        (module.correction is not None, "--model.correction", "--model.correction false"),
        (module.off_policy_mask is not None, "--model.off_policy_threshold", "--model.off_policy_threshold null"),
    ):
        if uses:
            refuse_truncated_sampling(sampling, flag=flag, way_out=way_out)


def warn_of_objective(objective: Objective, reduction: Callable[..., Any]) -> None:
    """Say if an objective is used with another reduction than the one it is defined with, or its KL term pulls on
    (next to) nothing (``RegularizedObjective`` has the table).

    Args:
        objective: of the run.
        reduction: what each token counts.
    """
    meant, name = objective.meant_for, getattr(reduction, "__name__", type(reduction).__name__)
    if meant is not None and name != meant:
        log.warning(
            "--model.objective %s is defined with --rollout.reduction grpo_lightning.functional.reduction.%s; with %s, "
            "sequences of different lengths weigh differently than its paper has it",
            type(objective).__name__, meant, name,
        )  # fmt: skip
    if not isinstance(objective, RegularizedObjective) or objective.beta == 0:
        return
    if objective.kl_in == "reward" and objective.kl_estimator != "k1":
        log.warning(
            "--model.objective.kl_in reward with kl_estimator %s pulls next to nothing near the reference; use k1",
            objective.kl_estimator,
        )
    if objective.kl_in == "loss" and objective.kl_estimator == "k1" and not objective.kl_ratio:
        log.warning("--model.objective.kl_estimator k1 in the loss has no gradient but noise without kl_ratio true")


def check_windows(prompts: int, *, updates: int, world_size: int) -> None:
    """Every window must hold the same number of whole groups of every rank.

    Args:
        prompts: of one rollout over all ranks (P).
        updates: windows of a rollout (U).
        world_size: number of ranks.
    """
    share = world_size * updates
    if prompts % share:
        raise UserError(
            f"--data.prompts_per_step {prompts} does not divide into {updates} windows "
            f"(--rollout.updates_per_rollout) on {world_size} rank(s); nearest valid: {_nearest(prompts, share)}"
        )


def check_max_steps(max_steps: int, *, done: int, passes: int, updates: int) -> None:
    """Lightning looks at ``max_steps`` between rollouts only: a run cannot end inside one.

    Args:
        max_steps: optimizer steps of the run; -1 for no bound.
        done: optimizer steps that a resumed run has behind it.
        passes: mu.
        updates: U.
    """
    steps, left = passes * updates, max_steps - done
    if left > 0 and left % steps:
        resumed = f" and begins at step {done}" if done else ""
        raise UserError(
            f"--trainer.max_steps {max_steps} ends inside a rollout, which takes {steps} optimizer steps "
            f"({passes} passes x {updates} windows){resumed}; nearest valid: {_nearest(left, steps, start=done)}"
        )


def warn_of_epochs(max_steps: int, *, max_epochs: int | None, batches: float, steps: int) -> None:
    """The first of two bounds ends a run, and the other one may be left over from a configuration file.

    Args:
        max_steps: optimizer steps of the run; -1 for no bound.
        max_epochs: None or -1 for no bound.
        batches: rollouts of an epoch.
        steps: optimizer steps of one rollout.
    """
    if max_epochs in (None, -1) or max_epochs * batches * steps >= max_steps:
        return
    log.warning(
        "--trainer.max_steps %d: --trainer.max_epochs %d ends the run before, after step %d; --trainer.max_epochs -1 "
        "leaves it to max_steps", max_steps, max_epochs, max_epochs * batches * steps,
    )  # fmt: skip


def warn_of_rare_checkpoints(intervals: Iterable[int], *, steps: int) -> None:
    """A checkpoint is due at a multiple of its interval, but a rollout may step over it.

    Args:
        intervals: ``every_n_train_steps`` of each checkpoint callback; 0 where it is not set.
        steps: optimizer steps of one rollout.
    """
    for interval in intervals:
        if interval % steps:
            log.warning(
                "ModelCheckpoint(every_n_train_steps=%d): steps are counted between rollouts of %d optimizer steps, so "
                "most multiples are stepped over; nearest that are not: %s", interval, steps, _nearest(interval, steps),
            )  # fmt: skip


def warn_of_small_micro_batches(tokens: int, *, prompt: int, completion: int) -> None:
    """A sequence longer than a micro-batch is one by itself, and takes more memory than was allowed for.

    Args:
        tokens: bound of a micro-batch.
        prompt: longest prompt.
        completion: longest completion.
    """
    if tokens < prompt + completion:
        log.warning(
            "--rollout.micro_batch_tokens %d: less than one sequence may have (--data.max_prompt_length %d plus "
            "--rollout.max_completion_length %d); each longer one takes a micro-batch, and its memory, for itself: "
            "raise it to %d, or lower the lengths", tokens, prompt, completion, prompt + completion,
        )  # fmt: skip


def check_evaluation_share(limit: float | int, data: PromptDataModule, *, flag: str) -> None:
    """A share of the evaluation that is less than one batch evaluates nothing.

    Args:
        limit: share of the batches (float), or their number (int).
        data: after its set-up.
        flag: that ``limit`` was given by.
    """
    for name, prompts in zip(data.eval_names, data.eval_prompts or [[] for _ in data.eval_names], strict=True):
        batches = math.ceil(len(prompts) / data.eval_batch_size)
        if isinstance(limit, float) and limit > 0 and batches and not int(batches * limit):
            raise UserError(
                f"{flag} {limit}: less than one batch of {name}, which has {batches} (--data.eval_batch_size "
                f"{data.eval_batch_size}); give a number of batches, or use --data.eval_limit"
            )


def _of_sequences(objective: Objective) -> str:
    return f"the one gradient that --model.objective {type(objective).__name__} has for a whole sequence"


def _nearest(value: int, step: int, *, start: int = 0) -> str:
    """``"8 or 12"``: the multiples of ``step`` around ``value``, counted from ``start``, 0 left out."""
    below = value // step * step
    return " or ".join(str(start + n) for n in (below, below + step) if n)
