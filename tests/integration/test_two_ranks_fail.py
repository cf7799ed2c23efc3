"""Whatever goes wrong on one rank: all processes are gone soon, the reason is shown once, the exit code is not 0."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from grpo_lightning.data.tiny_model import build_tiny_model
from tests.integration.command_line import VLLM, grpo, written
from tests.integration.two_ranks import LIGHTNING, Ending, Run, torchrun

pytestmark = pytest.mark.integration

PARTS = "tests.integration.failing_parts"
REWARD = ["--rollout.rewards", f"[{PARTS}.reward]"]
LIMIT_SECONDS = 60
REASON = re.compile(r"(\[rank:? ?\d\]:? )?(error|stopped|RuntimeError): ")


def started(tiny: Path, folder: Path, launch: list[str], *options: str, fails: str = "") -> Run:
    config = written(grpo(tiny, folder / "run", trainer__max_steps=10_000, trainer__max_epochs=-1), folder / "run.yaml")
    return Run(launch, "fit", "--config", config, *options, folder=folder, env={"FAILS": fails})


def ended(run: Run, *, wait_for: Path | None = None, timeout: float = 240) -> Ending:
    """The end of a run whose start takes its time on a busy machine."""
    if wait_for is not None:
        run.wait_for(wait_for, timeout=timeout)
        timeout = LIMIT_SECONDS
    ending = run.end(timeout=timeout)
    assert ending.orphans == [], ending.err
    assert ending.code != 0, ending.err
    return ending


def reasons(ending: Ending) -> list[str]:
    """Every line that says why the run ended, tracebacks by their last lines."""
    return [line for line in ending.err.splitlines() if REASON.match(line)]


ECHO = "stopped: another rank is gone; if it did not say why, it was killed (out of memory?)"


def test_the_second_rank_fails_in_its_reward(tiny: Path, tmp_path: Path) -> None:
    run = started(tiny, tmp_path, LIGHTNING, "--trainer.strategy", "ddp", *REWARD, fails="1:error")
    ending = ended(run, wait_for=tmp_path / "run" / "metrics.csv")
    where = "on the whole batch, but on no completion alone"  # it fails once
    assert reasons(ending) == [f"[rank: 1] stopped: reward reward failed {where}: ValueError: x in the reward", ECHO]
    assert "[rank0]: Traceback" not in ending.err


def test_the_first_rank_fails_in_its_sampler_under_torchrun(tiny: Path, tmp_path: Path) -> None:
    options = ["--trainer.strategy", "fsdp2", "--rollout.engine", f"{PARTS}.Engine"]
    ending = ended(
        started(tiny, tmp_path, torchrun(), *options, fails="0:stopped"), wait_for=tmp_path / "run" / "metrics.csv"
    )
    # torchrun ends the other rank by SIGTERM, which may come before or after it has noticed by itself.
    said = [line for line in reasons(ending) if line != "[rank: 1] stopped: by SIGTERM"]
    assert said == ["stopped: x in the engine"]


def test_all_ranks_find_the_same_mistake_and_one_says_so(tiny: Path, tmp_path: Path) -> None:
    options = ["--trainer.strategy", "ddp", "--data.source", f"{PARTS}.Data"]
    ending = ended(started(tiny, tmp_path, LIGHTNING, *options, fails="0:user,1:user"))
    assert reasons(ending) == ["error: x in the data"]
    assert ending.code == 2


def test_a_rank_that_does_not_notice_is_ended_too(tiny: Path, tmp_path: Path) -> None:
    # As one would that waits for NCCL, or samples for an hour.
    run = started(tiny, tmp_path, LIGHTNING, "--trainer.strategy", "ddp", *REWARD, fails="0:sleep,1:user")
    ending = ended(run, wait_for=tmp_path / "run" / "metrics.csv")
    assert reasons(ending) == ["[rank: 1] error: reward reward: x in the reward"]


def test_no_rank_outlives_the_first(tiny: Path, tmp_path: Path) -> None:
    run = started(tiny, tmp_path, LIGHTNING, "--trainer.strategy", "ddp", *REWARD, fails="0:killed,1:sleep")
    ending = ended(run, wait_for=tmp_path / "run" / "metrics.csv")
    assert ending.code == -signal.SIGKILL


def test_a_rank_that_waits_for_another_can_be_stopped(tiny: Path, tmp_path: Path) -> None:
    # In an exchange no handler runs; with NCCL, the other rank might as well be gone.
    stop = "--trainer.callbacks+=grpo_lightning.callbacks.stop_signal.StopOnSignal"
    soon = [stop, "--trainer.callbacks.grace_seconds=8"]
    run = started(tiny, tmp_path, LIGHTNING, "--trainer.strategy", "ddp", *REWARD, *soon, fails="1:sleep")
    run.wait_for(tmp_path / "run" / "metrics.csv", timeout=240)
    time.sleep(2)
    os.kill(run.process.pid, signal.SIGTERM)
    ending = ended(run, timeout=LIMIT_SECONDS)
    assert ending.code == 143
    assert "stopped: by SIGTERM; did not end in time; there is no checkpoint to go on from" in ending.err


@pytest.mark.vllm
def test_a_rank_is_killed_beside_vllm(tmp_path: Path) -> None:
    model = build_tiny_model(str(tmp_path / "model"), layers=1)
    options = ["--rollout.engine", VLLM, "--rollout.engine.kv_cache_gib", "0.25", "--trainer.strategy", "ddp", *REWARD]
    run = started(model, tmp_path, torchrun(), *options, fails="1:killed")
    ending = ended(run, wait_for=tmp_path / "run" / "metrics.csv")
    assert set(reasons(ending)) <= {ECHO, "stopped: by SIGTERM"}
    assert "exitcode  : -9" in ending.err


def test_ctrl_c_and_sigterm(tiny: Path, tmp_path: Path) -> None:
    for name in ("SIGINT", "SIGTERM"):
        folder = tmp_path / name
        run = started(tiny, folder, LIGHTNING, "--trainer.strategy", "ddp")
        run.wait_for(folder / "run" / "metrics.csv", timeout=240)
        time.sleep(0.5)
        if name == "SIGINT":
            run.interrupt()
        else:
            os.kill(run.process.pid, signal.SIGTERM)  # which nobody passes on to the other rank
        ending = run.end(timeout=30)
        assert ending.orphans == [], ending.err
        assert ending.code == (130 if name == "SIGINT" else 143), ending.err
        assert "Traceback" not in ending.err
