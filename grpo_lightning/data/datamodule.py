"""Serves prompts to training and evaluation."""

from __future__ import annotations

import itertools
import logging
import os
import warnings
from collections.abc import Sequence
from typing import Any

import lightning as L
from torch import Tensor
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from grpo_lightning.data.batches import eval_loader, report_epoch, train_loader
from grpo_lightning.data.curriculum import Curriculum
from grpo_lightning.data.loading import (
    LoadedPrompts,
    Row,
    build_prompts,
    read_rows,
    require_same_on_ranks,
    without_questions,
)
from grpo_lightning.data.sampler import EpochSampler
from grpo_lightning.data.source import PromptSource
from grpo_lightning.data.templates import PromptTemplate
from grpo_lightning.errors import UserError
from grpo_lightning.types import Prompt

log = logging.getLogger(__name__)


class PromptDataModule(L.LightningDataModule):
    """Questions from one source to train on, and from any number of sources to evaluate on.

    A training batch holds this rank's share of ``prompts_per_step`` prompts (times ``tries``), always whole groups.
    Each epoch has its own order, the same on all ranks; the prompts that do not fill a last batch are left out of that
    epoch and counted in the log. The train loader's state is part of the checkpoint and goes on at the next batch.

    A training question that is also in an evaluation source is removed from training and counted in the log. Two
    training rows with the same question stay two prompts.

    The tokenizer is the policy's, ``trainer.lightning_module.tokenizer``; without a Trainer, set ``tokenizer``.

    Args:
        source: training questions.
        eval_sources: questions for ``validate``, ``test`` and ``predict``; metrics are named by ``source.name``.
        template: how a question is put to the model; None takes ``PromptTemplate()``.
        prompts_per_step: prompts of one rollout over all ranks (P).
        eval_batch_size: prompts of one evaluation batch over all ranks.
        max_prompt_length: longest prompt, in tokens; longer ones are left out and counted in the log.
        shuffle: new order each epoch; False keeps the data's order.
        curriculum: chooses the prompts of each rollout; None takes them in the order of the epoch.
        seed: of the order; None takes ``seed_everything``.
        eval_limit: prompts of each evaluation source, spread evenly over it; None takes all.

    Raises:
        UserError: if a number makes no sense.
    """

    def __init__(
        self,
        source: PromptSource,
        *,
        eval_sources: list[PromptSource] | None = None,
        template: PromptTemplate | None = None,
        prompts_per_step: int,
        eval_batch_size: int = 64,
        max_prompt_length: int = 512,
        shuffle: bool = True,
        curriculum: Curriculum | None = None,
        seed: int | None = None,
        eval_limit: int | None = None,
    ) -> None:
        super().__init__()
        for flag, value in (
            ("prompts_per_step", prompts_per_step),
            ("eval_batch_size", eval_batch_size),
            ("max_prompt_length", max_prompt_length),
            ("eval_limit", eval_limit),
        ):
            if value is not None and value < 1:
                raise UserError(f"--data.{flag} is {value}; give at least 1")
        if curriculum is not None and not shuffle:
            raise UserError(
                "--data.shuffle false does not go with --data.curriculum, which has an order of its own; leave one out"
            )
        self.source = source
        self.eval_sources = eval_sources or []
        self.template = template or PromptTemplate()
        self.prompts_per_step = prompts_per_step
        self.eval_batch_size = eval_batch_size
        self.max_prompt_length = max_prompt_length
        self.shuffle = shuffle
        self.curriculum = curriculum
        self.seed = seed
        self.eval_limit = eval_limit
        self.tries = 1
        """Times ``prompts_per_step`` prompts in each training batch, for a rollout that draws again where groups teach
        nothing. Set by the rollout callback before the train loader is made."""
        self.tokenizer: Any = None
        """The policy's tokenizer; taken from the Trainer's module where it is not set."""
        self.question: str | None = None
        """The one question that ``predict`` asks instead of the evaluation sources."""
        self.train_prompts: list[Prompt] | None = None
        """Set up by ``fit``."""
        self.train_lengths: list[int] = []
        """Tokens of every training prompt, those that are too long and left out included."""
        self.eval_prompts: list[list[Prompt]] | None = None
        """One list per evaluation source."""
        self._examples: list[Row] = []
        self._told = False

        names = self.eval_names
        for name in names:
            if names.count(name) > 1:
                raise UserError(f"two of --data.eval_sources are named {name!r}; give one of them another `name`")

    @property
    def eval_names(self) -> list[str]:
        """Names of the evaluation sources, in the order of the evaluation loaders."""
        return [source.name for source in self.eval_sources]

    # --- loading -------------------------------------------------------------------------------------------------

    def setup(self, stage: str | None = None) -> None:
        """Read, render and encode what the stage needs; every fault of the data shows here."""
        if self.trainer is not None and self.tokenizer is None:
            self.tokenizer = self.trainer.lightning_module.tokenizer
        if self.tokenizer is None:
            raise UserError("PromptDataModule has no tokenizer; set its `tokenizer`, or run it under a Trainer")
        self._check_ranks()
        # Prompts are held in memory, so workers would not help; training without evaluation sources is no oversight;
        # and torchdata calls a deprecated function of torch.
        for message in ("does not have many workers", "Total length of `list` across ranks is zero", "set_vital"):
            warnings.filterwarnings("ignore", message=f".*{message}")
        needs_train = stage in (None, "fit") and self.train_prompts is None
        needs_eval = self.eval_prompts is None and not (stage == "predict" and self.question is not None)
        needs_examples = self.template.examples > len(self._examples)
        if not (needs_train or needs_eval or needs_examples):
            return
        # All of the evaluation rows, even where only training or the examples need a set-up: they decide what the
        # training rows are.
        eval_rows = [read_rows(source) for source in self.eval_sources]
        if needs_train or needs_examples:
            train_rows = self._disjoint_rows(eval_rows)
            shown = self.template.examples
            if len(train_rows) < shown:
                raise UserError(
                    f"--data.template.examples is {shown}, but --data.source {self.source.name} has only "
                    f"{len(train_rows)} rows to show; lower the one or give more data"
                )
            self._examples, train_rows = train_rows[:shown], train_rows[shown:]
            if needs_train:
                self._check_train_size(len(train_rows))
                loaded = self._build(train_rows, self.source)
                self.train_prompts, self.train_lengths = loaded.prompts, loaded.lengths
                self._check_train_size(len(self.train_prompts))
                if self.curriculum is not None:
                    self.curriculum.prepare(self.train_prompts)
        if needs_eval:
            self.eval_prompts = [
                self._build(self._limited(rows), source).prompts
                for rows, source in zip(eval_rows, self.eval_sources, strict=True)
            ]
        require_same_on_ranks(itertools.chain(self.train_prompts or [], *(self.eval_prompts or [])))

    def _disjoint_rows(self, eval_rows: list[list[Row]]) -> list[Row]:
        rows = read_rows(self.source)
        kept = without_questions(rows, [row for rows in eval_rows for row in rows])
        if not kept:
            raise UserError(
                f"every question of --data.source {self.source.name} is also in --data.eval_sources; "
                "name different data, or another split, for the two"
            )
        if len(kept) < len(rows) and self._reports:
            log.warning(
                "%s: %d of %d training questions are also in an evaluation source and are removed from training",
                self.source.name, len(rows) - len(kept), len(rows),
            )  # fmt: skip
        return kept

    def _limited(self, rows: list[Row]) -> list[Row]:
        if self.eval_limit is None or self.eval_limit >= len(rows):
            return rows
        return [rows[i * len(rows) // self.eval_limit] for i in range(self.eval_limit)]

    def _build(self, rows: Sequence[Row], source: PromptSource) -> LoadedPrompts:
        return build_prompts(
            rows,
            template=self.template,
            tokenizer=self.tokenizer,
            source=source.name,
            max_prompt_length=self.max_prompt_length,
            examples=self._examples,
            report=self._reports,
        )

    @property
    def _drawn(self) -> tuple[int, str]:
        """Prompts of one training batch over all ranks, and the flags that make them so many."""
        flags = f"--data.prompts_per_step {self.prompts_per_step}"
        if self.tries > 1:
            flags += f" x --rollout.dynamic_sampling_tries {self.tries}"
        return self.prompts_per_step * self.tries, flags

    def _check_train_size(self, count: int) -> None:
        drawn, flags = self._drawn
        if count < drawn:
            raise UserError(
                f"--data.source {self.source.name} has {count} prompts to train on, fewer than {flags}; "
                f"lower {'one of them' if self.tries > 1 else '--data.prompts_per_step'} or give more data"
            )

    def _check_ranks(self) -> None:
        world_size = self._world_size
        for flag, value in (("prompts_per_step", self.prompts_per_step), ("eval_batch_size", self.eval_batch_size)):
            if value % world_size:
                below, above = value - value % world_size, value - value % world_size + world_size
                nearest = f"{below} or {above}" if below else f"{above}"
                raise UserError(
                    f"--data.{flag} {value} cannot be dealt evenly to {world_size} ranks; the nearest numbers that can "
                    f"are {nearest}"
                )
        connector = getattr(self.trainer, "_accelerator_connector", None)
        if world_size > 1 and getattr(connector, "use_distributed_sampler", False):
            raise UserError(
                "--trainer.use_distributed_sampler is true, but the prompts are dealt to the ranks already and would "
                "be dealt twice; set it to false"
            )

    # --- loaders -------------------------------------------------------------------------------------------------

    def train_dataloader(self) -> StatefulDataLoader:
        """This rank's share of every rollout's prompts; its length is the number of rollouts of an epoch."""
        assert self.train_prompts is not None, "setup('fit') comes first"
        self._check_train_size(len(self.train_prompts))  # again: now the tries are known
        if self._reports and not self._told:  # Lightning asks for the loader more than once
            report_epoch(self.source.name, len(self.train_prompts), *self._drawn, shuffle=self.shuffle)
            self._told = True
        sampler = EpochSampler(
            len(self.train_prompts),
            batch_size=self._drawn[0],
            rank=self._rank,
            world_size=self._world_size,
            shuffle=self.shuffle,
            seed=int(os.environ.get("PL_GLOBAL_SEED", 0)) if self.seed is None else self.seed,
            curriculum=self.curriculum,
        )
        return train_loader(self.train_prompts, sampler)

    def record(self, prompts: Sequence[Prompt], rewards: Tensor, terms: dict[str, Tensor]) -> dict[str, float]:
        """Tell the curriculum what a rollout was rewarded with, before the next batch is asked for; on every rank.

        Args:
            prompts: this rank's, ``[P]``.
            rewards: total rewards, NaN where none applies, ``[P, G]``.
            terms: each reward function's own scores, ``[P, G]``.

        Returns:
            Figures over all ranks, to be logged.
        """
        return {} if self.curriculum is None else self.curriculum.measure(prompts, rewards, terms)

    # What a curriculum has learned is not kept in the train loader's state: after a whole epoch, Lightning does not
    # restore that.

    def state_dict(self) -> dict[str, Any]:
        return {} if self.curriculum is None else self.curriculum.to_save()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.curriculum is not None and self.train_prompts is not None:
            self.curriculum.restore(state_dict)

    def val_dataloader(self) -> list[DataLoader]:
        """One loader per evaluation source, in the order of ``eval_names``."""
        assert self.eval_prompts is not None, "setup comes first"
        return [self._eval_loader(prompts) for prompts in self.eval_prompts]

    def test_dataloader(self) -> list[DataLoader]:
        """As ``val_dataloader``."""
        return self._some_eval_loaders("test")

    def predict_dataloader(self) -> list[DataLoader]:
        """The one ``question``, if there is one, else as ``val_dataloader``."""
        if self.question is None:
            return self._some_eval_loaders("predict")
        shown = [row.columns for row in self._examples]
        prompt = self.template.prompt(
            {"question": self.question}, tokenizer=self.tokenizer, examples=shown, source="prompt"
        )
        if not 0 < len(prompt.token_ids) <= self.max_prompt_length:
            raise UserError(
                f"the question has {len(prompt.token_ids)} tokens; --data.max_prompt_length allows 1 to "
                f"{self.max_prompt_length}"
            )
        return [self._eval_loader([prompt])]

    def _some_eval_loaders(self, command: str) -> list[DataLoader]:
        if not self.eval_sources:
            raise UserError(f"`{command}` has nothing to ask; name --data.eval_sources")
        return self.val_dataloader()

    def _eval_loader(self, prompts: list[Prompt]) -> DataLoader:
        return eval_loader(prompts, batch_size=self.eval_batch_size, rank=self._rank, world_size=self._world_size)

    @property
    def _rank(self) -> int:
        return self.trainer.global_rank if self.trainer is not None else 0

    @property
    def _world_size(self) -> int:
        return self.trainer.world_size if self.trainer is not None else 1

    @property
    def _reports(self) -> bool:
        return self._rank == 0
