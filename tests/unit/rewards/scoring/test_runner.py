from __future__ import annotations

import asyncio
import functools
import math
import threading

import numpy
import pytest

from grpo_lightning.errors import UserError
from grpo_lightning.rewards import RewardScorer
from grpo_lightning.rewards.scoring.runner import TRAINER_KEYWORDS
from grpo_lightning.types import Completion, Prompt


def completion(text, ids=(1, 2)):
    return Completion(token_ids=list(ids), logprobs=[0.0] * len(ids), finished=True, text=text)


def rollout():
    chat = Prompt(
        token_ids=[1],
        text="<u>q</u>",
        messages=[{"role": "user", "content": "q"}],
        columns={"answer": "4", "level": 1},
        prefill="<think>",
    )
    plain = Prompt(token_ids=[2], text="Q:", columns={"answer": "5"})
    return [chat, plain], [[completion("a"), completion("b")], [completion("c"), completion("", ids=())]]


def score(*rewards, weights=None, **keywords):
    return RewardScorer(rewards, reward_weights=weights).score(*rollout(), **keywords)


def test_functions_get_trl_keywords():
    seen = {}

    def reward(**keywords):
        seen.update(keywords)
        return [0.0] * 4

    state = object()
    score(reward, trainer_state=state)
    user = [{"role": "user", "content": "q"}]
    assert seen["prompts"] == [user, user, "Q:", "Q:"]
    assert seen["completions"] == [
        [{"role": "assistant", "content": "<think>a"}],
        [{"role": "assistant", "content": "<think>b"}],
        "c",
        "",
    ]
    assert seen["completion_ids"] == [[1, 2], [1, 2], [1, 2], []]
    assert seen["answer"] == ["4", "4", "5", "5"]
    assert seen["level"] == [1, 1, None, None]
    assert seen["trainer_state"] is state


def test_keywords_that_no_column_may_have():
    seen = {}

    def reward(**keywords):
        seen.update(keywords)
        return [0.0]

    RewardScorer([reward]).score([Prompt(token_ids=[1], text="Q")], [[completion("a")]])
    assert sorted(seen) == sorted(TRAINER_KEYWORDS)


def test_a_function_without_kwargs_gets_what_it_names():
    def reward(completions, answer, scale=2.0):
        return [scale * float(a == "4") for a in answer]

    assert score(reward).terms["reward"] == [[2.0, 2.0], [0.0, 0.0]]


def test_total_is_the_weighted_sum_of_what_applies():
    def first(**_):
        return [1.0, None, 3, None]

    def second(**_):
        return [10.0, 20.0, None, None]

    scores = score(first, second, weights=[2.0, 0.5])
    assert scores.total[0] == [7.0, 10.0]
    assert scores.total[1][0] == 6.0
    assert math.isnan(scores.total[1][1])
    assert math.isnan(scores.terms["first"][0][1])
    assert scores.terms["second"][0] == [10.0, 20.0]


def test_names_are_distinct():
    class Judge:
        def __call__(self, completions, **_):
            return [True] * len(completions)

    def judge(**_):
        return [0.0] * 4

    assert list(score(Judge(), judge, Judge(), judge).terms) == ["Judge", "judge", "Judge_2", "judge_2"]
    assert score(Judge()).total == [[1.0, 1.0], [1.0, 1.0]]


def test_logged_metrics_and_columns():
    def reward(completions, log_extra, log_metric, **_):
        log_metric("length", 2)
        log_metric("length", [4, None, 9.5])
        log_metric("array", numpy.array([1, 2]))
        log_metric("scalar", numpy.float32(0.5))
        log_extra("parsed", list("wxyz"))
        return [0.0] * 4

    scores = score(reward)
    assert scores.metrics == {"length": [2.0, 4.0, 9.5], "array": [1.0, 2.0], "scalar": [0.5]}
    assert scores.columns == {"parsed": ["w", "x", "y", "z"]}

    def short(log_extra, **_):
        log_extra("parsed", [1])

    with pytest.raises(UserError, match=r"log_extra.*1 values for 4"):
        score(short)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([0.0] * 3, "reward bad returned 3 scores for 4"),
        ([0.0, math.nan, 0.0, 0.0], "reward bad returned nan for row 1"),
        ([0.0, 0.0, math.inf, 0.0], "reward bad returned inf for row 2"),
        ([0.0, "1", 0.0, 0.0], "reward bad returned '1' for row 1"),
        (1.0, "reward bad returned float"),
        (None, "reward bad returned NoneType"),
        ({"a": 1}, "reward bad returned dict"),
    ],
)
def test_bad_returns_are_refused(result, message):
    def bad(**_):
        return result

    with pytest.raises(UserError, match=message) as caught:
        score(bad)
    assert "\n" not in str(caught.value)


def test_an_exception_names_function_and_row():
    class RowError(ValueError):
        row = 3

    def broken(**_):
        raise RowError("x")

    def plain(**_):
        raise KeyError("y")

    async def late(**_):
        raise RowError("z")

    with pytest.raises(RuntimeError, match="reward broken failed at row 3: RowError: x"):
        score(broken)
    with pytest.raises(RuntimeError, match="reward plain failed at row 0: KeyError: 'y'"):
        score(plain)
    with pytest.raises(RuntimeError, match="reward late failed at row 3: RowError: z"):
        score(late)


def test_a_missing_column_is_named():
    def reward(completions, solution):
        return [0.0] * 4

    with pytest.raises(UserError, match="reward reward needs a column 'solution'"):
        score(reward)


def test_a_keyword_that_is_nearly_right_is_named():
    def reward(completion, answer):
        return [0.0] * 4

    with pytest.raises(UserError, match=r"column 'completion' .*; did you mean 'completions'\?$"):
        score(reward)


def test_async_rewards_run_together():
    arrived = []

    def make(name, value):
        async def reward(completions, **_):
            arrived.append(name)
            while len(arrived) < 2:  # each waits for the other: one after the other would never end
                await asyncio.sleep(0.001)
            return [value] * len(completions)

        return reward

    async def inside_a_loop():
        return score(make("a", 1.0), make("b", 2.0))

    done = []
    thread = threading.Thread(target=lambda: done.append(asyncio.run(inside_a_loop())), daemon=True)
    thread.start()
    thread.join(10)
    assert done
    assert done[0].total == [[3.0, 3.0], [3.0, 3.0]]


def test_bad_settings():
    with pytest.raises(UserError, match=r"--rollout.rewards is empty"):
        RewardScorer([])
    with pytest.raises(UserError, match=r"--rollout.reward_weights has 1 numbers for 2"):
        RewardScorer([min, max], reward_weights=[1.0])


def test_missing_columns_are_found_without_completions():
    def plain(completions, prompts, answer, bonus=0.0):
        return [0.0]

    class Graded:
        def __call__(self, *, completions, level, log_metric, **columns):
            return [0.0]

    scorer = RewardScorer([plain, Graded()])
    scorer.require_columns(["answer", "level"])
    with pytest.raises(UserError, match=r"^reward Graded needs a column 'level' .* \(its columns: answer, question\)$"):
        scorer.require_columns(["question", "answer"])


def test_a_function_with_bound_arguments_keeps_its_name():
    def scaled(completions, factor):
        return [factor] * 4

    scorer = RewardScorer([functools.partial(scaled, factor=2.0), functools.partial(scaled, factor=3.0)])
    assert scorer.names == ["scaled", "scaled_2"]
    assert scorer.score(*rollout()).total == [[5.0, 5.0], [5.0, 5.0]]
