"""The start-up check in the command: what stops before the weights are loaded, on one rank and on two; the watch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_lightning import policy_module
from tests.integration.command_line import REWARDS, checkpoint_content, fit, grpo, jsonl, rows, run, written
from tests.integration.two_ranks import LIGHTNING, Run

pytestmark = pytest.mark.integration

TOTALS = "grpo_lightning.data.arithmetic.running_total_accuracy"
BOXED = {"class_path": "grpo_lightning.data.PromptTemplate", "init_args": {"answer_format": "boxed"}}


def misfit(tiny: Path, folder: Path, **changes: Any) -> dict[str, Any]:
    """A reward that looks for ``#### 7`` where the prompt asks for a box."""
    return grpo(tiny, folder, rollout__rewards=[TOTALS], data__template=BOXED, **changes)


def test_a_misfit_stops_before_the_weights_are_loaded(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_module, "load_policy", lambda *a, **k: pytest.fail("the weights were loaded"))
    config = written(misfit(tiny, tmp_path / "run"), tmp_path / "run.yaml")
    mistake = run(capsys, "fit", "--config", config).mistake
    assert mistake.startswith("--rollout.rewards running_total_accuracy: 16 of 16 golds of running_totals (100.0%)")
    assert mistake.endswith("start all the same with --rollout.check_golds 0")
    assert not (tmp_path / "run").exists()


def test_the_check_can_be_switched_off(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(capsys, misfit(tiny, tmp_path / "run", rollout__check_golds=0))
    assert len(rows(tmp_path / "run")) == 2


def test_a_rule_of_evaluation_is_looked_at_where_it_will_be_used(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(capsys, grpo(tiny, tmp_path / "run", data__template=BOXED))
    config = grpo(tiny, tmp_path / "other", data__template=BOXED, trainer__limit_val_batches=1.0)
    mistake = run(capsys, "fit", "--config", written(config, tmp_path / "other.yaml")).mistake
    assert mistake.startswith("--data.eval_sources running_totals, running_total_accuracy: 6 of 6 golds")


def test_a_few_bad_golds_are_named(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    golds = [str(number) for number in range(200)]
    golds[7] = r"\frac{1}{"
    file = tmp_path / "rows.jsonl"
    lines = [{"question": f"Tom has {number} apples. How many?", "answer": gold} for number, gold in enumerate(golds)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    config = grpo(
        tiny, tmp_path / "run", data__source=jsonl(file), rollout__rewards=["grpo_lightning.rewards.math_accuracy"]
    )
    outcome = fit(capsys, config)
    told = [line for line in outcome.err.splitlines() if line.startswith("--rollout.rewards math_accuracy")]
    assert told == [
        "--rollout.rewards math_accuracy: 1 of 200 golds of rows do not earn its best, 1: row 7 '\\\\frac{1}{' "
        "(unreadable)"
    ]


def test_worked_solutions_as_golds_and_rows_of_another_kind(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [{"question": f"Tom has {number} apples. How many?", "answer": f"He has {number}.\n#### {number}"}
             for number in range(8)]  # fmt: skip
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    layout = {"class_path": "grpo_lightning.data.PromptTemplate", "init_args": {"answer_format": "reasoning_answer"}}
    rewards = ["grpo_lightning.rewards.exact_answer", f"{REWARDS}.about_even_numbers"]
    config = grpo(tiny, tmp_path / "run", data__source=jsonl(file), data__template=layout, rollout__rewards=rewards)
    told = [line for line in fit(capsys, config).err.splitlines() if line.startswith("--rollout.rewards")]
    assert told == [
        "--rollout.rewards exact_answer: all of 8 golds of rows earn 2",
        "--rollout.rewards about_even_numbers: does not apply (returns None) to 4 rows of rows",
        "--rollout.rewards about_even_numbers: all of 4 golds of rows earn 1",
    ]


def test_two_ranks_stop_together(tiny: Path, tmp_path: Path) -> None:
    config = written(misfit(tiny, tmp_path / "run"), tmp_path / "run.yaml")
    ending = Run(LIGHTNING, "fit", "--config", config, "--trainer.strategy", "ddp", folder=tmp_path).end(timeout=240)
    assert ending.code == 2, ending.err
    assert ending.orphans == []
    (line,) = ending.lines("error: ")
    assert line.startswith("error: --rollout.rewards running_total_accuracy: 16 of 16 golds")  # 8 of each rank
    assert "Traceback" not in ending.err


def test_rollouts_without_a_signal_are_counted_over_a_resume(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {"rollout__rewards": [f"{REWARDS}.never"], "health__nothing_to_learn": 3}
    outcome = fit(capsys, grpo(tiny, tmp_path / "run", **changes))
    assert "nothing to learn" not in outcome.err
    states = checkpoint_content(tmp_path / "run" / "checkpoints" / "last.ckpt")["callbacks"]
    assert (states["HealthCallback"]["flat"], states["HealthCallback"]["flat_terms"]) == (2, {"never": 0.0})
    outcome = fit(capsys, grpo(tiny, tmp_path / "run", trainer__max_steps=5, **changes), "--ckpt_path", "last")
    (line,) = [line for line in outcome.err.splitlines() if "nothing to learn" in line]
    assert line.startswith("WARNING: nothing to learn for 3 rollouts in a row")
    assert "never 0;" in line
