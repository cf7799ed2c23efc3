"""Two ranks learn and report what one process does, and never wait for each other in vain."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_lightning.data import RunningTotals
from tests.integration.command_line import fit, grpo, jsonl, records, rows, run, totals, untimed, written
from tests.integration.two_ranks import LIGHTNING, Ending, Run, torchrun

pytestmark = pytest.mark.integration

PARTS = "tests.integration.rank_parts"
QUESTION = "Tom has 7 apples, finds 5, loses 3. How many?"
# The scores of each prompt's group of four. Of every four prompts the first and third go to rank 0.
SCORES: list[list[float | None]] = [
    [1, 1, 1, None],
    [0, None, None, None],
    [None] * 4,
    [None] * 4,
    [1, 0, 0, 0],
    [1, 0, 0, 0],
    [1, 0, 1, 0],
    [1, 1, 1, 1],
    [0, 0, 0, 1],
    [0, 0, 0, 1],
]
SAME_QUESTION = (0, 1, 4, 5, 7)


def on_two(config: dict[str, Any], *options: str, command: str = "fit", launch: list[str] | None = None) -> Ending:
    """A run on two ranks, which must succeed."""
    folder = Path(config["trainer"]["default_root_dir"])
    file = written(config, folder.with_suffix(".yaml"))
    ending = Run(launch or LIGHTNING, command, "--config", file, *options, folder=folder.parent).end(timeout=240)
    assert ending.code == 0, ending.err
    assert ending.orphans == []
    return ending


def as_numbers(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Text that is a number, and numbers, to be compared with a tolerance."""

    def loose(value: Any) -> Any:
        if isinstance(value, list):
            return [loose(entry) for entry in value]
        try:
            return pytest.approx(float(value), rel=1e-4, abs=1e-5, nan_ok=True)
        except (TypeError, ValueError):
            return value

    return [{key: loose(value) for key, value in row.items()} for row in table]


def files(folder: Path) -> list[str]:
    """What a run wrote; TensorBoard's file names have the time and the process in them."""
    paths = [str(path.relative_to(folder)) for path in folder.rglob("*")]
    return sorted("events" if "tfevents" in path else path for path in paths)


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Any]:
    """Ten prompts with given scores; three sources to evaluate on, the last without a gold answer that can be read."""
    questions = [row["question"] for row in RunningTotals(split="train", size=len(SCORES)).rows()]
    for row in SAME_QUESTION:
        questions[row] = QUESTION
    table = [{"question": q, "answer": "9", "scores": s} for q, s in zip(questions, SCORES, strict=True)]
    (tmp_path / "train.jsonl").write_text("\n".join(json.dumps(row) for row in table), "utf-8")
    (tmp_path / "one.jsonl").write_text(json.dumps({"question": "Ben has 3 pens. How many?", "answer": "3"}), "utf-8")
    (tmp_path / "none.jsonl").write_text(json.dumps({"question": "How many?", "answer": r"\frac{1}{"}), "utf-8")
    return {
        "data__source": jsonl(tmp_path / "train.jsonl"),
        "data__shuffle": False,
        "data__eval_sources": [totals("eval", 5), jsonl(tmp_path / "one.jsonl"), jsonl(tmp_path / "none.jsonl")],
        "data__eval_batch_size": 2,
        "evaluation__samples": 2,
        "trainer__limit_val_batches": 1.0,
        "rollout__check_golds": 0,
    }


