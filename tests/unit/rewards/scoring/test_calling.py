"""Calls in this process; those in workers are tried in tests/integration/test_reward_faults.py."""

from __future__ import annotations

import asyncio
import functools
import time
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from grpo_lightning.errors import RunStopped, UserError
from grpo_lightning.rewards.scoring import invocation
from grpo_lightning.rewards.scoring.calling import MOST_FAILURES, CallLog, RewardCaller, _for_workers
from grpo_lightning.rewards.scoring.failures import Failure, stop
from grpo_lightning.rewards.scoring.invocation import answer, load, only_row

KEYWORDS = {"completions": ["a", "bb", "ccc"], "question": ["A?", "B?", "C?"], "trainer_state": None}


def lengths(completions, log_metric=None, log_extra=None, log_count=None):
    log_metric("longest", max(map(len, completions)))
    log_extra("texts", completions)
    log_count("texts", len(completions))
    return torch.tensor([len(completion) for completion in completions])


class Judge:
    def __call__(self, completions, **_):
        return [0.0]


class Waits:
    async def __call__(self, completions, **_):
        return [0.0]


class Module(torch.nn.Module):
    def forward(self, completions, **_):
        return [0.0]


class Marked(Judge):
    inline = True


async def waits(completions, **_):
    return [0.0]


def fails(completions, **_):
    raise ValueError("no")


def of_main(completions, **_):
    return [0.0]


of_main.__module__ = "__main__"


@pytest.mark.parametrize(
    ("reward", "isolated"),
    [
        (lengths, True),
        (Judge(), True),
        (functools.partial(lengths, log_metric=print), True),
        (Marked(), False),
        (Module(), False),
        (waits, False),
        (Waits(), False),
        (functools.partial(waits), False),
        (functools.partial(Waits()), False),
        (functools.partial(functools.partial(Marked())), False),
        (functools.partial(Module()), False),
        (lambda completions: [0.0], False),
        (of_main, False),
    ],
)
def test_what_runs_in_a_worker(reward: Any, isolated: bool) -> None:
    assert (_for_workers("r", reward) is not None) == isolated


def test_a_function_that_cannot_be_isolated_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        RewardCaller([lambda completions: [0.0] * 3, Marked(), waits], ["told_once", "marked", "waits"])
    (record,) = caplog.records
    assert "reward told_once is called in the trainer's process, without a time limit" in record.getMessage()


def test_results_logs_and_awaited_functions_keep_their_places() -> None:
    def plain(completions, log_metric):
        log_metric("longest", 10)
        return [1.0, 2.0, 3.0]

    async def late(completions):
        await asyncio.sleep(0.01)
        return [4.0, 5.0, 6.0]

    log = CallLog(3)
    lengths_here = functools.wraps(lengths)(lambda **keywords: lengths(**keywords))
    lengths_here.inline = True
    results = RewardCaller([late, plain, lengths_here], ["late", "plain", "lengths"]).call(KEYWORDS, log)
    assert results[:2] == [[4.0, 5.0, 6.0], [1.0, 2.0, 3.0]]
    assert results[2].tolist() == [1, 2, 3]
    assert log.metrics == {"longest": [10.0, 3.0]}
    assert log.columns == {"texts": ["a", "bb", "ccc"]}
    assert log.counts == {"rewards/late/timeouts": 0.0, "rewards/lengths/texts": 3.0}


def test_what_a_worker_answers_is_plain() -> None:
    pickled = _for_workers("lengths", lengths)
    assert pickled is not None
    load(pickled)
    assert answer(pickled, "lengths", only_row(KEYWORDS, 1) | {"completions": ["bb"]}, 1, 0) == {
        "result": [2],
        "metrics": {"longest": [2.0]},
        "counts": {"rewards/lengths/texts": 1.0},
        "columns": {"texts": ["bb"]},
    }


@pytest.mark.parametrize(
    ("result", "plain"),
    [
        (np.array([1.5, 2.5]), [1.5, 2.5]),
        ([torch.tensor(1.5), torch.tensor([2.5]), np.float32(0.5), None], [1.5, 2.5, 0.5, None]),
        ([[(np.float64(0.5), 3)], []], [[(0.5, 3)], []]),
        ([Fraction(1, 4), True], [0.25, True]),
        (None, None),
        ({"a": 1}, {"a": 1}),
    ],
)
def test_results_become_plain(result: Any, plain: Any) -> None:
    found = invocation._plain_result(result)
    assert found == plain
    assert [type(entry) for entry in found or []] == [type(entry) for entry in plain or []]


def test_what_no_score_can_be_is_refused() -> None:
    for result in ([object()], iter([1.0]), [1j], {1: object()}):
        with pytest.raises(UserError, match=r"^returned \w+ where a number is due"):
            invocation._plain_result(result)


