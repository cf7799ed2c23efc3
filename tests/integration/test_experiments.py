"""Sweeps run, stop and go on; every experiment's page, record and plot are there, and its commands still parse."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments import __main__ as series
from experiments import sweep
from experiments.sweep import Run, read_results, run_sweep
from tests.integration.command_line import REPOSITORY
from tests.integration.stand_ins import Parsed, words

pytestmark = pytest.mark.integration

EXPERIMENTS = REPOSITORY / "experiments"
SWEEPS = sorted(file.parent.name for file in EXPERIMENTS.glob("*/run.py") if "run_sweep(" in file.read_text("utf-8"))

NOT_RUN = "**Not run yet.**"
"""On the page of an experiment that is set up and has no results."""
RUN = [name for name in SWEEPS if NOT_RUN not in (EXPERIMENTS / name / "README.md").read_text("utf-8")]

STAND_IN = """
import os, pathlib, sys, time
words = sys.argv[1:]
value = lambda flag: words[words.index(flag) + 1]
run = pathlib.Path(value("--trainer.default_root_dir"))
with open("calls.txt", "a") as calls:
    print(run.name, file=calls)
if os.path.exists("fail"):
    sys.exit("error: --model.lr nan: no rate")
run.mkdir(parents=True)  # fails where an interrupted run was left in the way
(run / "config.yaml").write_text(f"rollout: {{passes: {value('--rollout.passes')}, updates_per_rollout: 1}}")
starter = os.getppid()
while os.path.exists("wait") and "passes-2" in run.name:
    if os.getppid() != starter:
        sys.exit(1)
    time.sleep(0.01)
seed = int(value("--seed_everything"))
(run / "metrics.csv").write_text(f"step,reward\\n1,0.5\\n2,0.{seed}5\\n")
"""
SWEEP = """
import sys
from pathlib import Path
from experiments import sweep
sweep.ROOT = Path.cwd()
settings = {f"passes = {n}": f"--rollout.passes {n}" for n in (1, 2)}
sweep.run_sweep("trial", settings, options="--model.lr 1e-3", figures=("reward", "kl"), seeds=(0, 1), policy=None,
                program=(sys.executable, "stand_in.py"))
