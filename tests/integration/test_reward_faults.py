"""Rewards that raise, hang, eat memory, die, fork, print without end or return garbage: the run goes on or says why."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import random
import signal
import sys
import time
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_lightning.errors import RunStopped, UserError
from grpo_lightning.rewards import RewardScorer, Scores
from grpo_lightning.types import Completion, Prompt
from tests.integration import bad_rewards
from tests.integration.command_line import grpo, rows, run, start, written
from tests.integration.two_ranks import LIGHTNING, Run

pytestmark = pytest.mark.integration

BAD = "tests.integration.bad_rewards"


@pytest.fixture(autouse=True)
def pids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that rewards write process ids to."""
    file = tmp_path / "pids"
    file.touch()
    monkeypatch.setenv(bad_rewards.PIDS, str(file))
    return file


def scorer_of(reward: Any, **options: Any) -> RewardScorer:
    return RewardScorer([reward], **{"reward_time_limit": 1.0, **options})


def score(reward: Any, *texts: str, **options: Any) -> Scores:
    """Of a group of four (``"aa"``, ``"b"``, ``"c"``, ``"d"`` by default); ``reward`` may be a scorer."""
    columns = {"question": "What is it?", "kind": options.pop("kind", "")}
    completions = [
        Completion(token_ids=[1, 2], logprobs=[0.0, 0.0], finished=True, text=text)
        for text in texts or ("aa", "b", "c", "d")
    ]
    scorer = reward if isinstance(reward, RewardScorer) else scorer_of(reward, **options)
    state = SimpleNamespace(global_step=5)
    return scorer.score([Prompt(token_ids=[1], text="Q", columns=columns)], [completions], trainer_state=state)


def living(file: Path) -> list[int]:
    """Those of the noted processes that do not end within a few seconds."""
    noted = [int(line) for line in file.read_text().split()]
    assert noted
    end = time.monotonic() + 5
    while (left := [pid for pid in noted if is_alive(pid)]) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_a_worker_keeps_its_state_and_is_not_the_trainer() -> None:
    scorer = scorer_of(bad_rewards.counts_calls)
    first, second = score(scorer), score(scorer)
    (calls, pid, step, _), (more_calls, same_pid, *_) = first.total[0], second.total[0]
    assert (calls, more_calls, step) == (1.0, 2.0, 5.0)
    assert score(scorer.alone("counts_calls")).total[0][:2] == [3.0, pid]
    assert pid == same_pid != os.getpid()
    assert first.counts == {"rewards/counts_calls/timeouts": 0.0, "rewards/counts_calls/calls": 1.0}


def test_an_edited_module_is_imported_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "edited_reward.py"
    source = "def reward(completions, **_):\n    return [{}] * len(completions)\n"
    module.write_text(source.format("1.0"))
    monkeypatch.syspath_prepend(str(tmp_path))
    edited = importlib.import_module("edited_reward")
    scorer = scorer_of(edited.reward)
    assert score(scorer).total == [[1.0] * 4]
    module.write_text(source.format("22.25"))  # of another size, so that no compiled file is taken for it
    importlib.invalidate_caches()
    importlib.reload(edited)
    assert score(edited.reward).total == [[22.25] * 4]  # as a notebook does
    scorer.close()
    assert score(scorer).total == [[22.25] * 4]


def test_workers_end_with_their_scorer(pids: Path) -> None:
    for seconds in (10.0, 11.0):
        assert score(bad_rewards.leaves_children, reward_time_limit=seconds).total == [[2.0, 1.0, 1.0, 1.0]]
        gc.collect()
        assert living(pids) == []


def test_each_scorer_has_its_own_memory_limit() -> None:
    for gib, total in ((0.25, 0.0), (2.0, 0.5), (0.25, 0.0)):
        options = {"reward_memory_limit_gib": gib, "reward_time_limit": 20.0}
        assert score(bad_rewards.takes_half_a_gib, "a", **options).total == [[total]]


def test_random_numbers_follow_the_trainers() -> None:
    drawn = []
    for seed in (1, 2, 1):
        random.seed(seed)
        drawn += score(bad_rewards.draws).total + score(bad_rewards.draws).total
    assert drawn[:2] == drawn[4:]
    assert len({tuple(numbers) for numbers in drawn}) == 4


