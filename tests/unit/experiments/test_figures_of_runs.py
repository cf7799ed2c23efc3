"""What is said of a sweep: figures of a run, mean and spread over seeds, the table, the drawing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

from experiments.plots import Column, Panel, aligned, draw, spread, table, write_table
from experiments.sweep import Run, read_figure, read_results, write_results


def made(reward: list[float], *, setting: str = "A", seed: int = 0, steps_per_rollout: int = 1, **more: Any) -> Run:
    """A run with one reward a rollout, logged at the rollout's first step."""
    figures = {"reward": [[1 + index * steps_per_rollout, value] for index, value in enumerate(reward)], **more}
    return Run(
        setting=setting,
        seed=seed,
        command="python -m grpo_lightning fit",
        seconds=1.0,
        steps_per_rollout=steps_per_rollout,
        figures=figures,
        machine="none",
        versions={},
        commit=None,
    )


def test_steps_of_a_rollout_are_one_point() -> None:
    run = made(
        [0.2, 0.4], steps_per_rollout=2, clipped=[[1, 0.0], [2, 0.1], [3, 0.0], [4, 0.3]], val=[[0, 0.5], [4, 1.0]]
    )
    assert run.by_rollout("reward") == ([1, 2], [0.2, 0.4])
    assert run.by_rollout("clipped") == ([1, 2], pytest.approx([0.05, 0.15]))
    assert run.by_rollout("val") == ([0, 2], [0.5, 1.0])
    assert run.by_rollout("kl") == ([], [])


def test_last_and_mean() -> None:
    run = made([0.0, 0.2, 0.6])
    assert run.last("reward") == 0.6
    assert run.last("reward", points=2) == pytest.approx(0.4)
    assert run.mean("reward") == pytest.approx(0.8 / 3)
    assert (run.last("kl"), run.mean("kl")) == (None, None)


def test_rollouts_to_a_level() -> None:
    run = made([0.9, 0.1, 0.5, 0.7, 0.9, 0.9], steps_per_rollout=3)
    # Means of three: 0.5, 0.43, 0.7, 0.83; one good rollout is not enough.
    assert run.rollouts_to("reward", 0.7, points=3) == 5
    assert run.rollouts_to("reward", 0.8, points=3) == 6
    assert run.rollouts_to("reward", 0.9, points=3) is None
    assert run.rollouts_to("reward", 0.1, points=7) is None


def test_spread_is_the_sample_deviation_and_says_what_is_missing() -> None:
    assert spread([1.0, 2.0, 3.0], ".1f") == "2.0 ± 1.0"
    assert spread([0.5, 0.7], ".1%") == "60.0 ± 14.1"
    assert spread([4.0, None, 6.0], ".0f") == "5 ± 1 (2 of 3)"
    assert spread([4.0, None], ".0f") == "4 (1 of 2)"
    assert spread([None, None], ".0f") == "never"


def test_the_table_has_one_line_a_setting_and_goes_between_the_marks(tmp_path: Path) -> None:
    runs = [made([0.2], setting="A"), made([0.4], setting="B"), made([0.4], setting="A", seed=1)]
    text = table(runs, [Column("reward (%)", lambda run: run.last("reward"), ".0%")], heading="name")
    assert text == "| name | reward (%) |\n|---|---|\n| A | 30 ± 14 |\n| B | 40 |"
    page = tmp_path / "README.md"
    page.write_text("before\n<!-- table -->\nold\n<!-- end of table -->\nafter\n")
    write_table(page, text)
    assert page.read_text() == f"before\n<!-- table -->\n\n{text}\n\n<!-- end of table -->\nafter\n"
    page.write_text("no marks")
    with pytest.raises(ValueError, match="no lines <!-- table -->"):
        write_table(page, text)


def test_seeds_are_aligned_where_all_have_a_value() -> None:
    seeds = [made([1.0, 2.0, 3.0, 4.0]), made([3.0, 2.0, 1.0])]
    rollouts, values = aligned(seeds, "reward")
    assert rollouts.tolist() == [1, 2, 3]
    assert values.tolist() == [[1, 2, 3], [3, 2, 1]]
    rollouts, values = aligned(seeds, "reward", smooth=2)
    assert rollouts.tolist() == [2, 3]
    assert values.tolist() == [[1.5, 2.5], [2.5, 1.5]]
    assert len(aligned(seeds, "kl")[0]) == 0


def test_the_drawing_shows_mean_and_band(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []
    monkeypatch.setattr(plt, "close", kept.append)
    runs = [made([0.1, 0.3], seed=0), made([0.3, 0.5], seed=1), made([0.0, 0.2], setting="B", kl=[[1, 0.1], [2, 0.2]])]
    draw(runs, [Panel("reward", "Reward", "%", scale=100), Panel("kl", "KL")], tmp_path / "plot.png")
    (figure,) = kept
    monkeypatch.undo()
    reward, kl = figure.axes
    assert [line.get_ydata().tolist() for line in reward.lines] == [pytest.approx([20, 40]), pytest.approx([0, 20])]
    band = reward.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (pytest.approx(10), pytest.approx(50))
    assert [line.get_label() for line in kl.lines] == ["B"]  # A has no KL
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["A", "B"]
    assert reward.lines[0].get_color() != reward.lines[1].get_color()
    assert (tmp_path / "plot.png").stat().st_size > 1000
    plt.close(figure)


def test_figures_come_from_both_files_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("step,reward,kl\n0,,\n1,0.123456,\n2,0.5,\n")
    line = {"stage": "val", "source": "totals", "step": 2, "accuracy": 0.25, "pass@4": 0.5}
    (tmp_path / "evaluations.jsonl").write_text(json.dumps(line) + "\n")
    assert read_figure(tmp_path, "reward") == [[1, 0.1235], [2, 0.5]]
    assert read_figure(tmp_path, "val/totals/pass@4") == [[2, 0.5]]
    assert read_figure(tmp_path, "kl") == []
    assert read_figure(tmp_path / "nothing", "reward") == []


def test_results_are_read_as_written(tmp_path: Path) -> None:
    runs = [made([0.5]), made([0.25], setting="β = 0.04", seed=1, steps_per_rollout=4)]
    write_results(tmp_path / "results.json", runs)
    assert read_results(tmp_path / "results.json") == runs
    assert len((tmp_path / "results.json").read_text("utf-8").splitlines()) == 4  # one line a run
