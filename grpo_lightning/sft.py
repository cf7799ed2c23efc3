"""Supervised fine-tuning: the cold start before GRPO, and its baseline."""

from __future__ import annotations

import time
from typing import Any

from grpo_lightning.errors import UserError
from grpo_lightning.functional.masking import masked_sum
from grpo_lightning.functional.reduction import token_mean
from grpo_lightning.models.loading import context_length
from grpo_lightning.policy_module import PolicyModule
from grpo_lightning.rollout.windows import cut_windows, pad_rows
from grpo_lightning.token_means import TokenMeans
from grpo_lightning.types import Prompt, PromptBatch, SequenceBatch, Window


class SFTModule(PolicyModule):
    """Learns worked solutions: the loss is the mean negative log-likelihood of the target's tokens, prompt excluded.

    Args:
        policy: Hugging Face id or folder of the causal language model to train.
        target_column: column of the data that holds the text to learn.
        micro_batch_tokens: most padded tokens in one forward and backward.
        kwargs: see ``PolicyModule``.
    """

    def __init__(
        self, policy: str, *, target_column: str = "solution", micro_batch_tokens: int = 16384, **kwargs: Any
    ) -> None:
        super().__init__(policy, **kwargs)
        if micro_batch_tokens < 1:
            raise UserError(f"--model.micro_batch_tokens {micro_batch_tokens}: must be at least 1")
        self.target_column = target_column
        self.micro_batch_tokens = micro_batch_tokens
        self._targets: dict[int, list[int]] = {}

    def setup(self, stage: str) -> None:
        """Encode every target, so that a row without one is found before the weights are loaded."""
        if stage == "fit":
            self._targets = {prompt.row: self._target(prompt) for prompt in self.trainer.datamodule.train_prompts}

    def training_step(self, batch: PromptBatch, batch_idx: int) -> None:
        """One optimizer step on the targets of ``batch``."""
        assert self.policy is not None
        start, figures = time.perf_counter(), TokenMeans()
        window = self._window(batch)
        for micro_batch in window.micro_batches:
            scores = self.policy(micro_batch)
            loss = masked_sum(-scores.logprobs, micro_batch.loss_weights)
            self.accumulate(loss, last=micro_batch is window.micro_batches[-1])
            figures.add({"entropy": scores.entropy}, micro_batch.counted)
            figures.add_total("loss", loss / self.trainer.world_size)
        result = figures.result() | self.take_step(signal=True)
        self.log_step(result | {"time/update": time.perf_counter() - start}, bar=("loss",))

    def _window(self, batch: PromptBatch) -> Window[SequenceBatch]:
        """The batch's prompts and targets, each ended by the end-of-sequence token."""
        targets = [self._targets[prompt.row] for prompt in batch.prompts]
        rows = pad_rows(
            [prompt.token_ids for prompt in batch.prompts], targets, pad_token_id=self.tokenizer.pad_token_id
        ).to(self.device)
        (window,) = cut_windows(
            rows,
            updates=1,
            micro_batch_tokens=self.micro_batch_tokens,
            reduction=token_mean,
            max_completion_length=rows.completion_mask.shape[1],
        )
        return window

    def _target(self, prompt: Prompt) -> list[int]:
        """Token ids of what follows ``prompt``."""
        where, text = f"row {prompt.row} of {prompt.source}", prompt.columns.get(self.target_column)
        if not isinstance(text, str):
            raise UserError(
                f"--model.target_column {self.target_column}: {where} has no such text "
                f"(its columns: {', '.join(prompt.columns)})"
            )
        ids = [*self.tokenizer(text, add_special_tokens=False)["input_ids"], self.tokenizer.eos_token_id]
        limit = context_length(self.model_config)
        if limit is not None and len(prompt.token_ids) + len(ids) > limit:
            raise UserError(
                f"--model.target_column {self.target_column}: {where} has {len(prompt.token_ids)} + {len(ids)} tokens, "
                f"beyond the {limit} that {self.policy_path} holds; leave such rows out of --data.source"
            )
        return ids
