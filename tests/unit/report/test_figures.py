"""The tables of a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_lightning.records import write_records
from grpo_lightning.report import figures
from grpo_lightning.report.reading import read_run
from tests.unit.report.run_folders import CONFIG, run_folder


def test_charts_are_those_that_have_figures(tmp_path: Path) -> None:
    run = read_run(run_folder(tmp_path / "r"), name="r")
    titles = [panel["title"] for panel in figures.panels([run])]
    assert titles == ["Reward", "Reward term right", "Learning rate"]


def test_final_figures_are_means_over_the_last_tenth(tmp_path: Path) -> None:
    runs = [read_run(run_folder(tmp_path / f"r{steps}", steps=steps), name=f"r{steps}") for steps in (4, 40)]
    found = {label: (unit, cells) for label, unit, cells in figures.final_figures(runs)}
    assert found["Optimizer steps"] == ("", ["4", "40"])
    assert found["Tokens"] == ("prompts included", ["400", "4,000"])
    assert found["Time of the steps"] == ("hours", ["2", "20"])
    assert found["Reward"] == ("mean of a rollout", ["0.4", "3.85"])  # of step 4, and of steps 37 to 40
    assert found["Greedy accuracy, held_out"] == ("% [95% interval]", ["50.0 [35.0,\u00a065.0]"] * 2)
    assert "Learning rate" not in found


def test_evaluations_before_and_after(tmp_path: Path) -> None:
    run = read_run(run_folder(tmp_path / "r"), name="r")
    (table,) = figures.evaluation_tables(run)
    assert (table["source"], table["problems"], table["headings"]) == ("held_out", "40", ["step 0", "step 4"])
    assert table["rows"] == [
        ("accuracy (%)", ["25.0 [14.0,\u00a040.0]", "50.0 [35.0,\u00a065.0]", "+25.0"]),
        ("mean_length (tokens)", ["5", "7.5", "+2.5"]),
    ]
    assert figures.other_evaluations(run) == [["test", "held_out", "run/hf", "4", "75.0", "–"]]
    assert figures.curves(run)["accuracy"] == {
        "held_out": [[0.0, 25.0, pytest.approx(14.0), 40.0], [4.0, 50.0, 35.0, 65.0]]
    }


def test_evaluations_that_hold_nonsense(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "r")
    (folder / "evaluations.jsonl").write_text(
        '{"command": "fit", "step": "x"}\n[1]\n{"command": "fit", "step": 1, "accuracy": 1e999, "source": {}}\n'
        '{"command": "fit", "step": 2, "accuracy": true, "accuracy_interval": [1], "source": null}\n'
    )
    run = read_run(folder, name="r")
    figures.evaluation_tables(run)
    figures.final_figures([run])
    assert figures.curves(run)["accuracy"] == {}


def test_settings_that_differ(tmp_path: Path) -> None:
    runs = [
        read_run(run_folder(tmp_path / lr, config=CONFIG.replace("3.0e-05", lr) + extra), name=lr)
        for lr, extra in (("1.0e-05", ""), ("1.0e-06", "more: 1\n"))
    ]
    assert figures.differing_settings(runs) == [("model.lr", ["1e-05", "1e-06"]), ("more", ["", "1"])]


def test_accuracies_of_parts_are_shares_too(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "r")
    line = {
        "command": "fit",
        "step": 1,
        "source": "s",
        "accuracy": 0.5,
        "level=5/accuracy": 0.25,
        "level=5/length": 7.0,
    }
    write_records(folder / "evaluations.jsonl", [line])
    (table,) = figures.evaluation_tables(read_run(folder, name="r"))
    assert table["rows"] == [
        ("accuracy (%)", ["50.0"]), ("level=5/accuracy (%)", ["25.0"]), ("level=5/length (tokens)", ["7"]),
    ]  # fmt: skip


def test_means_of_huge_numbers(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "r")
    rows = "".join(f"{step},1e308\n" for step in range(1, 41))
    (folder / "metrics.csv").write_text("step,reward\n" + rows)
    found = {label: cells for label, _, cells in figures.final_figures([read_run(folder, name="r")])}
    assert "Reward" not in found
