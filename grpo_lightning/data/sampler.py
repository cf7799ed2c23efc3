"""Which prompts make up each rollout, on each rank, in each epoch; and how to go on where a run stopped."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from typing import Any

from torch.utils.data import Sampler

log = logging.getLogger(__name__)


class EpochSampler(Sampler[list[int]]):
    """Batches of prompt numbers: this rank's share of each global batch.

    The order is a function of the seed and the epoch alone, hence the same on all ranks. Prompts are dealt to ranks in
    turn: prompt ``i`` of rank ``r`` is number ``i * world_size + r`` of the global batch, so that a window cut from the
    first part of every rank's prompts is the first part of the global batch, on any number of ranks. What does not
    fill a batch at an epoch's end is left out of that epoch.

    Args:
        prompts: number of prompts.
        batch_size: prompts of a global batch; a multiple of ``world_size``.
        rank: this process's number.
        world_size: number of processes.
        shuffle: new order each epoch; False keeps the data's order.
        seed: of the order.
    """

    def __init__(
        self, prompts: int, *, batch_size: int, rank: int = 0, world_size: int = 1, shuffle: bool = True, seed: int = 0
    ) -> None:
        assert batch_size % world_size == 0, f"{batch_size} prompts cannot be dealt to {world_size} ranks"
        self.prompts = prompts
        self.batch_size = batch_size
        self.rank = rank
        self.world_size = world_size
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning before each epoch."""
        self.epoch = epoch

    def order(self, epoch: int) -> list[int]:
        """All prompt numbers in the order of an epoch."""
        order = list(range(self.prompts))
        if self.shuffle:
            random.Random(f"prompt order, seed {self.seed}, epoch {epoch}").shuffle(order)
        return order

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
        self._order: list[int] | None = None
        self._epoch = sampler.epoch
        self._position = 0
        self._resumed_epoch: int | None = None

    def __iter__(self) -> _EpochIterator:
        return self

    def __next__(self) -> list[int]:
        sampler = self._sampler
        if self._order is None:
            self._open()
        assert self._order is not None
        end = self._position + sampler.batch_size
        if end > sampler.prompts:
            raise StopIteration
        batch = self._order[self._position : end]
        self._position = end
        return batch[sampler.rank :: sampler.world_size]

    def _open(self) -> None:
        self._epoch = self._sampler.epoch
        self._order = self._sampler.order(self._epoch)
        if self._resumed_epoch is not None and self._resumed_epoch != self._epoch:
            self._position = 0

    def state_dict(self) -> dict[str, Any]:
        """Where the next batch starts: the same on every rank, since rank 0 alone writes it.

        At an epoch's end that is the start of the next epoch; a bare position would skip that epoch on resume.
        """
        sampler = self._sampler
        epoch, position = self._epoch, self._position
        if self._order is None and self._resumed_epoch is None:
            epoch = sampler.epoch
        if position + sampler.batch_size > sampler.prompts:
            epoch, position = epoch + 1, 0
        return {"epoch": epoch, "position": position, "order": self._order_of()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state; on other data, or in another order, from the start of the epoch."""
        self._order = None
        self._resumed_epoch = self._epoch = self._sampler.epoch = state["epoch"]
        self._position = state["position"]
        if state["order"] != self._order_of() and self._position:
            log.warning(
                "the checkpoint was made with prompts %s, this run has %s: the epoch starts again from its beginning",
                state["order"], self._order_of(),
            )  # fmt: skip
            self._position = 0

    def _order_of(self) -> dict[str, Any]:
        return {"prompts": self._sampler.prompts, "shuffle": self._sampler.shuffle, "seed": self._sampler.seed}


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
