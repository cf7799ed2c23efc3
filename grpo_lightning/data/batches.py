"""The loaders: batches of prompts for training and for evaluation, on each rank."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

from grpo_lightning.data.sampler import EpochSampler, deal_evenly
from grpo_lightning.errors import UserError
from grpo_lightning.types import Prompt, PromptBatch

log = logging.getLogger(__name__)


def train_loader(prompts: list[Prompt], sampler: EpochSampler) -> StatefulDataLoader:
    """This rank's share of every rollout's prompts; its state is where the next batch starts.

    Args:
        prompts: all that there are to train on.
        sampler: which of them make up each batch.
    """
    sampler.data = fingerprint(prompts)
    positions = range(sampler.rank, sampler.batch_size, sampler.world_size)
    return StatefulDataLoader(
        _TrainBatches(prompts, list(positions)), batch_size=None, sampler=sampler, **_without_workers()
    )


def fingerprint(prompts: list[Prompt]) -> str:
    """Of the questions and their order; not of how they are put to the model."""
    digest = hashlib.blake2b(digest_size=8)
    for prompt in prompts:
        digest.update(repr(prompt.columns.get("question", prompt.text)).encode())
    return digest.hexdigest()


def eval_loader(prompts: list[Prompt], *, batch_size: int, rank: int, world_size: int) -> DataLoader:
    """This rank's share of an evaluation, see ``deal_evenly``."""
    dealt = deal_evenly(len(prompts), batch_size=batch_size, rank=rank, world_size=world_size)
    return DataLoader(_EvalBatches(prompts, dealt), batch_size=None, **_without_workers())


def require_validation_within(batches: float, *, every: float) -> None:
    """Lightning counts an interval of whole batches anew in each epoch: one that is longer never ends.

    Args:
        batches: of an epoch.
        every: ``--trainer.val_check_interval``; a share of the epoch if it is a float.

    Raises:
        UserError: with the longest interval that there is.
    """
    if isinstance(every, int) and every > batches:
        raise UserError(
            f"--trainer.val_check_interval {every}: an epoch has {batches} batches; nearest valid: {batches}, or count "
            "on over all epochs with --trainer.check_val_every_n_epoch null"
        )


class _TrainBatches(Dataset[PromptBatch]):
    """Makes a fresh batch of the prompts with the given numbers: a rollout is attached to it, and let go with it."""

    def __init__(self, prompts: list[Prompt], positions: list[int]) -> None:
        self.prompts = prompts
        self.positions = positions

    def __getitem__(self, numbers: list[int]) -> PromptBatch:
        return PromptBatch([self.prompts[number] for number in numbers], self.positions)


class _EvalBatches(Dataset[PromptBatch]):
    """Batches of prompts in order, with copies that do not count where a rank would come up short."""

    def __init__(self, prompts: list[Prompt], dealt: list[list[tuple[int, bool]]]) -> None:
        self.prompts = prompts
        self.dealt = dealt

    def __len__(self) -> int:
        return len(self.dealt)

    def __getitem__(self, number: int) -> PromptBatch:
        batch = self.dealt[number]
        prompts = [
            self.prompts[i] if counts else dataclasses.replace(self.prompts[i], valid=False) for i, counts in batch
        ]
        return PromptBatch(prompts, [i for i, _ in batch])


def _without_workers() -> dict[str, Any]:
    # A loader draws a seed for workers it does not have; not from the run's own random stream.
    return {"collate_fn": _as_it_is, "generator": torch.Generator()}


def _as_it_is(batch: Any) -> Any:
    return batch


def report_epoch(name: str, prompts: int, batch: int, flags: str, *, shuffle: bool) -> None:
    """Say how many batches an epoch has, and how many prompts do not fill the last one.

    Args:
        name: of the source.
        prompts: that there are.
        batch: prompts of a batch over all ranks.
        flags: that made it so.
        shuffle: whether each epoch has its own order.
    """
    batches, left = divmod(prompts, batch)
    log.info("%s: %d prompts, %d batches an epoch", name, prompts, batches)
    if left:
        which = "others each time" if shuffle else "always the last ones, since --data.shuffle is false"
        log.warning(
            "%s: %d of %d prompts do not fill a batch of %s and are left out of each epoch (%s)",
            name, left, prompts, flags, which,
        )  # fmt: skip
