"""Golds as their own completions: which layouts are tried, what stops a run and what is only told."""

from __future__ import annotations

import functools
import json
import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from grpo_lightning import ranks
from grpo_lightning.callbacks import gold_check
from grpo_lightning.callbacks.gold_check import GoldCheck, gold_checks, spread
from grpo_lightning.data.answer_formats import ANSWER_FORMATS, AnswerFormatName
from grpo_lightning.data.arithmetic import RunningTotals, running_total_accuracy
from grpo_lightning.data.gsm8k import split_answer
from grpo_lightning.errors import UserError
from grpo_lightning.rewards import (
    GSM8KAccuracy,
    RewardScorer,
    ShapedAccuracy,
    TieredAccuracy,
    best,
    exact_answer,
    exact_answer_as_published,
    gold_reader,
    gsm8k_accuracy,
    inline,
    math_accuracy,
    multiple_choice,
)
from grpo_lightning.types import Prompt
from tests.unit.data.character_tokenizer import letters

SHARED = Path(__file__).parents[4] / "shared" / "data"
TOKENIZER = letters()
HASHES = re.compile(r"####\s*(\S+)\s*\Z")
TAGS = re.compile(r"<answer>\s*(\S+)\s*</answer>\s*\Z")


def check_all_golds(*arguments: Any, **settings: Any) -> None:
    for check in gold_checks(*arguments, **settings):
        check()


class Reward:
    """Pays for the gold where ``pattern`` finds it, cannot read "?" and does not apply to "chat"; keeps the texts."""

    inline = True
    __name__ = "found"

    def __init__(self, pattern: re.Pattern[str], *, best: float | None = 1.0) -> None:
        self.pattern = pattern
        if best is not None:
            self.best = best
        self.seen: list[str] = []
        self.ids: list[list[int]] = []

    def __call__(
        self, completions: list[Any], answer: list[Any], completion_ids: list[Any], log_count: Any
    ) -> list[float | None]:
        texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
        self.seen += texts
        self.ids += completion_ids
        scores: list[float | None] = []
        for text, gold in zip(texts, answer, strict=True):
            match = self.pattern.search(text)
            right = match is not None and match.group(1) == gold
            scores.append(None if gold in ("?", "chat") else getattr(self, "best", 1.0) * right)
        log_count("unreadable_golds", answer.count("?"))
        return scores


def prompts(golds: list[Any], *, prefill: str = "", **columns: Any) -> list[Prompt]:
    return [
        Prompt(
            token_ids=[1],
            text="Q",
            columns={"answer": gold, **columns},
            prefill=prefill,
            source="sums",
            row=10 + number,
        )
        for number, gold in enumerate(golds)
    ]


def check(reward: Any, rows: list[Prompt], asked: AnswerFormatName, *, most: int = 1000) -> None:
    checker = GoldCheck(ANSWER_FORMATS[asked], tokenizer=TOKENIZER, most=most)
    checker.check(RewardScorer([reward]), rows, what="--rollout.rewards found")


def test_the_asked_for_layout_is_tried_first_and_is_enough() -> None:
    reward = Reward(TAGS, best=2.0)
    check(reward, prompts(["5", "6"]), "think_answer")
    assert reward.seen == ["<answer>5</answer>", "<answer>6</answer>"]
    assert reward.ids == [TOKENIZER.encode(text) for text in reward.seen]


def test_a_reward_with_bound_arguments_is_marked_as_the_reward_is() -> None:
    reward = Reward(TAGS, best=2.0)
    check(functools.partial(reward), prompts(["5"]), "think_answer")
    assert reward.seen == ["<answer>5</answer>"]


def test_the_whole_layout_with_its_work_is_tried_next() -> None:
    reward = Reward(re.compile(r"</think>\n<answer>\n(\S+)\n</answer>"))
    check(reward, prompts(["5"]), "think_answer")
    assert reward.seen[1:] == ["<think>\n...\n</think>\n<answer>\n5\n</answer>"]
    check(reward, prompts(["5"], solution="2+3=5\n#### 5"), "think_answer")
    assert reward.seen[3:] == ["<think>\n2+3=5\n</think>\n<answer>\n5\n</answer>"]