def test_two_ranks_learn_and_report_what_one_does(
    tiny: Path, tmp_path: Path, data: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {
        "rollout__rewards": [f"{PARTS}.listed"],
        "rollout__micro_batch_tokens": 60,
        "samples__every_n_rollouts": 1,
        "trainer__max_steps": -1,
        "trainer__max_epochs": 2,
        "trainer__val_check_interval": 2,
        "trainer__log_every_n_steps": 1,
    }
    one, two = tmp_path / "one", tmp_path / "two"
    fit(capsys, grpo(tiny, one, **data, **changes))
    ending = on_two(grpo(tiny, two, **data, **changes, trainer__strategy="ddp"))

    table = rows(two)
    assert [row["step"] for row in table] == ["1", "2", "3", "4"]  # one point per optimizer step
    # Three samples of 1 on rank 0 and one of 0 on rank 1: not the mean of their means, 0.5.
    assert [float(row["reward"]) for row in table] == [0.75, 0.5, 0.75, 0.5]
    assert [float(row["rewards/listed/mean"]) for row in table] == [0.75, 0.5, 0.75, 0.5]
    assert [float(row["logged"]) for row in table] == [0.75, 0.5, 0.75, 0.5]
    assert [float(row["skipped_steps"]) for row in table] == [1, 0, 1, 0]
    assert as_numbers(untimed(two)) == untimed_numbers(one)

    # Each row has its own scores, and its group is its own, though the question stands in the batch three times.
    lines = records(two / "samples" / "rollout_000002.parquet")
    assert [line["row"] for line in lines] == [row for row in range(4, 8) for _ in range(4)]
    assert [line["reward"] for line in lines] == [score for row in range(4, 8) for score in SCORES[row]]
    expected = [1.4997, -0.4999, -0.4999, -0.4999] * 2 + [0.8659, -0.8659, 0.8659, -0.8659] + [0.0] * 4
    assert [line["advantage"] for line in lines] == pytest.approx(expected, abs=1e-4)
    asked = [[line["row"] for line in records(path)][::4] for path in sorted((two / "samples").glob("rollout_*"))]
    assert asked == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2
    assert len(ending.lines("2 of 10 prompts do not fill a batch")) == 1

    for path in sorted((one / "samples").iterdir()):
        assert records(two / "samples" / path.name) == records(path), path.name
    assert as_numbers(records(two / "evaluations.jsonl")) == records(one / "evaluations.jsonl")
    assert [line["problems"] for line in records(two / "evaluations.jsonl")] == [5.0, 1.0, 0.0] * 2
    assert files(two) == files(one)  # rank 1 writes nothing


def test_several_rewards_some_of_them_per_step(
    tiny: Path, tmp_path: Path, data: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each normalized by itself, over the groups of both ranks; the first rollout has steps on one rank only."""
    changes = {
        "rollout__rewards": [
            f"{PARTS}.listed",
            f"{PARTS}.by_steps",
            "tests.integration.reward_functions.share_of_digits",
        ],
        "rollout__reward_weights": [1.0, 0.5, 2.0],
        "rollout__reward_gates": {"share_of_digits": {"reward": "listed", "at_least": 0.0}},
        "rollout__normalize_each_reward": True,
        "samples__every_n_rollouts": 1,
        "trainer__max_steps": 2,
        "trainer__limit_val_batches": 0,
    }
    one, two = tmp_path / "one", tmp_path / "two"
    fit(capsys, grpo(tiny, one, **data | changes))
    on_two(grpo(tiny, two, **data | changes, trainer__strategy="ddp"))
    assert as_numbers(untimed(two)) == untimed_numbers(one)
    for path in sorted((one / "samples").iterdir()):
        assert records(two / "samples" / path.name) == records(path), path.name
    lines = records(two / "samples" / "rollout_000001.parquet")
    assert [line["rewards/by_steps"] is None for line in lines] == [False] * 4 + [True] * 12
    assert len({line["advantage"] for line in lines}) > 2
    # Open where the first reward is known, of the first rollout's 16 scores.
    assert float(rows(two)[0]["rewards/share_of_digits/gate_open"]) == 4 / 16


def untimed_numbers(folder: Path) -> list[dict[str, Any]]:
    """metrics.csv with its text as numbers."""

    def number(text: str) -> Any:
        try:
            return float(text)
        except ValueError:
            return text

    return [{key: number(value) for key, value in row.items()} for row in untimed(folder)]


def test_two_ranks_validate_and_predict_as_one(
    tiny: Path, tmp_path: Path, data: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    file = written(grpo(tiny, one, **data), tmp_path / "one.yaml")
    for command in ("validate", "predict"):
        assert run(capsys, command, "--config", file).code == 0
    on_two(grpo(tiny, two, **data, trainer__strategy="fsdp2"), command="validate")
    on_two(grpo(tiny, two, **data, trainer__strategy="ddp"), command="predict", launch=torchrun())
    assert as_numbers(records(two / "evaluations.jsonl")) == records(one / "evaluations.jsonl")
    # A greedy answer and two samples to each of 5, 1 and 1 problems.
    for name, lines in (("predictions", 21), ("samples/val_running_totals", 15), ("samples/val_one", 3)):
        assert records(two / f"{name}.jsonl") == records(one / f"{name}.jsonl"), name
        assert len(records(two / f"{name}.jsonl")) == lines
    assert files(two) == files(one)


@pytest.mark.parametrize(("strategy", "beta"), [("ddp", 0.0), ("fsdp2", 0.04)])
def test_uneven_ranks_stay_in_step(tiny: Path, tmp_path: Path, strategy: str, beta: float) -> None:
    # Without a KL term, rows without advantage are left out of the backward; with one, they stay.
    objective = {"class_path": f"{PARTS}.BrokenOnce", "init_args": {"beta": beta}}
    config = grpo(
        tiny,
        tmp_path / "run",
        data__prompts_per_step=2,
        model__init_args__objective=objective,
        rollout__rewards=[f"{PARTS}.uneven"],
        rollout__engine=f"{PARTS}.Silent",
        rollout__micro_batch_tokens=60,
        trainer__max_steps=100,
        trainer__max_epochs=-1,
        trainer__strategy=strategy,
        trainer__callbacks=[{"class_path": f"{PARTS}.SameWeights"}],
        trainer__enable_checkpointing=False,
        samples__every_n_rollouts=0,
    )
    ending = on_two(config)
    table = rows(tmp_path / "run")
    assert [int(row["step"]) for row in table] == list(range(1, 101))
    broken = [int(row["step"]) - 1 for row in table if row["grad_norm"] == "nan"]
    assert broken == [4]  # the loss of rank 1 alone was NaN, and both left the step out
    assert float(table[4]["skipped_steps"]) == 1
    assert [float(row["broken_steps"]) for row in table] == [0.0] * 4 + [1.0] * 96
    files = [tmp_path / "run" / "broken" / name for name in ("step5.pt", "step5-rank1.pt")]
    kept = [torch.load(file, weights_only=True) for file in files]
    assert [(batch["step"], batch["rank"], math.isnan(batch["loss"])) for batch in kept] == [(5, 0, True), (5, 1, True)]
    assert len(ending.lines("NaN or inf in loss or gradient")) == 1
    gaps = [float(row["sampling/logp_difference/max"]) for row in table if row["sampling/logp_difference/max"]]
    assert len(gaps) > 50
    assert max(gaps) < 1e-4  # both samplers have the weights of every step
    seconds = sum(float(row[name]) for row in table for name in ("time/update", "time/generate", "time/sync"))
    assert seconds < 60


def test_a_stale_sampler_on_one_rank_stops_both_with_one_message(tiny: Path, tmp_path: Path) -> None:
    config = grpo(
        tiny,
        tmp_path / "run",
        model__init_args__lr=0.1,
        rollout__engine=f"{PARTS}.StaleOnSecondRank",
        trainer__max_steps=10,
        trainer__strategy="fsdp2",
    )
    file = written(config, tmp_path / "run.yaml")
    ending = Run(LIGHTNING, "fit", "--config", file, folder=tmp_path).end(timeout=240)
    assert ending.code == 1, ending.err
    assert ending.orphans == []
    (line,) = ending.lines("stopped: ")
    assert "it has other weights than the policy" in line
    assert "Traceback" not in ending.err
    assert float(rows(tmp_path / "run")[0]["sampling/logp_difference/mean"]) < 1e-5