@pytest.mark.parametrize(
    ("reward", "counted"),
    [
        (bad_rewards.sleeps_on_x, "timeouts"),
        (bad_rewards.eats_memory_on_x, "out_of_memory"),
        (bad_rewards.exits_on_x, "crashes"),
        (bad_rewards.breaks_on_x, "crashes"),
    ],
)
def test_one_bad_completion_costs_its_own_score_only(reward: Any, counted: str, caplog: Any) -> None:
    options = {"reward_on_timeout": -0.5, "reward_memory_limit_gib": 0.5, "reward_time_limit": 2.0}
    scores = score(reward, "aa", "x", "c", "ddd", **options)
    assert scores.total == [[2.0, -0.5, 1.0, 3.0]]
    name = reward.__name__
    others = {f"rewards/{name}/timeouts": 0.0}
    assert scores.counts == {**others, f"rewards/{name}/{counted}": 1.0}
    assert f"reward {name}: 1 of 4 completions " in caplog.text
    assert "; they score -0.5. Each completion was scored by itself; a function that compares" in caplog.text
    if counted == "timeouts":  # what the other calls logged is put together
        assert scores.columns == {"length": [2.0, None, 1.0, 3.0]}
        assert sorted(scores.metrics["longest"]) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("reward", "why"),
    [
        (bad_rewards.sleeps, r"were not scored within 0\.3 s \(--rollout\.reward_time_limit\)$"),
        (bad_rewards.exits, "ended the process that scored them$"),
    ],
)
def test_a_reward_that_scores_nothing_stops_the_run(reward: Any, why: str) -> None:
    begin = time.monotonic()
    with pytest.raises(RunStopped, match=rf"^reward {reward.__name__}: 8 completions in a row, each by itself, {why}"):
        score(reward, *"abcdefghijklmnopqrst", reward_time_limit=0.3)
    assert time.monotonic() - begin < 0.3 * (1 + 8 / 1) + 5


def test_hostile_completions_cost_a_bounded_time() -> None:
    texts = ["x" if number < 8 else "ab" for number in range(256)]  # all of one prompt
    begin = time.monotonic()
    scores = score(bad_rewards.sleeps_on_x, *texts, reward_time_limit=1.0)
    seconds = time.monotonic() - begin
    assert scores.total == [[0.0 if text == "x" else 2.0 for text in texts]]
    assert scores.counts["rewards/sleeps_on_x/timeouts"] == 8
    workers = max(1, min(4, os.cpu_count() or 1))
    assert seconds < 1.0 * (1 + 8 / workers) + 5


def test_an_exception_names_the_completion(caplog: Any) -> None:
    with pytest.raises(RunStopped) as caught:
        score(bad_rewards.raises, "a", "b", "x", "d")
    assert str(caught.value) == (
        "reward raises failed at row 2: ValueError: cannot read this (its prompt begins 'What is it?')"
    )
    assert 'bad_rewards.py", line' in caplog.text
    assert 'raise ValueError("cannot read' in caplog.text
    with pytest.raises(
        RunStopped, match=r"^reward takes_texts_only failed at row 2: .* \(its prompt begins 'What is it\?'\)$"
    ):
        score(bad_rewards.takes_texts_only, "a", "b", "x", "d")
    with pytest.raises(RunStopped, match=r"raises_together failed on the whole batch, .* alone: KeyError: 'group'$"):
        score(bad_rewards.raises_together)
    with pytest.raises(RunStopped, match="reward leaves failed at row 0: SystemExit: enough"):
        score(bad_rewards.leaves)


def test_async_rewards_are_cancelled_and_their_exceptions_placed(caplog: Any) -> None:
    scores = score(bad_rewards.waits_for_ever, reward_time_limit=0.2, reward_on_timeout=-1.0)
    assert scores.total == [[-1.0] * 4]
    assert scores.counts == {"rewards/waits_for_ever/timeouts": 4.0}
    assert "4 of 4 completions were not scored within 0.2 s" in caplog.text
    with pytest.raises(RunStopped, match="reward raises_late failed at row 1: ValueError: late"):
        score(bad_rewards.raises_late, "a", "x")


def test_an_async_reward_that_blocks_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_lightning.rewards.scoring.waiting.GRACE_SECONDS", 0.3)
    with pytest.raises(RunStopped, match=r"^reward blocks: not done within 0\.2 s and not to be cancelled"):
        score(bad_rewards.blocks, reward_time_limit=0.2)


def test_forked_children_answer_nothing_and_end(pids: Path) -> None:
    scorer = scorer_of(bad_rewards.forks)
    for _ in range(3):
        assert score(scorer).total == [[2.0, 1.0, 1.0, 1.0]]
    scorer = scorer_of(bad_rewards.leaves_children, reward_time_limit=5.0)
    assert score(scorer).total == [[2.0, 1.0, 1.0, 1.0]]
    sleeper, *_ = (int(line) for line in pids.read_text().split())
    assert is_alive(sleeper)  # a child of a worker that lives may be meant to stay
    scorer.close()
    assert living(pids) == []


def test_children_end_with_a_worker_that_dies(pids: Path) -> None:
    texts = ("x", "b", "c", "d")  # the child that holds the worker's socket must not hide its end
    begin = time.monotonic()
    scorer = scorer_of(bad_rewards.leaves_children, reward_time_limit=20.0)
    scores = score(scorer, *texts)
    assert scores.total == [[0.0, 1.0, 1.0, 1.0]]
    assert time.monotonic() - begin < 15
    scorer.close()
    assert living(pids) == []


