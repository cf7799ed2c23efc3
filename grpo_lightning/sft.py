"""Supervised fine-tuning: the cold start before GRPO, and its baseline."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from typing import Any

from grpo_lightning.data.answer_formats import ANSWER_FORMATS, continuation
from grpo_lightning.data.datamodule import PromptDataModule
from grpo_lightning.errors import UserError
from grpo_lightning.functional.masking import masked_sum
from grpo_lightning.functional.reduction import token_mean
from grpo_lightning.models.loading import context_length
from grpo_lightning.models.sharding import reshard
from grpo_lightning.policy_module import PolicyModule
from grpo_lightning.rollout.windows import cut_windows, pad_rows
from grpo_lightning.token_means import TokenMeans
from grpo_lightning.types import Prompt, PromptBatch, SequenceBatch, Window

log = logging.getLogger(__name__)

Targets = dict[int, list[int]]
"""Token ids of what follows a prompt, by the prompt's row in its source."""


class SFTModule(PolicyModule):
    """Learns worked solutions: the loss is the mean negative log-likelihood of the target's tokens, prompt excluded.

    One optimizer step learns ``--data.prompts_per_step`` rows, each the rendered prompt and the row's target, ended by
    the end-of-sequence token. Evaluation sources that have the target column are scored too, as ``val/<source>/loss``
    and ``val/loss``, beside the accuracy of the answers that are sampled.

    Args:
        policy: Hugging Face id or folder of the causal language model to train.
        target_column: column of the data that holds the text to learn.
        lay_out: write the target as the prompt asks for it (``--data.template.answer_format``), from its text and the
            row's ``answer``. False learns the text as it is.
        max_length: longest prompt and target together, in tokens; longer rows are left out and counted in the log. null
            refuses rows that are too long for the model.
        micro_batch_tokens: most tokens in one forward and backward; padding counts where ``packing`` is off.
        kwargs: see ``PolicyModule``.
    """

    def __init__(
        self,
        policy: str,
        *,
        target_column: str = "solution",
        lay_out: bool = False,
        max_length: int | None = None,
        micro_batch_tokens: int = 16384,
        **kwargs: Any,
    ) -> None:
        super().__init__(policy, **kwargs)
        if micro_batch_tokens < 1:
            raise UserError(f"--model.micro_batch_tokens {micro_batch_tokens}: must be at least 1")
        limit = context_length(self.model_config)
        if max_length is not None and not 1 <= max_length <= (limit or max_length):
            raise UserError(f"--model.max_length {max_length}: must be between 1 and the {limit} that {policy} holds")
        self.target_column, self.lay_out = target_column, lay_out
        self.max_length = max_length
        self._length_limit = max_length or limit
        self.micro_batch_tokens = micro_batch_tokens
        self.targets: Targets = {}
        self._eval_targets: list[Targets] = []
        self._eval_figures: list[TokenMeans] = []

    # --- targets -------------------------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """Encode every target, so that a row without one is found before the weights are loaded."""
        data = self.trainer.datamodule
        if self.lay_out and data.template.answer_format is ANSWER_FORMATS["none"]:
            raise UserError(
                "--model.lay_out true: --data.template.answer_format none asks for no layout; choose one, or leave "
                "--model.lay_out out"
            )
        if data.curriculum is not None and data.curriculum.learns_from_rewards:
            raise UserError(
                f"--data.curriculum {type(data.curriculum).__name__}: goes by rewards, of which supervised training "
                "has none; use ByColumn, or leave it out"
            )
        if stage == "fit":
            self.targets = self._train_targets(data)
        if stage in ("fit", "validate"):
            self._eval_targets = [self._fitting(prompts) for prompts in data.eval_prompts or []]

    def _train_targets(self, data: PromptDataModule) -> Targets:
        """Those of all training rows; rows beyond ``max_length`` are taken out of the data.

        Raises:
            UserError: naming a row without a target or, if there is no ``max_length``, one that is too long.
        """
        assert data.train_prompts is not None
        targets = self._fitting(data.train_prompts)
        left_out = [prompt for prompt in data.train_prompts if prompt.row not in targets]
        for prompt in left_out:
            where, ids = f"row {prompt.row} of {prompt.source}", self._target(prompt)
            if ids is None:
                raise UserError(
                    f"--model.target_column {self.target_column}: {where} has no such text "
                    f"(its columns: {', '.join(prompt.columns)})"
                )
            if self.max_length is None:
                raise UserError(
                    f"--model.target_column {self.target_column}: {where} has {len(prompt.token_ids)} + {len(ids)} "
                    f"tokens, beyond the {self._length_limit} that {self.policy_path} holds; leave such rows out by "
                    "--model.max_length"
                )
        if left_out:
            data.train_prompts = [prompt for prompt in data.train_prompts if prompt.row in targets]
            if data.curriculum is not None:
                data.curriculum.prepare(data.train_prompts)
            if self.trainer.is_global_zero:
                log.warning(
                    "%d of %d rows have more tokens than --model.max_length %d and are left out",
                    len(left_out), len(left_out) + len(targets), self.max_length,
                )  # fmt: skip
        return targets

    def _fitting(self, prompts: Sequence[Prompt]) -> Targets:
        """Targets of the prompts that have one and are, with it, no longer than the limit."""
        found = ((prompt, self._target(prompt)) for prompt in prompts)
        limit = self._length_limit
        return {
            prompt.row: ids
            for prompt, ids in found
            if ids is not None and (limit is None or len(prompt.token_ids) + len(ids) <= limit)
        }

    def _target(self, prompt: Prompt) -> list[int] | None:
        """Token ids of what follows ``prompt``; None if its row has no such text."""
        text = prompt.columns.get(self.target_column)
        if not isinstance(text, str):
            return None
        if self.lay_out:
            answer = prompt.columns.get("answer")
            if answer is None:
                raise UserError(f"--model.lay_out true: row {prompt.row} of {prompt.source} has no 'answer' to lay out")
            answer_format = self.trainer.datamodule.template.answer_format
            text = continuation(prompt.prefill, answer_format.show(str(answer), text))
        return [*self.tokenizer(text, add_special_tokens=False)["input_ids"], self.tokenizer.eos_token_id]

    # --- training ------------------------------------------------------------------------------------------------

    def training_step(self, batch: PromptBatch, batch_idx: int) -> None:
        """One optimizer step on the targets of ``batch``."""
        assert self.policy is not None
        start, figures = time.perf_counter(), TokenMeans()
        window = self._window(batch.prompts, self.targets)
        for micro_batch in window.micro_batches:
            scores = self.policy(micro_batch)
            loss = masked_sum(-scores.logprobs, micro_batch.loss_weights)
            self.accumulate(loss, last=micro_batch is window.micro_batches[-1])
            figures.add({"entropy": scores.entropy}, micro_batch.counted)
            figures.add_total("loss", loss / self.trainer.world_size)
        result = figures.result() | {"tokens": window.tokens}
        result |= self.take_step(window, loss=result.get("loss", 0.0))
        self.log_step(result | {"time/update": time.perf_counter() - start}, bar=("loss",))

    def _window(self, prompts: Sequence[Prompt], targets: Targets) -> Window[SequenceBatch]:
        """Prompts and targets in micro-batches; prompts without a target only keep this rank in step."""
        rows = pad_rows(
            [prompt.token_ids for prompt in prompts],
            [targets.get(prompt.row, []) if prompt.valid else [] for prompt in prompts],
            pad_token_id=self.tokenizer.pad_token_id,
        )
        (window,) = cut_windows(
            rows.to(self.device),
            updates=1,
            micro_batch_tokens=self.micro_batch_tokens,
            reduction=token_mean,
            max_completion_length=rows.completion_mask.shape[1],
            layout=self.layout,
        )
        return window

    # --- held-out loss -------------------------------------------------------------------------------------------

    def on_validation_epoch_start(self) -> None:
        self._eval_figures = [TokenMeans() for _ in self._eval_targets]

    def validation_step(self, batch: PromptBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """The loss on held-out targets; answers are sampled and scored by ``EvaluationCallback``."""
        targets = self._eval_targets[dataloader_idx]
        if not targets:
            return
        assert self.policy is not None
        figures = self._eval_figures[dataloader_idx]
        for micro_batch in self._window(batch.prompts, targets).micro_batches:
            figures.add({"loss": -self.policy(micro_batch).logprobs}, micro_batch.counted)
            figures.add_total("tokens", micro_batch.counted.sum())
        reshard(self.policy)

    def on_validation_epoch_end(self) -> None:
        trainer = self.trainer
        if trainer.sanity_checking and trainer.num_sanity_val_batches != trainer.num_val_batches:
            return  # a few batches, of which nothing is recorded
        losses, total, tokens = {}, 0.0, 0.0
        for name, targets, figures in zip(
            trainer.datamodule.eval_names, self._eval_targets, self._eval_figures, strict=True
        ):
            if targets:
                result = figures.result()
                losses[f"val/{name}/loss"] = result["loss"]
                total, tokens = total + result["loss"] * result["tokens"], tokens + result["tokens"]
                log.info("val %s: loss %.4f over %d tokens of targets", name, result["loss"], result["tokens"])
        if losses:
            self.log_figures(losses | {"val/loss": total / tokens if tokens else math.nan}, bar=("val/loss",))
