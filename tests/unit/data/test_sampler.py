from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from grpo_lightning.data.curriculum import ByColumn, ByPassRate, Curriculum, Measurement
from grpo_lightning.data.sampler import EpochSampler, deal_evenly
from grpo_lightning.errors import UserError
from grpo_lightning.types import Prompt


def _loader(prompts: int = 10, batch_size: int = 4, **arguments: Any) -> StatefulDataLoader:
    sampler = EpochSampler(prompts, batch_size=batch_size, **arguments)

    class Numbers(torch.utils.data.Dataset):
        def __getitem__(self, numbers: list[int]) -> list[int]:
            return numbers

    return StatefulDataLoader(Numbers(), batch_size=None, sampler=sampler, collate_fn=lambda numbers: numbers)


def _epochs(loader: StatefulDataLoader, epochs: range, *, resumed: bool = False) -> list[list[int]]:
    """The batches of some epochs, in the order of Lightning's calls: a resumed loader is iterated once, before the
    epoch is named, and that iterator serves the first epoch."""
    batches = []
    iterator = iter(loader) if resumed else None
    for epoch in epochs:
        loader.sampler.set_epoch(epoch)
        iterator = iter(loader) if iterator is None else iterator
        batches += list(iterator)
        iterator = None
    return batches


def test_each_prompt_once_and_the_tail_left_out() -> None:
    loader = _loader()
    assert len(loader) == 2
    used = [number for batch in loader for number in batch]
    assert len(used) == len(set(used)) == 8


def test_new_order_each_epoch_same_for_the_same_seed() -> None:
    sampler = EpochSampler(100, batch_size=4, seed=1)
    assert sampler.order(0) == EpochSampler(100, batch_size=8, rank=1, world_size=2, seed=1).order(0)
    assert sorted(sampler.order(0)) == sorted(sampler.order(1)) == list(range(100))
    assert sampler.order(0) != sampler.order(1)
    assert sampler.order(0) != EpochSampler(100, batch_size=4, seed=2).order(0)