def test_a_layout_that_nobody_asked_for_is_told(caplog: pytest.LogCaptureFixture) -> None:
    check(Reward(TAGS), prompts(["5", "6"], solution="2+3=5"), "none")
    assert "answers are right if laid out as 'think_answer', which --data.template.answer_format none" in caplog.text
    caplog.clear()
    check(Reward(HASHES), prompts(["5"], solution="2+3=5\n#### 5"), "none")  # the data's own solutions show it
    check(Reward(TAGS), prompts(["5", "6"]), "think_answer")
    assert not caplog.text


@pytest.mark.parametrize("asked", [name for name in ANSWER_FORMATS if name not in ("hashes", "none")])
def test_another_layout_than_the_asked_for_one_stops_the_run(asked: AnswerFormatName) -> None:
    with pytest.raises(UserError) as stop:
        check(Reward(HASHES), prompts(["5", "6"]), asked)
    assert str(stop.value) == (
        "--rollout.rewards found: 2 of 2 golds of sums (100.0%) do not earn its best, 1, when they are laid out as the "
        "prompt asks; at most 1% may, 0 of 2: row 10 '5' (0), row 11 '6' (0); mend the rows or choose a fitting reward "
        "or --data.template.answer_format, or start all the same with --rollout.check_golds 0"
    )


@pytest.mark.parametrize("pattern", [HASHES, TAGS, re.compile(r"boxed\{(\S+)\}"), re.compile(r"答案: (\S+)")])
def test_where_the_prompt_leaves_the_layout_open_every_layout_counts(pattern: re.Pattern[str]) -> None:
    check(Reward(pattern), prompts(["5", "6"]), "none")
    with pytest.raises(UserError):
        check(Reward(re.compile(r"=> (\S+)")), prompts(["5"]), "none")


def test_a_solution_is_a_layout_of_its_own_where_the_prompt_leaves_it_open() -> None:
    check(Reward(re.compile(r"=> (\S+)\Z")), prompts(["5"], solution="2+3 => 5"), "none")


def test_a_tag_that_the_template_has_opened_is_gone_on_with_or_closed() -> None:
    reward = Reward(re.compile(r"\A<think>\n\.\.\.\n</think>\n<answer>\n(\S+)\n</answer>"))
    check(reward, prompts(["5"], prefill="<think>\n"), "think_answer")
    reward = Reward(re.compile(r"\A<think>\n\n</think>\n\\boxed\{(\S+)\}"))
    check(reward, prompts(["5"], prefill="<think>\n"), "boxed")
    reward = Reward(re.compile(r"\A<think>\n\n</think>\n\n\\boxed\{(\S+)\}"))
    check(reward, prompts(["5"], prefill="<think>\n\n</think>\n\n"), "boxed")


def test_one_percent_may_fail_and_is_named(caplog: pytest.LogCaptureFixture) -> None:
    golds = [str(number) for number in range(200)]
    golds[3], golds[150] = "?", "a b"
    with caplog.at_level(logging.INFO):
        check(Reward(TAGS), prompts(golds), "think_answer")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "--rollout.rewards found: 2 of 200 golds of sums do not earn its best, 1: row 13 '?' (unreadable), "
        "row 160 'a b' (0)"
    )
    golds[4] = ""
    with pytest.raises(UserError, match=r"3 of 192 golds .*\(1\.6%\).* row 13 '\?' \(unreadable\), row 14 ''"):
        check(Reward(TAGS), prompts(golds), "think_answer")


