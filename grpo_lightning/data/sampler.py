"""Which prompts make up each rollout, on each rank, in each epoch; and how to go on where a run stopped."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from typing import Any

from torch.utils.data import Sampler

from grpo_lightning.data.curriculum import Curriculum
from grpo_lightning.errors import UserError

log = logging.getLogger(__name__)


class EpochSampler(Sampler[list[int]]):
    """Batches of prompt numbers: this rank's share of each global batch.

    The order is a function of the seed and the epoch alone, hence the same on all ranks; a curriculum chooses for
    itself, each batch when it is asked for. Prompts are dealt to ranks in turn: prompt ``i`` of rank ``r`` is number
    ``i * world_size + r`` of the global batch, so that a window cut from the first part of every rank's prompts is the
    first part of the global batch, on any number of ranks. What does not fill a batch at an epoch's end is left out of
    that epoch.

    Args:
        prompts: number of prompts.
        batch_size: prompts of a global batch; a multiple of ``world_size``.
        rank: this process's number.
        world_size: number of processes.
        shuffle: new order each epoch; False keeps the data's order.
        seed: of the order.
        curriculum: chooses the prompts of each batch; None takes them in the order of the epoch.
    """

    def __init__(
        self,
        prompts: int,
        *,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        curriculum: Curriculum | None = None,
    ) -> None:
        assert batch_size % world_size == 0, f"{batch_size} prompts cannot be dealt to {world_size} ranks"
        self.prompts = prompts
        self.batch_size = batch_size
        self.rank = rank
        self.world_size = world_size
        self.shuffle = shuffle
        self.seed = seed
        self.curriculum = curriculum
        self.data = ""
        """Fingerprint of the prompts: their numbers mean nothing for others."""
        self.epoch = 0
        self.recounted: tuple[int, int] | None = None
        """Epoch, and batches of it that are done, where a resumed one is cut otherwise than the checkpoint counts."""
        self._opened: tuple[int, list[int]] | None = None
        if curriculum is not None:
            curriculum.begin(batch_size=batch_size, seed=seed)

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning before each epoch."""
        self.epoch = epoch

    def order(self, epoch: int) -> list[int]:
        """All prompt numbers in the order of an epoch."""
        order = list(range(self.prompts))
        if self.shuffle:
            random.Random(f"prompt order, seed {self.seed}, epoch {epoch}").shuffle(order)
        return order

    def batch(self, epoch: int, start: int) -> list[int]:
        """Prompt numbers of a global batch.

        Args:
            epoch: from 0.
            start: prompts that this epoch has handed out before.
        """
        if self.curriculum is not None:
            return self._chosen(self.curriculum, epoch, start)
        if self._opened is None or self._opened[0] != epoch:
            self._opened = (epoch, self.order(epoch))
        return self._opened[1][start : start + self.batch_size]

    def _chosen(self, curriculum: Curriculum, epoch: int, start: int) -> list[int]:
        numbers = curriculum.choose(epoch=epoch, start=start)
        if len(numbers) != self.batch_size or not all(0 <= number < self.prompts for number in numbers):
            raise UserError(
                f"--data.curriculum {type(curriculum).__name__} chose {numbers} in epoch {epoch}, after {start} "
                f"prompts; it must choose {self.batch_size} numbers from 0 to {self.prompts - 1}"
            )
        return numbers

    def __len__(self) -> int:
        return self.prompts // self.batch_size

    def __iter__(self) -> _EpochIterator:
        return _EpochIterator(self)


class _EpochIterator(Iterator[list[int]]):
    """One pass over an epoch, which can be saved and restored at any batch.

    The epoch is looked up at the first batch, not before: Lightning makes the iterator first and names the epoch then.
    """

    def __init__(self, sampler: EpochSampler) -> None:
        self._sampler = sampler
        self._epoch = sampler.epoch
        self._position = 0
        self._opened = False
        self._resumed_epoch: int | None = None

    def __iter__(self) -> _EpochIterator:
        return self

    def __next__(self) -> list[int]:
        sampler = self._sampler
        if not self._opened:
            self._open()
        end = self._position + sampler.batch_size
        if end > sampler.prompts:
            raise StopIteration
        batch = sampler.batch(self._epoch, self._position)
        self._position = end
        return batch[sampler.rank :: sampler.world_size]

    def _open(self) -> None:
        self._epoch = self._sampler.epoch
        self._opened = True
        if self._resumed_epoch is not None and self._resumed_epoch != self._epoch:
            self._position = 0

    def state_dict(self) -> dict[str, Any]:
        """Where the next batch starts: the same on every rank, since rank 0 alone writes it.

        At an epoch's end that is the start of the next epoch; a bare position would skip that epoch on resume.
        """
        sampler = self._sampler
        epoch, position = self._epoch, self._position
        if not self._opened and self._resumed_epoch is None:
            epoch = sampler.epoch
        if position + sampler.batch_size > sampler.prompts:
            epoch, position = epoch + 1, 0
        return {"epoch": epoch, "position": position, "batch_size": sampler.batch_size, "order": self._order_of()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state; on other data, or in another order, from the start of the epoch."""
        sampler = self._sampler
        self._opened = False
        self._resumed_epoch = self._epoch = sampler.epoch = state["epoch"]
        self._position = state["position"]
        changes, before = _changes(state["order"], self._order_of()), state.get("batch_size")
        if changes and self._position:
            log.warning("the checkpoint's prompts are not this run's (%s): the epoch starts again", changes)
            self._position = 0
        elif before != sampler.batch_size and self._position:
            log.info(
                "the epoch goes on after its first %d prompts, in batches of %d prompts instead of %s",
                self._position, sampler.batch_size, before,
            )  # fmt: skip
        if changes or before != sampler.batch_size:
            left = (sampler.prompts - self._position) // sampler.batch_size
            sampler.recounted = self._epoch, len(sampler) - left

    def _order_of(self) -> dict[str, Any]:
        sampler = self._sampler
        order = {"prompts": sampler.prompts, "data": sampler.data, "shuffle": sampler.shuffle, "seed": sampler.seed}
        return order | (sampler.curriculum.settings() if sampler.curriculum is not None else {})


def _changes(before: dict[str, Any], now: dict[str, Any]) -> str:
    names = [name for name in now | before if before.get(name) != now.get(name)]
    values = [f"{name} {before.get(name)} before, {now.get(name)} now" for name in names if name != "data"]
    return ", ".join(["other questions"] * ("data" in names) + values)


def deal_evenly(count: int, *, batch_size: int, rank: int, world_size: int) -> list[list[tuple[int, bool]]]:
    """Batches of an evaluation: every rank has as many batches and prompts as the others, and every prompt counts once.

    Args:
        count: number of prompts.
        batch_size: prompts of a global batch; a multiple of ``world_size``.
        rank: this process's number.
        world_size: number of processes.

    Returns:
        This rank's batches of (prompt number, counts); a prompt that does not count only fills up the last batch.
    """
    assert batch_size % world_size == 0, f"{batch_size} prompts cannot be dealt to {world_size} ranks"
    batches = []
    for start in range(0, count, batch_size):
        numbers = [(number, True) for number in range(start, min(start + batch_size, count))]
        numbers += [(count - 1, False)] * (-len(numbers) % world_size)
        batches.append(numbers[rank::world_size])
    return batches
