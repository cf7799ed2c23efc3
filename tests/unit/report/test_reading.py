"""What is read of a run that has ended, is going on, or was killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpo_lightning.report.page import render
from grpo_lightning.report.reading import MOST_SETTINGS, flat_settings, is_run, read_run, short_names
from tests.unit.report.run_folders import CONFIG, run_folder


def test_a_run_that_has_ended(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "environment.json").write_text(
        '{"command": "fit", "versions": {"torch": "2.9"}, "GPUs": ["A", "B"]}'
    )
    run = read_run(run_folder(tmp_path / "r"), name="r")
    assert (run.steps, run.per_point, run.notes) == (4, 1, [])
    assert run.columns["reward"] == [None, 0.1, 0.2, 0.3, 0.4]
    assert run.clocks == {
        "step": [0, 1, 2, 3, 4],
        "tokens": [0, 100, 200, 300, 400],
        "hours": [0.0, 0.5, 1.0, 1.5, 2.0],
    }
    assert run.environment == {"command": "fit", "versions torch": "2.9", "GPUs": '["A", "B"]'}
    assert run.settings["model.policy"] == "some/model"
    assert run.settings["data.eval_sources.0.size"] == "3"
    assert run.settings["rollout.rewards"] == '["a.right", "b.short"]'
    assert run.config == CONFIG


def test_half_a_line_is_no_row(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "r")
    with (folder / "metrics.csv").open("a") as file:
        file.write("5,0.5,0")
    with (folder / "evaluations.jsonl").open("a") as file:
        file.write('{"command": "fi')
    run = read_run(folder, name="r")
    assert run.clocks["step"] == [0, 1, 2, 3, 4]
    assert len(run.evaluations) == 3


def test_odd_characters_split_no_line(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "r")
    (folder / "metrics.csv").write_text("step,a\u2028b\x85c\n1,0.5\n", "utf-8")
    (folder / "evaluations.jsonl").write_text('{"source": "a\u2028b\x85c"}\n', "utf-8")
    run = read_run(folder, name="r")
    assert run.columns == {"step": [1], "a\u2028b\x85c": [0.5]}
    assert run.evaluations == [{"source": "a\u2028b\x85c"}]


def test_sums_beyond_the_largest_number_are_no_points(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "r", config="a: 1\n")
    rows = "".join(f"{step},1e308,1e308,1\n" for step in range(1, 3_002))
    (folder / "metrics.csv").write_text("step,reward,step_time,kl\n" + rows)
    run = read_run(folder, name="r")
    assert run.columns["reward"][:2] == [None, None]  # of three rows each
    assert run.columns["kl"][:2] == [1, 1]
    assert run.clocks["hours"][:2] == [None, None]
    assert len(run.clocks["hours"]) == len(run.clocks["step"])
    render([run])


def test_secrets_are_on_no_page(tmp_path: Path) -> None:
    config = CONFIG + "logger: {api_key: hush-1, url: 'http://me:hush-2@host/x'}\n"
    folder = run_folder(tmp_path / "r", config=config)
    command = "python -m grpo_lightning fit --a.token hush-3 --b.password=hush-4 --c 'plain text'"
    (folder / "environment.json").write_text(json.dumps({"command": command}))
    run = read_run(folder, name="r")
    assert "hush" not in render([run])
    left = "python -m grpo_lightning fit --a.token '***' '--b.password=***' --c 'plain text'"
    assert run.environment["command"] == left
    assert (run.settings["logger.api_key"], run.settings["logger.url"]) == ("***", "http://***@host/x")
    assert "policy: some/model" in run.config


def test_what_is_no_number_is_no_point(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "r")
    (folder / "metrics.csv").write_text("step,reward,a\n2,nan,1\n1,inf,2\nx,1,1\n3,<b>,3\n4,0.5\n5,1e400,4\n")
    run = read_run(folder, name="r")
    assert run.clocks == {"step": [1, 2, 3, 5]}
    assert "reward" not in run.columns
    assert run.columns["a"] == [2, 1, 3, 4]


@pytest.mark.parametrize("names", [(), ("metrics.csv",), ("config.yaml",), ("evaluations.jsonl", "config.yaml")])
def test_missing_files(tmp_path: Path, names: tuple[str, ...]) -> None:
    folder = run_folder(tmp_path / "r")
    for name in names:
        (folder / name).unlink()
    assert is_run(folder)
    run = read_run(folder, name="r")
    assert run.notes == []
    assert run.steps == (0 if "metrics.csv" in names else 4)


def test_a_folder_that_only_begins_to_be_a_run(tmp_path: Path) -> None:
    assert not is_run(tmp_path)
    (tmp_path / "metrics.csv").write_text("")
    assert is_run(tmp_path)
    run = read_run(tmp_path, name="r")
    assert (run.steps, run.columns, run.evaluations, run.config) == (0, {}, [], "")


def test_long_curves_are_means_over_steps(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "r")
    rows = "".join(f"{step},{step % 3 if step % 2 else ''},{10 * step}\n" for step in range(1, 4502))
    (folder / "metrics.csv").write_text("step,reward,num_tokens\n" + rows)
    run = read_run(folder, name="r")
    assert run.per_point == 4
    assert run.clocks["step"][:2] == [4, 8]
    assert run.clocks["step"][-1] == 4501
    assert run.clocks["tokens"][-1] == 45010
    assert run.columns["reward"][:2] == [(1 + 0) / 2, (2 + 1) / 2]  # of steps 1 and 3, 5 and 7
    assert len(run.columns["reward"]) == len(run.clocks["step"]) == 1126
    assert len(read_run(folder, name="r", of=8).clocks["step"]) <= 750


def test_supervised_steps_and_phases_give_the_clocks(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("step,tokens,time/update,time/reward\n1,10,360,9\n2,20,720,9\n")
    run = read_run(tmp_path, name="r")
    assert run.clocks == {"step": [1, 2], "tokens": [10, 30], "hours": [0.1, 0.3]}


def test_the_newest_configuration_counts(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "r")
    for number in (2, 10, 9):
        (folder / f"config-{number}.yaml").write_text(f"n: {number}")
    assert read_run(folder, name="r").settings == {"n": "10"}


@pytest.mark.parametrize(
    "text", ["a: [", "!!python/object/apply:os.system ['echo']", "\0", "- - - " * 3000, "x: 2024-99-99"]
)
def test_a_configuration_that_is_none_is_shown_as_text(tmp_path: Path, text: str) -> None:
    run = read_run(run_folder(tmp_path / "r", config=text), name="r")
    assert run.config == text
    assert len(run.notes) <= 1


def test_very_many_evaluations_are_bounded(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "r")
    (folder / "evaluations.jsonl").write_text("".join(f'{{"step": {step}}}\n' for step in range(3_000)))
    run = read_run(folder, name="r")
    assert [line["step"] for line in run.evaluations] == [*range(500), *range(2_500, 3_000)]
    assert run.notes == ["of 3,000 evaluations the first and the last 500 are shown"]


def test_aliases_of_aliases_are_bounded() -> None:
    bomb = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{{k: *a{i - 1}}}, {{k: *a{i - 1}}}]\n" for i in range(1, 30))
    assert len(flat_settings(bomb, [])) <= MOST_SETTINGS


def test_names_that_tell_folders_apart(tmp_path: Path) -> None:
    def names(*folders: str) -> list[str]:
        return short_names([tmp_path / folder for folder in folders])

    assert names("a/grpo") == ["a/grpo"]
    assert names("a/grpo", "b/grpo") == ["a", "b"]
    assert names("x/a", "x/b", "y/a") == ["x/a", "x/b", "y/a"]
    assert names("x", "x/y") == ["x", "x/y"]
    assert names("x", "x/x", "x/x/x") == ["x", "x/x", "x/x/x"]