def test_where_the_reward_does_not_apply_nothing_is_asked_of_it(caplog: pytest.LogCaptureFixture) -> None:
    golds = [str(number) if number % 2 else "chat" for number in range(200)]
    with caplog.at_level(logging.INFO):
        check(Reward(TAGS), prompts(golds), "think_answer")
    assert caplog.messages == [
        "--rollout.rewards found: does not apply (returns None) to 100 rows of sums",
        "--rollout.rewards found: all of 100 golds of sums earn 1",
    ]
    golds[1] = "?"  # one of 100 that apply may fail
    check(Reward(TAGS), prompts(golds), "think_answer")
    assert "found: 1 of 100 golds of sums do not earn its best, 1: row 11 '?' (unreadable)" in caplog.text
    golds[3] = "?"
    with pytest.raises(UserError, match=r"2 of \d+ golds .* 1 of 1\d\d: row 11 '\?' \(unreadable\), row 13 '\?'"):
        check(Reward(TAGS), prompts(golds), "think_answer")
    with pytest.raises(UserError, match=r"^--rollout\.rewards found: does not apply .* any of 3 rows of sums"):
        check(Reward(TAGS), prompts(["chat"] * 3), "think_answer")
    with pytest.raises(UserError, match=r"1 of 1 golds of sums .* row 12 '\?' \(unreadable\);"):
        check(Reward(TAGS), prompts(["chat", "chat", "?"]), "think_answer")


def test_rows_without_an_answer_may_be_of_another_kind(caplog: pytest.LogCaptureFixture) -> None:
    @inline
    @best(1.0)
    def maybe(completions: list[Any], answer: list[Any]) -> list[float | None]:
        return [None if gold is None else float(gold in text) for text, gold in zip(completions, answer, strict=True)]

    with caplog.at_level(logging.INFO):
        check(maybe, prompts(["5", None, None]), "boxed")
    assert caplog.messages[0].endswith("does not apply (returns None) to 2 rows of sums")


def test_less_than_the_best_is_not_enough() -> None:
    @inline
    @best(1.0)
    def tiers(completions: list[Any], answer: list[str]) -> list[float]:
        return [0.5 if text.startswith("<answer>") else 0.25 for text in completions]

    with pytest.raises(UserError, match=r"1 of 1 golds .* row 10 '5' \(0\.5\);"):  # the highest of the layouts
        check(tiers, prompts(["5"]), "think_answer")


def test_a_missing_gold_is_never_right() -> None:
    @inline
    @best(1.0)
    def easy(completions: list[Any], answer: list[Any]) -> list[float]:
        return [1.0] * len(answer)

    check(easy, prompts(["5"]), "none")
    for missing in (None, " "):
        with pytest.raises(UserError, match=r"1 of 1 golds .* row 10 .* \(unreadable\)"):
            check(easy, prompts([missing]), "none")


def test_of_many_bad_rows_five_are_named_and_the_rest_is_not_waited_for() -> None:
    reward = Reward(HASHES)
    with pytest.raises(UserError, match=r"64 of 64 golds .* row 10 .* row 14 '4' \(0\) and 59 more; mend"):
        check(reward, prompts([str(number) for number in range(2000)]), "boxed", most=2000)


def test_rows_are_spread_evenly(caplog: pytest.LogCaptureFixture) -> None:
    rows = prompts([str(number) for number in range(10)])
    assert [prompt.row for prompt in spread(rows, 4)] == [10, 12, 15, 17]
    assert spread(rows, 10) == spread(rows, 11) == rows
    with caplog.at_level(logging.INFO):
        check(Reward(TAGS), rows, "think_answer", most=4)
    assert caplog.messages == ["--rollout.rewards found: all of 4 golds of sums earn 1"]


def test_nothing_is_asked_of_other_rewards_and_with_0_rows() -> None:
    reward = Reward(HASHES, best=None)
    check(reward, prompts(["5"]), "boxed")
    check(Reward(HASHES), prompts(["5"]), "boxed", most=0)
    assert reward.seen == []


