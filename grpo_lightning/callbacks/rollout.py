"""When to generate: the callback between Lightning's loop and the rollout collector."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable
from typing import Any

import lightning as L
import torch
from lightning.pytorch.trainer.states import TrainerFn

from grpo_lightning import ranks
from grpo_lightning.callbacks.geometry import check_evaluation_share, check_max_steps
from grpo_lightning.callbacks.sampler import PolicySampler
from grpo_lightning.callbacks.start_checks import rollout_checks, trainer_state
from grpo_lightning.engines.base import RolloutEngine, Sampling
from grpo_lightning.errors import UserError
from grpo_lightning.functional.reduction import token_mean
from grpo_lightning.policy_module import PolicyModule
from grpo_lightning.rewards.scoring.runner import RewardScorer
from grpo_lightning.rollout.collector import RolloutCollector
from grpo_lightning.rollout.seeds import request_seed
from grpo_lightning.rollout_module import RolloutModule
from grpo_lightning.types import PromptBatch

log = logging.getLogger(__name__)


def check_truncation(group: str, *, top_p: float, top_k: int, min_p: float) -> None:
    """Refuse shares and counts that mean nothing; ``group`` is the options' prefix, ``--rollout``."""
    if not 0 < top_p <= 1:
        raise UserError(f"{group}.top_p {top_p}: a share above 0 and at most 1; 1 keeps every token")
    if top_k < 0:
        raise UserError(f"{group}.top_k {top_k}: a number of tokens; 0 keeps all")
    if not 0 <= min_p <= 1:
        raise UserError(f"{group}.min_p {min_p}: a share of the likeliest token's probability; 0 keeps all")