"""


def started(folder: Path) -> subprocess.Popen[str]:
    (folder / "stand_in.py").write_text(STAND_IN)
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen(
        [sys.executable, "-c", SWEEP], cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def calls(folder: Path) -> list[str]:
    path = folder / "calls.txt"
    return path.read_text().split() if path.exists() else []


def test_a_sweep_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    results = tmp_path / "experiments" / "trial" / "results.json"
    (tmp_path / "wait").touch()
    first = started(tmp_path)
    deadline = time.monotonic() + 60
    while not (tmp_path / "runs/experiments/trial/passes-2-seed0/config.yaml").exists():
        assert time.monotonic() < deadline, first.communicate()
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert calls(tmp_path) == ["passes-1-seed0", "passes-2-seed0"]
    assert not results.exists()  # what is published stays whole until the sweep is

    (tmp_path / "wait").unlink()
    (tmp_path / "fail").touch()
    failed = started(tmp_path)
    _, error = failed.communicate(timeout=60)
    assert failed.returncode == 1
    assert "passes = 2, seed 0 ended with exit code 1" in error
    assert "error: --model.lr nan: no rate" in error

    (tmp_path / "fail").unlink()
    out, error = started(tmp_path).communicate(timeout=60)
    assert "trial 1/4: passes = 1, seed 0: kept; reward 0.05" in out, error
    assert calls(tmp_path)[3:] == ["passes-2-seed0", "passes-1-seed1", "passes-2-seed1"]
    runs = read_results(results)
    assert [(run.setting, run.seed, run.steps_per_rollout) for run in runs] == [
        ("passes = 1", 0, 1), ("passes = 1", 1, 1), ("passes = 2", 0, 2), ("passes = 2", 1, 2)
    ]  # fmt: skip
    assert runs[3].figures == {"reward": [[1, 0.5], [2, 0.15]]}
    assert runs[3].command == (
        "python -m grpo_lightning fit --model.lr 1e-3 --seed_everything 1 "
        "--trainer.default_root_dir runs/experiments/trial/passes-2-seed1 --rollout.passes 2"
    )
    assert runs[3].versions["python"]


def test_another_command_is_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "ROOT", tmp_path)
    (tmp_path / "stand_in.py").write_text(STAND_IN)

    def trial(rate: str) -> list[Run]:
        return run_sweep(
            "trial", {"one": "--rollout.passes 1 --model.critic {policy}"}, options=f"--model.lr {rate}",
            figures=("reward",), seeds=(3,), policy=lambda seed: tmp_path / f"base{seed}",
            program=(sys.executable, "stand_in.py"),
        )  # fmt: skip

    first, again, other = trial("1e-3"), trial("1e-3"), trial("1e-4")
    assert first == again
    assert "--model.policy base3" in first[0].command
    assert "--model.critic base3" in first[0].command
    assert "--model.lr 1e-4" in other[0].command
    assert calls(tmp_path) == ["one-seed3", "one-seed3"]


# --- what is shipped ----------------------------------------------------------------------------------------------


def test_make_experiments_leaves_no_sweep_out() -> None:
    named = {name for parts in series.PARTS.values() for name in parts}
    assert {f"{name}.run" for name in SWEEPS} <= named
    for name in named:
        assert callable(importlib.import_module(f"experiments.{name}").main)


@pytest.mark.parametrize("name", sorted(path.parent.name for path in EXPERIMENTS.glob("*/README.md")))
def test_an_experiment_has_its_page_and_what_the_page_shows(name: str) -> None:
    folder = EXPERIMENTS / name
    page = (folder / "README.md").read_text("utf-8")
    if NOT_RUN in page:
        assert not (folder / "results.json").exists()
        assert f"[{name}]({name}/) (not run yet)" in (EXPERIMENTS / "README.md").read_text("utf-8")
        return
    if name != "answer_checking":  # a table of decisions and a stopwatch
        assert "**Question.**" in page
        assert re.search(r"^(## Reading|\*\*Reading\.\*\*)\s+\S", page, flags=re.MULTILINE)
    for image in folder.glob("*.png"):
        assert f"]({image.name})" in page
    json.loads((folder / "results.json").read_text("utf-8"))


@pytest.mark.parametrize("name", RUN)
def test_the_page_of_a_sweep_shows_its_record(name: str) -> None:
    folder = EXPERIMENTS / name
    module = importlib.import_module(f"experiments.{name}.run")
    runs = read_results(folder / "results.json")
    assert {run.setting for run in runs} == set(module.SETTINGS)
    assert min(sum(run.setting == setting for run in runs) for setting in module.SETTINGS) >= 3
    assert module.page(runs) in (folder / "README.md").read_text("utf-8")
    assert (folder / "plot.png").exists()


@pytest.fixture(scope="module")
def parser() -> Any:
    return Parsed(words([REPOSITORY / "configs" / "quickstart.yaml"]))._parser("fit")


@pytest.mark.parametrize("name", RUN)
def test_the_commands_of_a_sweep_parse(name: str, parser: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    runs = read_results(EXPERIMENTS / name / "results.json")
    for run in {run.setting: run for run in runs}.values():
        *program, subcommand = shlex.split(run.command)[:4]
        assert program == ["python", "-m", "grpo_lightning"]
        if subcommand == "fit":
            assert parser.parse_args(shlex.split(run.command)[4:]).seed_everything == run.seed


def test_the_ends_of_the_wandb_sweep_parse(parser: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    utils = pytest.importorskip("wandb.sdk.launch.sweeps.utils")
    monkeypatch.chdir(REPOSITORY)
    config = yaml.safe_load((EXPERIMENTS / "wandb_sweep.yaml").read_text("utf-8"))
    parameters = {name: values["values"] for name, values in config["parameters"].items()}
    for choose in (min, max):
        chosen = {name: choose(values) for name, values in parameters.items()}
        flags = utils.create_sweep_command_args({"args": {name: {"value": value} for name, value in chosen.items()}})
        command = utils.create_sweep_command(list(config["command"]))
        assert command[-1] == "${args}"
        command[-1:] = flags["args"]
        program = command.index("grpo_lightning")
        assert command[program - 1 : program + 2] == ["-m", "grpo_lightning", "fit"]
        parsed = parser.parse_args(command[program + 2 :])
        assert parsed.seed_everything == chosen["seed_everything"]
        assert parsed.rollout.group_size == chosen["rollout.group_size"]
        assert parsed.model.init_args.lr == chosen["model.lr"]
        assert parsed.model.init_args.objective.init_args.beta == chosen["model.objective.beta"]
    assert config["metric"]["name"] == "val/accuracy"