def test_an_exception_is_placed_by_calling_again() -> None:
    calls = []

    def picky(completions):
        calls.append(list(completions))
        if "ccc" in completions:
            raise ValueError("c")
        if completions == ["a"]:
            raise KeyError("another kind")  # of its own making: it was given one completion
        return [0.0] * len(completions)

    caller = RewardCaller([picky], ["picky"])
    with pytest.raises(RunStopped, match=r"^reward picky failed at row 2: ValueError: c \(its prompt begins 'C\?'\)$"):
        caller.call(KEYWORDS, CallLog(3))
    assert calls == [["a", "bb", "ccc"], ["a"], ["bb"], ["ccc"]]


@pytest.mark.parametrize(
    ("columns", "about"),
    [
        ({"question": [1, 2, 3]}, "its prompt begins 'P'"),
        ({"question": [["a", "b"], {"x": 1}, [{"role": "user"}]]}, "its prompt begins 'P'"),
        ({"question": [None, None, [{"content": "Well?"}]]}, r"its prompt begins 'Well\?'"),
    ],
)
def test_any_column_may_be_called_question(columns: dict[str, Any], about: str) -> None:
    def picky(completions):
        if "ccc" in completions:
            raise ValueError("c")
        return [0.0] * len(completions)

    keywords = {**KEYWORDS, "prompts": [[{"role": "user", "content": "P"}]] * 3, **columns}
    with pytest.raises(RunStopped, match=rf"^reward picky failed at row 2: ValueError: c \({about}\)$"):
        RewardCaller([picky], ["picky"]).call(keywords, CallLog(3))


def test_a_traceback_shows_the_users_frames_only(caplog: pytest.LogCaptureFixture) -> None:
    async def raises_late(completions):
        await asyncio.sleep(0)
        raise ValueError("late")

    with pytest.raises(RunStopped):
        RewardCaller([raises_late], ["raises_late"]).call(KEYWORDS, CallLog(3))
    (record,) = caplog.records
    assert record.getMessage().count("File ") == 1
    assert 'raise ValueError("late")' in record.getMessage()
    pickled = _for_workers("fails", fails)
    assert pickled is not None
    load(pickled)
    assert answer(pickled, "fails", KEYWORDS, 3, 0)["failure"][3].count("File ") == 1


def test_no_graph_is_kept_of_what_an_inline_reward_computes() -> None:
    enabled = []

    def looks(completions):
        enabled.append(torch.is_grad_enabled())
        return [0.0] * 3

    RewardCaller([looks], ["looks"]).call(KEYWORDS, CallLog(3))
    assert enabled == [False]
    assert torch.is_grad_enabled()


def test_user_errors_and_broken_exceptions() -> None:
    def refuses(completions):
        raise UserError("this file is missing")

    class Silent(Exception):
        def __str__(self):
            raise RuntimeError

    def silent(completions):
        raise Silent

    with pytest.raises(UserError, match=r"^reward refuses: this file is missing$"):
        RewardCaller([refuses], ["refuses"]).call(KEYWORDS, CallLog(3))
    with pytest.raises(RunStopped, match=r"^reward silent failed at row 0: Silent: \(its message cannot be printed\)"):
        RewardCaller([silent], ["silent"]).call(KEYWORDS, CallLog(3))


def test_the_search_for_the_row_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_lightning.rewards.scoring.failures.SEARCH_SECONDS", 0.05)
    failure = Failure("ValueError", "x", None, "", False)
    asked = []

    def again(row: int) -> None:
        asked.append(row)
        time.sleep(0.02)

    with pytest.raises(RunStopped, match=r"^reward slow failed: ValueError: x$"):
        stop("slow", failure, {}, 1000, again=again)
    assert 2 <= len(asked) <= 4


def test_an_async_reward_that_is_late_is_cancelled_and_in_the_end_stops_the_run() -> None:
    cancelled = []

    async def late(completions):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    async def own_timeout(completions):
        raise TimeoutError("of its own")

    caller = RewardCaller([late], ["late"], time_limit=0.01, on_timeout=-2.0)
    for _ in range(MOST_FAILURES - 1):
        log = CallLog(3)
        assert caller.call(KEYWORDS, log) == [[-2.0] * 3]
        assert log.counts == {"rewards/late/timeouts": 3.0}
    with pytest.raises(RunStopped, match=r"^reward late: 8 calls in a row were not scored within 0\.01 s"):
        caller.call(KEYWORDS, CallLog(3))
    assert len(cancelled) == MOST_FAILURES
    with pytest.raises(RunStopped, match=r"^reward own failed at row 0: TimeoutError: of its own"):
        RewardCaller([own_timeout], ["own"]).call(KEYWORDS, CallLog(3))


@pytest.mark.parametrize("options", [{"time_limit": 0}, {"time_limit": float("inf")}, {"memory_limit_gib": -1}])
def test_limits_that_mean_nothing(options: dict[str, float]) -> None:
    with pytest.raises(UserError, match=r"--rollout\.reward_(time_limit|memory_limit_gib) \S+ must be"):
        RewardCaller([lengths], ["lengths"], **options)