class RolloutCallback(L.Callback):
    """Before each training batch: new weights to the sampler, groups of completions, rewards, advantages.

    The callback owns *when*; ``RolloutCollector`` owns *what*. Geometry: P prompts (``--data.prompts_per_step``) times
    G completions make one rollout; it is cut into U windows of whole groups and gone through mu times, which makes
    mu · U optimizer steps.

    Args:
        rewards: reward functions by dotted path (or callable objects by ``class_path``), in TRL's form.
        normalize_each_reward: normalize each reward by itself and then add up, instead of the other way round; see
            ``advantages.decoupled``.
        engine: the sampler; null takes vLLM if it is installed, else transformers.
        group_size: completions of each prompt (G).
        max_completion_length: longest completion, in tokens.
        temperature: of sampling; log-probabilities are taken at the same temperature.
        top_p: nucleus share. Below 1 the sampled distribution is not the policy's, which biases the ratios.
        top_k: tokens kept; 0 keeps all.
        min_p: least probability relative to the likeliest token.
        advantages: function from rewards [P, G] to advantages [P, G], or a ``TokenEstimator``; null takes the
            module's own: ``group_normalized`` for GRPO, ``GAE`` for PPO.
        reduction: function that says what each token counts in the loss.
        updates_per_rollout: optimizer steps that the prompts of a rollout are cut into (U).
        passes: times that a rollout is gone through (mu); above 1 the ratio and its clipping come into play.
        micro_batch_tokens: most tokens in one forward and backward, a prompt counted once (and a sixteenth more for
            each further completion) or, with ``--model.packing false``, with padding; bounds memory, changes no result.
        dynamic_sampling_tries: most times that new prompts are sampled for a rollout until P groups have something to
            teach (DAPO); the loader hands out the prompts of all tries, and what was not sampled is passed over. 1
            takes every group as it is.
        mask_truncated: train on no token of a completion that the length limit cut (DAPO's overlong filtering). Its
            reward counts in its group all the same; a ``TokenEstimator`` does not see it.
        seed: of the samples; null takes ``seed_everything``.
        check_golds: rows whose gold answer must earn a correctness reward's best before the run starts; 0 for none.
        scoring: how the rewards are weighted, limited and called; see ``RewardScorer``.
    """

    def __init__(
        self,
        *,
        rewards: list[Callable[..., Any]] | None = None,
        normalize_each_reward: bool = False,
        engine: RolloutEngine | None = None,
        group_size: int = 8,
        max_completion_length: int = 256,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        # Not their exact types: a function without annotations would be refused.
        advantages: Callable[..., Any] | None = None,
        reduction: Callable[..., Any] = token_mean,
        updates_per_rollout: int = 1,
        passes: int = 1,
        micro_batch_tokens: int = 16384,
        dynamic_sampling_tries: int = 1,
        mask_truncated: bool = False,
        seed: int | None = None,
        check_golds: int = 10_000,
        **scoring: Any,
    ) -> None:
        for name, value in (
            ("max_completion_length", max_completion_length),
            ("updates_per_rollout", updates_per_rollout),
            ("passes", passes),
            ("micro_batch_tokens", micro_batch_tokens),
            ("dynamic_sampling_tries", dynamic_sampling_tries),
            ("group_size", group_size),
        ):
            if value < 1:
                raise UserError(f"--rollout.{name} {value}: must be at least 1")
        if check_golds < 0:
            raise UserError(f"--rollout.check_golds {check_golds}: a number of rows; 0 checks none")
        if temperature <= 0:
            raise UserError(
                f"--rollout.temperature {temperature}: training needs varied completions, so it must be positive; "
                "for greedy evaluation see --evaluation.greedy"
            )
        check_truncation("--rollout", top_p=top_p, top_k=top_k, min_p=min_p)
        self.rewards = rewards or []
        self.normalize_each_reward = normalize_each_reward
        self._scoring = scoring
        self.sampler = PolicySampler(engine)
        self.group_size = group_size
        self.sampling = Sampling(
            max_completion_length=max_completion_length, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p
        )
        self.advantages, self.reduction = advantages, reduction
        self.updates, self.passes = updates_per_rollout, passes
        self.micro_batch_tokens = micro_batch_tokens
        self.tries, self.mask_truncated = dynamic_sampling_tries, mask_truncated
        self.seed, self.check_golds = seed, check_golds
        self.rollouts = 0
        self.num_tokens = 0
        self.resumes = False
        """True for a ``fit`` from a checkpoint of which nothing is known until it is loaded."""
        self.loaded_step = 0
        """Optimizer steps behind the checkpoint that was loaded last."""
        self._collector: RolloutCollector | None = None

    # --- checks, before any long work ----------------------------------------------------------------------------

    def setup(self, trainer: L.Trainer, pl_module: PolicyModule, stage: str) -> None:
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", 0)) if self.seed is None else self.seed
        self._collector = None
        if stage == "fit" and pl_module.learns_from_rollouts:
            scorer = self.make_scorer()
            for check in rollout_checks(self, trainer, pl_module, scorer):
                check()
            self._collector = self._make_collector(pl_module, scorer)
            trainer.datamodule.tries = self.tries
            pl_module.steps_per_batch = self.passes * self.updates
            if isinstance(trainer.val_check_interval, int) and trainer.world_size == 1:
                pl_module.total_steps()  # finds an interval beyond the epoch before the weights are loaded
        if self.will_evaluate(trainer):
            kind = "val" if stage in ("fit", "validate") else TrainerFn(stage).value
            limit = getattr(trainer, f"limit_{kind}_batches")
            check_evaluation_share(limit, trainer.datamodule, flag=f"--trainer.limit_{kind}_batches")
        self._place_rewards(trainer, stage)

    def _place_rewards(self, trainer: L.Trainer, stage: str) -> None:
        """Load learned rewards onto this rank's device: they are no part of the module, which the strategy moves."""
        data = trainer.datamodule
        if self._collector is None and (stage != "predict" or data.question is not None):
            return
        prompts = data.train_prompts or [prompt for source in data.eval_prompts for prompt in source]
        for reward in self.rewards:
            if hasattr(reward, "place"):
                reward.place(trainer.strategy.root_device, prompts=prompts)

    def will_evaluate(self, trainer: L.Trainer) -> bool:
        """True if answers will be generated for other purposes than training."""
        if trainer.state.fn != TrainerFn.FITTING:
            return True
        return bool(trainer.datamodule.eval_sources) and trainer.limit_val_batches != 0

    def _make_collector(self, pl_module: RolloutModule, scorer: RewardScorer) -> RolloutCollector:
        return RolloutCollector(
            scorer,
            tokenizer=pl_module.tokenizer,
            group_size=self.group_size,
            sampling=self.sampling,
            advantages=self.advantages or pl_module.estimator,
            normalize_each_reward=self.normalize_each_reward,
            reduction=self.reduction,
            updates=self.updates,
            passes=self.passes,
            micro_batch_tokens=self.micro_batch_tokens,
            tries=self.tries,
            mask_truncated=self.mask_truncated,
        )

    def make_scorer(self) -> RewardScorer:
        """The rewards as this run puts them together."""
        if not self.rewards:
            raise UserError("--rollout.rewards: no reward function given, so there is nothing to learn from")
        return RewardScorer(self.rewards, **self._scoring)

    def check_max_steps(self, trainer: L.Trainer) -> None:
        """Whether the run ends between two rollouts."""
        if not trainer.fast_dev_run:
            check_max_steps(trainer.max_steps, done=self.loaded_step, passes=self.passes, updates=self.updates)

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        self.loaded_step = checkpoint["global_step"]
        if self._collector is not None:
            self.check_max_steps(trainer)

    def limit_completions(self, tokens: int) -> None:
        """Let completions of the rollouts to come have at most so many tokens, which the sampler must allow for."""
        self.sampling = dataclasses.replace(self.sampling, max_completion_length=tokens)
        if self._collector is not None:
            self._collector.sampling = self.sampling

    def seeds(self, purpose: str, rollout: int, batch: PromptBatch) -> list[int]:
        """One seed for each prompt of ``batch``, by its position among the prompts of all ranks."""
        return [request_seed(int(self.seed or 0), purpose, rollout, 0, position) for position in batch.positions]

    # --- hooks ---------------------------------------------------------------------------------------------------

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._collector is not None:
            sampling = self.sampling
            log.info(
                "training: %d samples a prompt at temperature %g, top_p %g, top_k %d, min_p %g; at most %d tokens",
                self.group_size, sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p,
                sampling.max_completion_length,
            )  # fmt: skip
            if sampling.truncated:
                log.warning(
                    "--rollout.top_p, top_k or min_p cut the sampled distribution, but ratios are those of the whole: "
                    "the gradient is biased"
                )

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: RolloutModule, batch: PromptBatch, batch_idx: int
    ) -> None:
        if self._collector is None:
            return
        clock = pl_module.clock()
        with clock("sync"):
            engine = self.sampler.ready(trainer, pl_module)
        batch.rollout = rollout = self._collector.collect(
            batch.prompts,
            positions=batch.positions,
            engine=engine,
            seeds=self.seeds("train", self.rollouts, batch),
            learner=pl_module.learner(temperature=self.sampling.temperature),
            scores_beside_passes=not _changes_default_dtype(trainer),
            clock=clock,
            device=pl_module.device,
            trainer_state=trainer_state(trainer),
        )
        self.sampler.rest()
        sampled = rollout.sampled
        rollout.metrics |= trainer.datamodule.record(sampled.prompts, sampled.rewards, sampled.terms)
        self.rollouts += 1
        generated = sum(len(c.token_ids) for group in sampled.completions for c in group)
        prompt_tokens = sum(len(p.token_ids) for p in sampled.prompts) * self.group_size
        totals = ranks.all_sum(torch.tensor([generated, prompt_tokens], dtype=torch.float64))
        self.num_tokens += int(totals.sum())
        rollout.metrics |= {
            "num_tokens": float(self.num_tokens),
            "generated_tokens_per_second": float(totals[0]) / max(rollout.metrics["time/generate"], 1e-9),
        }

    def state_dict(self) -> dict[str, Any]:
        return {"rollouts": self.rollouts, "num_tokens": self.num_tokens}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rollouts, self.num_tokens = state_dict["rollouts"], state_dict["num_tokens"]

    def teardown(self, trainer: L.Trainer, pl_module: PolicyModule, stage: str) -> None:
        if self._collector is not None:
            self._collector.scorer.close()
        # Last of all: a vLLM engine takes the default process group with it.
        self.sampler.close()


def _changes_default_dtype(trainer: L.Trainer) -> bool:
    """True where Lightning's precision sets torch's default dtype during a forward, for all threads (``bf16-true``)."""
    before = torch.get_default_dtype()
    with trainer.precision_plugin.forward_context():
        return torch.get_default_dtype() != before