def test_without_shuffling_the_data_order_stays() -> None:
    assert _epochs(_loader(shuffle=False), range(2)) == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_are_dealt_the_global_batch_in_turn(world_size: int) -> None:
    whole = _epochs(_loader(), range(2))
    shares = [_epochs(_loader(rank=rank, world_size=world_size), range(2)) for rank in range(world_size)]
    for number, batch in enumerate(whole):
        assert [shares[i % world_size][number][i // world_size] for i in range(4)] == batch


def test_resume_from_every_position_of_three_epochs() -> None:
    whole = _epochs(_loader(), range(3))
    assert len(whole) == 6
    for done in range(6):
        # Stop after `done` batches, as a checkpoint written at a batch's end does.
        loader = _loader()
        epoch, within = divmod(done, 2)
        for past in range(epoch):
            loader.sampler.set_epoch(past)
            list(loader)
        loader.sampler.set_epoch(epoch)
        iterator = iter(loader)
        for _ in range(within):
            next(iterator)
        fresh = _loader()
        fresh.load_state_dict(loader.state_dict())
        assert _epochs(fresh, range(epoch, 3), resumed=True) == whole[done:], done


def test_state_at_an_epochs_end_starts_the_next_epoch() -> None:
    whole = _epochs(_loader(), range(3))
    for epoch in range(2):
        loader = _loader()
        loader.sampler.set_epoch(epoch)
        iterator = iter(loader)
        for _ in range(2):  # to the last batch, but not to the end of the iteration
            next(iterator)
        state = loader.state_dict()
        fresh = _loader()
        fresh.load_state_dict(state)
        assert _epochs(fresh, range(epoch + 1, 3), resumed=True) == whole[2 * (epoch + 1) :]
        # Without anybody who names the epoch, the state itself knows it.
        fresh = _loader()
        fresh.load_state_dict(state)
        assert list(fresh) == whole[2 * (epoch + 1) : 2 * (epoch + 2)]


def test_an_epoch_that_was_cut_short_is_not_gone_on_with_in_the_next_one() -> None:
    loader = _loader()
    next(iter(loader))  # Lightning's limit_train_batches=1
    fresh = _loader()
    fresh.load_state_dict(loader.state_dict())
    assert _epochs(fresh, range(1, 2), resumed=True) == _epochs(_loader(), range(1, 2))


def test_a_second_resume_loses_nothing() -> None:
    whole = _epochs(_loader(40, 4), range(1))
    loader = _loader(40, 4)
    seen: list[list[int]] = []
    for _ in range(5):
        state = loader.state_dict()
        loader = _loader(40, 4)
        loader.load_state_dict(state)
        state = loader.state_dict()  # saved again before a single batch
        loader = _loader(40, 4)
        loader.load_state_dict(state)
        iterator = iter(loader)
        seen += [next(iterator), next(iterator)]
    assert seen == whole


def test_state_is_the_same_on_every_rank_and_serves_another_number_of_ranks() -> None:
    states = []
    for rank in range(2):
        loader = _loader(rank=rank, world_size=2)
        next(iter(loader))
        states.append(loader.state_dict())
    assert states[0] == states[1]
    alone = _loader()
    alone.load_state_dict(states[1])
    assert list(alone) == _epochs(_loader(), range(1))[1:]


def test_other_batches_go_on_where_the_epoch_is(caplog: pytest.LogCaptureFixture) -> None:
    loader = _loader(22)
    iterator = iter(loader)
    asked = [number for _ in range(2) for number in next(iterator)]
    for size, done in ((4, None), (6, 1), (2, 4), (10, 1), (22, 1)):  # of 22 // size batches, with 14 prompts to go
        other = _loader(22, size)
        other.load_state_dict(loader.state_dict())
        with caplog.at_level(logging.INFO):
            batches = list(other)
        assert [len(batch) for batch in batches] == [size] * (14 // size)
        assert not {number for batch in batches for number in batch} & set(asked)
        assert other.sampler.recounted == (None if done is None else (0, done)), size
        assert (f"after its first 8 prompts, in batches of {size} prompts" in caplog.text) == (size != 4)


def test_state_of_other_data_starts_the_epoch_again(caplog: pytest.LogCaptureFixture) -> None:
    loader = _loader(10)
    next(iter(loader))
    for count, data, changes in ((12, "", "prompts 10 before, 12 now"), (10, "f00", "other questions")):
        other = _loader(count)
        other.sampler.data = data
        other.load_state_dict(loader.state_dict())
        with caplog.at_level(logging.WARNING):
            assert list(other) == _epochs(_loader(count), range(1))
        assert f"the checkpoint's prompts are not this run's ({changes}): the epoch starts again" in caplog.text
        assert other.sampler.recounted == (0, 0)


# --- a curriculum ---------------------------------------------------------------------------------------------------


def _curriculum(kind: type[Curriculum], count: int = 10, **arguments: Any) -> Curriculum:
    curriculum = kind(**arguments)
    curriculum.prepare([Prompt(token_ids=[1], text="", columns={"level": n % 3}, row=n) for n in range(count)])
    return curriculum


def _asked(loader: StatefulDataLoader, epochs: range, *, stop: int = -1, resumed: bool = False) -> list[list[int]]:
    """As ``_epochs``, telling the curriculum after each batch what came of it; stops after ``stop`` batches."""
    curriculum, batches = loader.sampler.curriculum, []
    iterator = iter(loader) if resumed else None
    for epoch in epochs:
        loader.sampler.set_epoch(epoch)
        iterator = iter(loader) if iterator is None else iterator
        while len(batches) != stop and (batch := next(iterator, None)) is not None:
            batches.append(batch)
            # A pass rate that is a function of the prompt and the time.
            curriculum.record(
                [Measurement(number=n, rewards=[1.0] * ((n + epoch) % 3) + [0.0] * 2, terms={}) for n in batch]
            )
        if len(batches) == stop:
            break
        iterator = None
    return batches


@pytest.mark.parametrize("kind", [ByColumn, ByPassRate])
def test_a_curriculum_resumes_from_every_position_of_three_epochs(kind: type[Curriculum]) -> None:
    def fresh() -> StatefulDataLoader:
        return _loader(curriculum=_curriculum(kind), seed=7)

    whole = _asked(fresh(), range(3))
    assert len(whole) == 6, "an epoch has as many rollouts as without a curriculum"
    assert len({tuple(batch) for batch in whole}) == 6
    for done in range(1, 6):
        loader = fresh()
        assert _asked(loader, range(3), stop=done) == whole[:done]
        resumed = fresh()
        resumed.load_state_dict(loader.state_dict())
        resumed.sampler.curriculum.load_state_dict(loader.sampler.curriculum.state_dict())
        assert _asked(resumed, range(done // 2, 3), resumed=True) == whole[done:], done


@pytest.mark.parametrize("kind", [ByColumn, ByPassRate])
def test_ranks_share_what_a_curriculum_chose(kind: type[Curriculum]) -> None:
    whole = _epochs(_loader(curriculum=_curriculum(kind)), range(2))
    shares = [_loader(curriculum=_curriculum(kind), rank=rank, world_size=2) for rank in range(2)]
    states = [loader.state_dict() for loader in shares]
    assert states[0] == states[1]
    dealt = [_epochs(loader, range(2)) for loader in shares]
    assert [[n for pair in zip(*parts, strict=True) for n in pair] for parts in zip(*dealt, strict=True)] == whole


def test_a_batch_is_chosen_when_it_is_asked_for() -> None:
    curriculum = _curriculum(ByPassRate, revisit=1e-9)
    iterator = iter(_loader(curriculum=curriculum, batch_size=5))
    first = next(iterator)
    curriculum.record([Measurement(number=n, rewards=[1.0], terms={}) for n in first])
    assert sorted(next(iterator)) == sorted(set(range(10)) - set(first)), "what was solved just now is not asked again"


def test_another_curriculum_starts_the_epoch_again(caplog: pytest.LogCaptureFixture) -> None:
    loader = _loader()
    next(iter(loader))
    other = _loader(curriculum=_curriculum(ByColumn))
    other.load_state_dict(loader.state_dict())
    with caplog.at_level(logging.WARNING):
        assert len(list(other)) == 2
    assert "the epoch starts again" in caplog.text


def test_a_curriculum_may_choose_a_prompt_twice() -> None:
    class Twice(ByPassRate):
        def choose(self, *, epoch: int, start: int) -> list[int]:
            return [3, 1, 3, 2]

    curriculum = _curriculum(Twice)
    assert next(iter(_loader(curriculum=curriculum))) == [3, 1, 3, 2]
    asked = [curriculum.prompts[number] for number in (3, 1, 3)]
    measured: list[Measurement] = []
    curriculum.record = lambda measurements: measured.extend(measurements) or {}  # type: ignore[method-assign]
    curriculum.measure(asked, torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]]), {})
    assert [(of.number, of.rewards) for of in measured] == [(1, [0.0, 0.0]), (3, [1.0, 0.0]), (3, [1.0, 1.0])]


@pytest.mark.parametrize("chosen", [[0, 1, 2], [0, 1, 2, 10], [-1, 0, 1, 2]])
def test_a_curriculum_that_chooses_what_there_is_not(chosen: list[int]) -> None:
    class Wrong(ByPassRate):
        def choose(self, *, epoch: int, start: int) -> list[int]:
            return chosen

    with pytest.raises(UserError, match=r"--data\.curriculum Wrong chose .* must choose 4 numbers from 0 to 9"):
        next(iter(_loader(curriculum=_curriculum(Wrong))))


# --- evaluation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "batch_size", "world_size"), [(7, 4, 1), (7, 4, 2), (7, 4, 4), (8, 4, 2), (1, 4, 4)])
def test_evaluation_counts_every_prompt_once_with_equal_ranks(count: int, batch_size: int, world_size: int) -> None:
    ranks = [deal_evenly(count, batch_size=batch_size, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert len({tuple(len(batch) for batch in batches) for batches in ranks}) == 1
    counted = sorted(number for batches in ranks for batch in batches for number, counts in batch if counts)
    assert counted == list(range(count))
    assert deal_evenly(7, batch_size=4, rank=1, world_size=2) == [[(1, True), (3, True)], [(5, True), (6, False)]]