def test_a_program_is_its_own_gold(caplog: pytest.LogCaptureFixture) -> None:
    seen = []

    @inline
    @best(1.0)
    def passes(completions: list[Any], tests: list[str], **_: Any) -> list[float]:
        seen.extend(completions)
        found = [re.search(r"```python\n(.*?)\n```", text, re.DOTALL) for text in completions]
        return [float(m is not None and m.group(1) == test) for m, test in zip(found, tests, strict=True)]

    check(passes, prompts(["-"], tests="x = 1", solution="x = 1"), "think_answer")
    assert seen == ["<answer>```python\nx = 1\n```</answer>"]
    with pytest.raises(UserError, match=r"row 10 'x = 2' \(0\)"):
        check(passes, prompts(["-"], tests="x = 1", solution="x = 2"), "none")
    with caplog.at_level(logging.INFO):
        check(passes, prompts(["-"], tests="x = 1"), "none")
    assert caplog.messages == [
        "--rollout.rewards found: not tried on right answers, since no row has a 'solution' to try it on"
    ]
    seen.clear()
    check(passes, prompts(["-"] * 2000, tests="x = 1", solution="x = 1"), "boxed", most=2000)
    assert len(seen) == gold_check.MOST_SOLUTIONS


def test_ranks_share_the_rows_and_the_verdict(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rows = prompts(["0", "1", "?", "3"])
    others: dict[int, list[Any]] = {}

    def on_rank(rank: int) -> str:
        calls = iter(range(2))

        def gather(items: list[Any]) -> list[Any]:
            call = next(calls)
            others.setdefault(call, []).extend(items if rank == 0 else [])
            return items if rank == 0 else others[call] + items

        monkeypatch.setattr(ranks, "rank", lambda: rank)
        monkeypatch.setattr(ranks, "world_size", lambda: 2)
        monkeypatch.setattr(ranks, "gather_objects", gather)
        with pytest.raises(UserError) as stop:
            check(Reward(TAGS), rows, "think_answer")
        return str(stop.value)

    assert "1 of 2 golds" in on_rank(0)  # what it alone knows here
    assert "1 of 4 golds of sums (25.0%)" in on_rank(1)


def data(asked: AnswerFormatName, train: list[Prompt], eval_prompts: list[Prompt], rule: Any) -> Any:
    return SimpleNamespace(
        template=SimpleNamespace(answer_format=ANSWER_FORMATS[asked]),
        tokenizer=TOKENIZER,
        train_prompts=train,
        eval_sources=[SimpleNamespace(name="held_out", correctness=rule)],
        eval_prompts=[eval_prompts],
    )


def test_rewards_and_rules_of_evaluation_are_all_looked_at() -> None:
    fits, fails = Reward(TAGS), Reward(HASHES)
    given = data("think_answer", prompts(["5"]), prompts(["6"]), fails)
    check_all_golds(given, RewardScorer([fits]), most=10, evaluates=False)
    assert fails.seen == []
    with pytest.raises(UserError, match=r"^--data\.eval_sources held_out, found: 1 of 1 golds of sums"):
        check_all_golds(given, RewardScorer([fits]), most=10, evaluates=True)
    with pytest.raises(UserError, match=r"^--rollout\.rewards found_2: 1 of 1"):
        check_all_golds(given, RewardScorer([fits, fails], reward_weights=[0.0, 9.0]), most=10, evaluates=False)


SOLVED = "She sold 48/2 = <<48/2=24>>24 clips in May and 48+24 = <<48+24=72>>72 in all.\n#### 72"
"""A gold of GSM8K, as it is published."""


@pytest.mark.parametrize(
    ("reward", "asked"),
    [
        (reward, asked)
        for reward, layouts in (
            (exact_answer, ["reasoning_answer", "think_answer", "none"]),
            (exact_answer_as_published, ["reasoning_answer", "think_answer", "none"]),
            (TieredAccuracy(), ["chinese", "boxed", "none"]),
            (TieredAccuracy(variant="as_published"), ["chinese", "boxed", "none"]),
            (ShapedAccuracy(), ["chinese", "boxed", "none"]),
            (gsm8k_accuracy, [name for name in ANSWER_FORMATS if name != "reasoning_choice"]),
            (GSM8KAccuracy(flexible=True), ["hashes", "boxed", "reasoning_answer"]),
        )
        for asked in layouts
    ],
)
def test_golds_inside_worked_solutions_are_read_as_the_reward_reads_them(reward: Any, asked: AnswerFormatName) -> None:
    check(reward, prompts([SOLVED, "1,234", "#### -5"]), asked)


@pytest.mark.parametrize("reward", [exact_answer, TieredAccuracy(), GSM8KAccuracy()])
def test_a_layout_that_the_reward_does_not_look_for_is_refused_for_such_golds_too(reward: Any) -> None:
    with pytest.raises(UserError, match=r"1 of 1 golds of sums .* row 10 'She sold"):
        check(reward, prompts([SOLVED]), "chinese" if reward is exact_answer else "reasoning_answer")


def test_letters_in_every_form_that_the_reward_reads() -> None:
    check(multiple_choice, prompts(["(A)", "B.", "C", "D)", "No.\n<answer>\\boxed{A}</answer>"]), "reasoning_choice")
    with pytest.raises(UserError, match=r"1 of 2 golds of sums .* row 11 'E' \(unreadable\);"):
        check(multiple_choice, prompts(["A", "E"]), "reasoning_choice")


def test_a_reward_of_ones_own_may_say_how_it_reads_its_golds() -> None:
    @inline
    @best(1.0)
    @gold_reader(lambda answer: answer["text"])
    def own(completions: list[Any], answer: list[Any]) -> list[float]:
        return [float(text == rf"\boxed{{{gold['text']}}}") for text, gold in zip(completions, answer, strict=True)]

    check(own, prompts([{"text": "5"}]), "boxed")


def test_numbers_of_gsm8k_that_are_none_are_named() -> None:
    with pytest.raises(UserError, match=r"1 of 2 golds of sums .* row 11 'many' \(unreadable\);"):
        check(gsm8k_accuracy, prompts(["5", "many"]), "hashes")


def test_workers_of_a_rule_are_ended_and_those_of_the_run_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    monkeypatch.setattr(RewardScorer, "close", lambda self: closed.extend(self.names))
    given = data("think_answer", prompts(["5"]), prompts(["6"]), Reward(HASHES))
    with pytest.raises(UserError):
        check_all_golds(given, RewardScorer([Reward(TAGS), Reward(TAGS)]), most=10, evaluates=True)
    assert closed == ["found"]


def real(reward: Any, mark: float = 1.0) -> Any:
    """A built-in reward, marked."""
    assert getattr(reward, "best", None) == mark
    return reward


def test_the_embedded_task_accepts_its_own_golds() -> None:
    rows = RunningTotals(size=300).rows()
    own = [Prompt(token_ids=[1], text="Q", columns=row, source="t", row=n) for n, row in enumerate(rows)]
    check(real(running_total_accuracy), own, "none")
    check(real(running_total_accuracy), own, "hashes")
    with pytest.raises(UserError, match="64 of 64"):
        check(real(running_total_accuracy), own, "boxed")


@pytest.mark.skipif(not SHARED.exists(), reason="the data sets are not here")
@pytest.mark.parametrize("asked", [name for name in ANSWER_FORMATS if name != "reasoning_choice"])
def test_real_golds_are_accepted_in_every_layout(asked: AnswerFormatName) -> None:
    lines = [json.loads(line) for line in (SHARED / "gsm8k_test.jsonl").read_text("utf-8").splitlines()]
    rows = []
    for number, line in enumerate(lines):
        answer, solution = split_answer(line["answer"])
        columns = {"answer": answer, "solution": solution}
        rows.append(Prompt(token_ids=[1], text="Q", columns=columns, source="gsm8k", row=number))
    for reward in (gsm8k_accuracy, math_accuracy):
        check(real(cast(Any, reward)), rows, asked)