def test_output_is_shown_and_cut(capfd: Any) -> None:
    assert score(bad_rewards.prints, reward_time_limit=30.0).total == [[2.0, 1.0, 1.0, 1.0]]
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("the first line\nyyyy")
    assert len(err) < (1 << 16) + 200
    assert err.endswith(" more bytes were printed and are not shown]\n")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("number", "reward garbage returned float"),
        ("none", "reward garbage returned NoneType"),
        ("short", "reward garbage returned 1 scores for 4"),
        ("nan", "reward garbage returned nan for row 0"),
        ("text", "reward garbage returned 'a' for row 0"),
        ("object", "reward garbage: returned Evil where a number is due"),
        ("alone", "reward garbage: returned Evil where a number is due"),
        ("generator", "reward garbage: returned generator where a number is due"),
        ("lambdas", "reward garbage: returned function where a number is due"),
        ("huge", "reward garbage returned inf for row 0"),
        ("complex", "reward garbage: returned complex where a number is due"),
    ],
)
def test_garbage_is_refused(kind: str, message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}") as caught:
        score(bad_rewards.garbage, kind=kind)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_what_another_process_cannot_have(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("only_here")
    exec("def reward(completions): return [0.0] * 4", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", module)
    with pytest.raises(
        UserError, match=r"^reward reward: .* ModuleNotFoundError: No module named 'only_here'; mark it"
    ):
        score(module.reward)  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r"^reward garbage: what it is given cannot be sent .*lambda.*; mark it with @"):
        score(bad_rewards.garbage, kind=lambda: 0)


def test_a_worker_may_import_what_is_large() -> None:
    assert score(bad_rewards.uses_torch, reward_time_limit=60.0).total == [[1.0, 0.0, 0.0, 0.0]]


def test_no_alarm_is_touched() -> None:
    fired = []
    before = signal.signal(signal.SIGALRM, lambda *_: fired.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        score(bad_rewards.sleeps_on_x, "a", "x", reward_time_limit=0.7)
        time.sleep(0.1)
        assert fired == [1]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# --- whole runs ------------------------------------------------------------------------------------------------------


def config(tiny: Path, tmp_path: Path, reward: str, **changes: Any) -> str:
    rewards = [f"{BAD}.{reward}"]
    settings = grpo(tiny, tmp_path / "run", rollout__rewards=rewards, **changes)
    return written(settings, tmp_path / "config.yaml")


def test_the_run_goes_on_after_a_crash(tiny: Path, tmp_path: Path, capsys: Any) -> None:
    # The running totals' names hold an x (Max), so some of the random completions are bad.
    outcome = run(capsys, "fit", "--config", config(tiny, tmp_path, "exits_on_x"))
    assert outcome.code == 0, outcome.err
    figures = rows(tmp_path / "run")
    assert len(figures) == 2
    assert sum(float(row["rewards/exits_on_x/crashes"] or 0) for row in figures) > 0


@pytest.mark.parametrize(
    ("reward", "last"),
    [
        ("leaves", "stopped: reward leaves failed at row 0: SystemExit: enough (its prompt begins '"),
        ("sleeps", "stopped: reward sleeps: 8 completions in a row, each by itself, were not scored within 1 s"),
    ],
)
def test_a_command_ends_with_one_line(tiny: Path, tmp_path: Path, reward: str, last: str) -> None:
    limit = ["--rollout.reward_time_limit", "1"]
    begin = time.monotonic()
    outcome = start("fit", "--config", config(tiny, tmp_path, reward), *limit)
    assert outcome.code == 1
    assert outcome.err.splitlines()[-1].startswith(last)
    assert "Traceback" not in outcome.err
    assert time.monotonic() - begin < 60


@pytest.mark.parametrize("reward", ["raises_together", "sleeps", "exits"])
def test_two_ranks_end_with_one_line(tiny: Path, tmp_path: Path, reward: str) -> None:
    options = ["--trainer.strategy", "ddp", "--rollout.reward_time_limit", "1"]
    run = Run(LIGHTNING, "fit", "--config", config(tiny, tmp_path, reward), *options, folder=tmp_path)
    ending = run.end(timeout=120)
    assert ending.code != 0, ending.err
    assert ending.orphans == [], ending.err
    stopped = [line for line in ending.err.splitlines() if "stopped: reward" in line]
    assert stopped, ending.err
    assert f"reward {reward}" in stopped[0]
    assert "Traceback" not in ending.err


def test_a_killed_trainer_leaves_nothing(tiny: Path, tmp_path: Path, pids: Path) -> None:
    endless = config(tiny, tmp_path, "leaves_children", trainer__max_steps=10_000, trainer__max_epochs=-1)
    run = Run(LIGHTNING, "fit", "--config", endless, "--trainer.strategy", "ddp", folder=tmp_path)
    run.wait_for(tmp_path / "run" / "metrics.csv", timeout=120)
    for number in (0, 1):
        os.kill(run.rank(number), signal.SIGKILL)
    ending = run.end()
    assert ending.orphans == [], ending.orphans
    assert living(pids) == []
