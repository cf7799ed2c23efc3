"""Runs the command line as a user does, on a tiny model and the embedded task."""

from __future__ import annotations

import copy
import csv
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import lightning  # noqa: F401  (its log keeps the stderr of its import, which must not be one test's alone)
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from safetensors.torch import load_file

from grpo_lightning.__main__ import main

REPOSITORY = Path(__file__).resolve().parents[2]
TRANSFORMERS = "grpo_lightning.engines.TransformersEngine"
VLLM = "grpo_lightning.engines.VLLMEngine"
REWARDS = "tests.integration.reward_functions"
TIMED = ("time/", "step_time", "_per_second", "mfu/")
"""In the names of figures that depend on the machine's speed."""


def template() -> dict[str, Any]:
    """The bare question as the prompt."""
    arguments = {"layout": "{question}", "answer_format": "none"}
    return {"class_path": "grpo_lightning.data.PromptTemplate", "init_args": arguments}


def totals(split: str, size: int, **arguments: Any) -> dict[str, Any]:
    """A source of running totals."""
    arguments = {"split": split, "size": size, **arguments}
    return {"class_path": "grpo_lightning.data.RunningTotals", "init_args": arguments}


def jsonl(path: Path, **arguments: Any) -> dict[str, Any]:
    """A source that reads a file."""
    return {"class_path": "grpo_lightning.data.JsonLines", "init_args": {"path": str(path), **arguments}}


def grpo(policy: Path | str, folder: Path | str, **changes: Any) -> dict[str, Any]:
    """A configuration of two rollouts of 4 prompts x 4 completions; ``changes`` are dotted keys with ``__``."""
    config: dict[str, Any] = {
        "seed_everything": 1,
        "model": {"class_path": "grpo_lightning.GRPOModule", "init_args": {"policy": str(policy), "lr": 1e-3}},
        "data": {
            "source": totals("train", 16),
            "eval_sources": [totals("eval", 6)],
            "template": template(),
            "prompts_per_step": 4,
            "max_prompt_length": 64,
        },
        "rollout": {
            "engine": TRANSFORMERS,
            "rewards": [f"{REWARDS}.share_of_digits"],
            "group_size": 4,
            "max_completion_length": 8,
        },
        "trainer": {
            "default_root_dir": str(folder),
            "accelerator": "cpu",
            "max_steps": 2,
            "limit_val_batches": 0,
            "num_sanity_val_steps": 0,
            "enable_progress_bar": False,
            "enable_model_summary": False,
        },
    }
    for key, value in changes.items():
        *path, last = key.split("__")
        place = config
        for name in path:
            place = place.setdefault(name, {})
        place[last] = copy.deepcopy(value)
    return config


def written(config: dict[str, Any], file: Path) -> str:
    """``config`` as a YAML file; returns its path."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(config), "utf-8")
    return str(file)


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def mistake(self) -> str:
        """The one line that says what was wrong."""
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert self.code == 2, self.err
        assert len(lines) == 1, self.err
        assert self.err.rstrip().endswith(lines[0]), self.err
        assert "Traceback" not in self.err
        return lines[0].removeprefix("error: ")


@contextmanager
def own_process_state() -> Iterator[None]:
    """What the command sets for its process (seed, loggers, signals) ends with it; its arguments are not pytest's."""
    log = logging.getLogger("grpo_lightning")
    handlers, level, propagate = list(log.handlers), log.level, log.propagate
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        with mock.patch.dict(os.environ), mock.patch.object(sys, "argv", ["grpo-lightning"]):
            yield
    finally:
        log.handlers, log.propagate = handlers, propagate
        log.setLevel(level)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> Outcome:
    """The command in this process; an exception that is not a user's mistake passes through."""
    capsys.readouterr()
    code = 0
    with own_process_state():
        try:
            main(list(arguments))
        except SystemExit as stop:
            code = int(stop.code or 0)
    return Outcome(code, *capsys.readouterr())


def start(*arguments: str, timeout: float = 240) -> Outcome:
    """The command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "grpo_lightning", *arguments],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip
    return Outcome(done.returncode, done.stdout, done.stderr)


def fit(capsys: pytest.CaptureFixture[str], config: dict[str, Any], *arguments: str) -> Outcome:
    """``fit`` that must succeed."""
    folder = Path(config["trainer"]["default_root_dir"])
    outcome = run(capsys, "fit", "--config", written(config, folder.with_suffix(".yaml")), *arguments)
    assert outcome.code == 0, outcome.err
    return outcome


def rows(folder: Path) -> list[dict[str, str]]:
    """metrics.csv."""
    with (folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def untimed(folder: Path) -> list[dict[str, str]]:
    """metrics.csv without what depends on the machine's speed."""
    return [
        {name: value for name, value in row.items() if not any(part in name for part in TIMED)} for row in rows(folder)
    ]


def records(file: Path) -> list[dict[str, Any]]:
    """A JSONL file, or a Parquet table of samples."""
    if file.suffix == ".parquet":
        return pq.read_table(file).to_pylist()
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def listing(folder: Path) -> dict[str, bytes]:
    """Every file below ``folder`` with its content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def exported_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Of the policy that a run has exported."""
    return load_file(folder / "hf" / "model.safetensors")


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """To the last bit, under the same names."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def checkpoint_content(file: Path) -> dict[str, Any]:
    """What a checkpoint holds."""
    return torch.load(file, weights_only=True)
