"""Goes through all that ``fit`` would meet before its first rollout, section by section, and past every mistake."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.trainer.states import TrainerFn

from grpo_lightning.callbacks.disk import free_bytes, written
from grpo_lightning.callbacks.evaluation import EvaluationCallback
from grpo_lightning.callbacks.geometry import warn_of_epochs
from grpo_lightning.callbacks.gold_check import spread
from grpo_lightning.callbacks.rollout import RolloutCallback
from grpo_lightning.callbacks.run_folder import RunFolderCallback, held
from grpo_lightning.callbacks.start_checks import data_checks, part_checks, trainer_state
from grpo_lightning.check import cost, gap, geometry, prompts, rewards
from grpo_lightning.check.machine import device_line, memory, require_wandb_login
from grpo_lightning.check.page import Page
from grpo_lightning.data.datamodule import PromptDataModule
from grpo_lightning.environment import versions
from grpo_lightning.models.size import in_words
from grpo_lightning.rewards.scoring.runner import RewardScorer
from grpo_lightning.rollout.sampler_gap import MAX, MEAN

COMPARED = 100
"""Prompts whose tokens are decoded, to see whether text is lost."""


class RunCheck:
    """One run, built as ``fit`` builds it, and the page about it.

    Everything happens in one process, however many ranks the run has: nothing is launched, nothing is written.

    Args:
        trainer: of the run.
        model: of the run.
        data: of the run.
        page: to be filled.
        checkpoint: that the run goes on from.
    """

    def __init__(
        self, trainer: L.Trainer, model: Any, data: PromptDataModule, *, page: Page, checkpoint: str | None
    ) -> None:
        self.trainer, self.model, self.data, self.page, self.checkpoint = trainer, model, data, page, checkpoint
        self.rollout: RolloutCallback = next(c for c in trainer.callbacks if isinstance(c, RolloutCallback))
        self.learns = bool(model.learns_from_rollouts)
        self.plan: geometry.Plan | None = None
        self.scorer: RewardScorer | None = None

    def go_through(self, *, sampler_gap: bool) -> None:
        """Print the page.

        Args:
            sampler_gap: load the policy, start the sampler and compare the two.
        """
        self._attach()
        for title, section in (
            ("Machine", self._machine),
            ("Prompts", self._prompts),
            ("Geometry", self._geometry),
            ("Sampling", self._sampling),
            ("Rewards", self._rewards),
            ("Memory and time", self._cost),
            ("Run folder and loggers", self._folder),
            ("Sampler and trainer", self._policy if sampler_gap else self._no_policy),
        ):
            with self.page.section(title):
                section()

    def _attach(self) -> None:
        """What ``Trainer.fit`` does before it sets anything up."""
        trainer, model = self.trainer, self.model
        trainer.state.fn, trainer.training = TrainerFn.FITTING, True
        trainer.strategy.connect(model)
        trainer._data_connector.attach_data(model, datamodule=self.data)
        if self.learns:  # as the rollouts' callback tells them
            self.data.tries = self.rollout.tries
            model.steps_per_batch = self.rollout.passes * self.rollout.updates

    # --- sections ------------------------------------------------------------------------------------------------

    def _machine(self) -> None:
        self.page.say(device_line(self.trainer))
        self.page.say(", ".join(f"{name} {version}" for name, version in versions().items()) + ".")

    def _prompts(self) -> None:
        page, data = self.page, self.data
        page.attempt(partial(data.setup, "fit"))
        if data.train_lengths:
            page.show(prompts.histogram(data.train_lengths, limit=data.max_prompt_length))
        for source, asked in zip(data.eval_sources, data.eval_prompts or [], strict=False):
            page.say(f"Evaluated on {len(asked):,} prompts of {source.name}.")
        if data.train_prompts:
            first = data.train_prompts[0]
            for mark, sentence in prompts.remarks(first, data.tokenizer):
                page.say(sentence, mark=mark)
            if lost := prompts.lost_text(spread(data.train_prompts, COMPARED), data.tokenizer):
                page.say(lost, mark="!")
            page.show(prompts.rendered(first, data.tokenizer))

    @property
    def _has_data(self) -> bool:
        return bool(self.data.train_prompts) and self.data.eval_prompts is not None

    def _geometry(self) -> None:
        page, trainer, model = self.page, self.trainer, self.model
        self._set_up()
        if self.learns:
            self.scorer = page.attempt(self.rollout.make_scorer)
            for check in part_checks(self.rollout, trainer, model, self.scorer):
                page.attempt(check)
        steps = page.attempt(model.total_steps) if self._has_data else None
        if not self.learns:
            self.plan = geometry.supervised_plan(trainer, model, total_steps=steps)
            sentences = geometry.supervised_sentences(self.plan, self.data, most=model.micro_batch_tokens)
        else:
            self.plan = geometry.plan_of(trainer, self.rollout, total_steps=steps)
            layout = geometry.layout_of(model)
            cut = geometry.micro_batches(self.rollout, self.data, ranks=trainer.world_size, layout=layout)
            sentences = geometry.sentences(self.plan, self.data, micro_batches=cut)
        for sentence in sentences:
            page.say(sentence)
        epochs, batches = trainer.max_epochs, trainer.num_training_batches
        if steps is not None:
            warn_of_epochs(trainer.max_steps, max_epochs=epochs, batches=batches, steps=model.steps_per_batch)

    def _set_up(self) -> None:
        """Every callback and the module, as far as they can be; golds and run folder have sections of their own."""
        golds, self.rollout.check_golds = self.rollout.check_golds, 0
        for part in (*self.trainer.callbacks, self.model):
            if isinstance(part, RunFolderCallback) or not (self._has_data or isinstance(part, EvaluationCallback)):
                continue
            arguments = ("fit",) if part is self.model else (self.trainer, self.model, "fit")
            self.page.attempt(partial(part.setup, *arguments))
        self.rollout.check_golds = golds

    def _sampling(self) -> None:
        page, rollout = self.page, self.rollout
        ends = ", ".join(f"{self.model.tokenizer.decode([i])!r}" for i in self.model.eos_token_ids)
        if self.learns:
            page.say(f"Engine: {type(rollout.sampler.engine).__name__}. A completion ends with {ends} or at its limit.")
            rollout.on_train_start(self.trainer, self.model)
        if rollout.will_evaluate(self.trainer):
            next(c for c in self.trainer.callbacks if isinstance(c, EvaluationCallback)).announce()
        else:
            page.say("No evaluation during training.")

    def _rewards(self) -> None:
        page, rollout = self.page, self.rollout
        if self.scorer is None:
            page.say("Nothing is rewarded." if not self.learns else "The rewards cannot be put together; see above.")
            return
        page.say(f"Rewards: {', '.join(self.scorer.names)}.")
        if not self._has_data:
            page.say("Not tried on right answers, since the data could not be read.")
            return
        checks = data_checks(rollout, self.trainer, self.scorer)
        page.attempt(next(checks))  # that no column is missing
        known = len(page.mistakes)
        self._call_rewards(self.scorer)
        if len(page.mistakes) > known:
            page.say("Not tried on all right answers while a reward cannot be called.")
        elif not rollout.check_golds:
            page.say("Not tried on right answers, by --rollout.check_golds 0.", mark="!")
        else:
            for check in checks:
                page.attempt(check)
        self.scorer.close()

    def _call_rewards(self, scorer: RewardScorer) -> None:
        """Each once, by itself, so that all that fail are named."""
        page = self.page
        for sentence in rewards.empty_columns(scorer, self.data.train_prompts or []):
            page.say(sentence, mark="!")
        for name, reward in zip(scorer.names, scorer.rewards, strict=True):
            if rewards.loads_a_model(reward):
                page.say(f"{name}: not tried, since it is a model.")
                continue
            try_it = partial(
                rewards.score_golds,
                scorer.alone(name),
                self.data,
                group_size=self.rollout.group_size,
                trainer_state=trainer_state(self.trainer),
            )
            page.attempt(try_it)

    def _cost(self) -> None:
        page, trainer, model, rollout = self.page, self.trainer, self.model, self.rollout
        sizes = page.attempt(partial(cost.sizes_of, trainer, model))
        if sizes is None or self.plan is None:
            return
        engine, device = rollout.sampler.engine if self.learns else None, trainer.strategy.root_device
        most = rollout.micro_batch_tokens if self.learns else model.micro_batch_tokens
        tokens = geometry.largest_micro_batch(self.plan, most)
        training = cost.training_memory(sizes, trainer, model, tokens=tokens)
        sampling = {} if engine is None else cost.sampler_memory(sizes, engine, device=device, plan=self.plan)
        page.say(
            f"The model has {sizes.weights:,} weights, of which {sizes.trained:,} are trained, in "
            f"{8 * sizes.stored} bits, computed in {8 * sizes.computed} bits."
        )
        page.show(cost.table(training | sampling, total=memory(device), ranks=cost.ranks_on(trainer, device)))
        page.say(cost.ASSUMED_MEMORY)
        phases = cost.seconds(sizes, model, self.plan, engine=engine, device=device)
        if phases:
            what = "rollout" if self.learns else "optimizer step"
            each = sum(phases.values())
            parts = ", ".join(f"{phase} {cost.clock(value)}" for phase, value in phases.items())
            page.say(f"A {what} takes about {cost.clock(each)} ({parts}).")
            if self.plan.rollouts is not None:
                page.say(f"The run takes about {cost.clock(each * self.plan.rollouts)}, evaluations not counted.")
            page.say(cost.ASSUMED_TIME)

    def _folder(self) -> None:
        page, trainer, root = self.page, self.trainer, Path(self.trainer.default_root_dir)
        callback = next((c for c in trainer.callbacks if isinstance(c, RunFolderCallback)), None)
        for check in callback.checks(trainer, self.model, "fit") if callback is not None else ():
            page.attempt(check)
        page.attempt(partial(require_wandb_login, trainer))
        parts = page.attempt(partial(written, trainer, self.model))
        if parts is not None:
            page.say(
                f"{root}: {in_words(free_bytes(root))} free; a checkpoint has {in_words(parts.checkpoint)}, the export "
                f"{in_words(parts.export)}."
            )
        if self.checkpoint is not None:
            page.say(f"The run goes on from {self.checkpoint}.")
        elif older := held(trainer):
            page.say(
                f"It holds a run already ({', '.join(sorted(path.name for path in older))}), which would be moved to "
                "previous-<n>/ there; to go on with it, give --ckpt_path last.",
                mark="!",
            )

    def _no_policy(self) -> None:
        self.page.say("Not looked at, by --sampler_gap false: the policy's weights are not loaded, no sampler started.")

    def _policy(self) -> None:
        page, rollout = self.page, self.rollout
        if page.mistakes:
            page.say("Not looked at while there are mistakes: they come first.")
            return
        try:
            self._load_and_compare()
        except torch.OutOfMemoryError:
            page.say(
                "Not finished: policy and sampler do not fit one device, on which they are loaded whole here, whatever "
                "the strategy. The run itself may fit several; --sampler_gap false leaves this out.",
                mark="!",
            )
        finally:
            if self.learns:
                rollout.sampler.close()

    def _load_and_compare(self) -> None:
        page, model, rollout = self.page, self.model, self.rollout
        page.attempt(partial(gap.load_policy, model))
        if model.policy is None:
            return
        page.say(f"{type(model.policy.model).__name__} is loaded; sequences are {model.layout}.")
        page.attempt(model.configure_optimizers)
        if self.checkpoint is not None and Path(self.checkpoint).is_file():
            page.attempt(partial(gap.require_fitting_checkpoint, model, self.checkpoint))
        if not self.learns:
            page.say("Nothing is sampled to learn from.")
            return
        asked = (self.data.train_prompts or [])[: gap.PROMPTS]
        drawn = page.attempt(partial(gap.sample, self.trainer, model, rollout, asked))
        if drawn is not None:
            page.say(f"The sampler writes, of {gap.TOKENS} tokens at most: {drawn[0][0].text!r}")
            figures = page.attempt(partial(gap.compare, model, rollout, asked, drawn))
            if figures is not None:
                page.say(
                    f"Log-probabilities of the same tokens differ by {figures[MEAN]:.2g} nats on average and "
                    f"{figures[MAX]:.2g} at most; the run would stop above --model.max_logp_difference "
                    f"{model.max_logp_difference:g} on average."
                )
