"""How a process ends, and what it says; whole runs on two ranks are in tests/integration/test_two_ranks_fail.py."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time

import pytest
import torch.distributed as dist
from lightning.pytorch.utilities.exceptions import SIGTERMException

from grpo_lightning import processes
from grpo_lightning.errors import RunStopped, UserError
from grpo_lightning.interruption import Interrupted

LOST = "[/src/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1"


def _sleeps(seconds: float) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({seconds})"])


def _exits(code: int) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", f"raise SystemExit({code})"])


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UserError("a"), 2, "error: a"),
        (RunStopped("b"), 1, "stopped: b"),
        (RuntimeError(LOST), 1, "stopped: another rank is gone; if it did not say why, it was killed (out of memory?)"),
        (dist.DistBackendError("ncclRemoteError: remote process exited"), 1, "stopped: another rank is gone"),
        (SystemExit(3), 3, ""),
        (SystemExit("text"), 1, ""),
        (SystemExit(), 0, ""),
        (SIGTERMException(), 143, "stopped: by SIGTERM"),
        (Interrupted(signal.SIGTERM), 143, "stopped: by SIGTERM"),
        (Interrupted(signal.SIGINT), 130, "stopped: by Ctrl-C"),
        (KeyboardInterrupt(), 130, "stopped: by Ctrl-C"),
        (OSError(errno.ENOSPC, "No space left on device", "hf"), 1, "stopped: hf could not be written: No space left"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "a"), None, ""),
        (ValueError("a bug"), None, ""),
        # A reward's own connection is not another rank.
        (RuntimeError("reward r failed: ConnectionResetError: Connection reset by peer"), None, ""),
    ],
)
def test_what_there_is_to_say(error: BaseException, code: int | None, line: str) -> None:
    found, said = processes._verdict(error)
    assert (found, said[: len(line)]) == (code, line)
    assert bool(said) == bool(line)


def test_ctrl_c_as_lightning_passes_it_on() -> None:
    """As an exit with code 1."""
    exit = SystemExit(1)
    exit.__context__ = KeyboardInterrupt()
    assert processes._verdict(exit) == (130, "stopped: by Ctrl-C")


def test_the_cause_of_an_error_is_what_counts() -> None:
    wrapped = ValueError("jsonargparse: failed")
    wrapped.__cause__ = UserError("a")
    assert processes._verdict(wrapped) == (2, "error: a")


def test_a_process_alone_lets_a_bug_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    bug = KeyError("x")
    with pytest.raises(KeyError) as caught:
        processes.fail(bug)
    assert caught.value is bug
    with pytest.raises(SystemExit) as stop:
        processes.fail(UserError("a"))
    assert stop.value.code == 2


@pytest.mark.parametrize(("number", "code"), [("0", 143), ("1", 0)])
def test_ranks_that_follow_end_without_a_fault(monkeypatch: pytest.MonkeyPatch, number: str, code: int) -> None:
    """What started them would kill the first one, which may still write the checkpoint."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setenv("SLURM_PROCID", number)
    monkeypatch.setenv("WORLD_SIZE", "2")
    ended: list[int] = []
    monkeypatch.setattr(processes, "end", ended.append)
    for error, expected in ((Interrupted(signal.SIGTERM), code), (SIGTERMException(), 143)):
        with contextlib.suppress(SystemExit):  # where the stand-in for the end comes back
            processes.fail(error)
        assert ended.pop() == expected


def test_a_trainer_for_other_ranks_than_were_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "8")  # Lightning's own launcher sets it too
    processes.check_launch(1, 1)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    processes.check_launch(4, 2)
    with pytest.raises(UserError, match=r"make 1 rank.*started 8.*--trainer.devices 4 --trainer.num_nodes 2"):
        processes.check_launch(1, 1)


def test_a_failure_of_another_rank_at_the_very_end_counts() -> None:
    assert processes.wait_for([]) == 0
    assert processes.wait_for([_exits(0), _exits(3), _exits(4)]) == 3


def test_a_rank_that_does_not_end_is_killed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(processes, "LAST_SECONDS", 0.3)
    child = _sleeps(60)
    assert processes.wait_for([child]) == 1
    assert child.wait(5) == -signal.SIGKILL
    assert f"process {child.pid}) does not end" in capsys.readouterr().err


@pytest.mark.parametrize("launched", [True, False])
def test_only_a_launched_process_ends_with_its_starter(launched: bool) -> None:
    # The middle process starts the last one and ends; that one must follow it only if a launcher started it.
    last = "from grpo_lightning.processes import end_with_starter; import time; end_with_starter(); time.sleep(30)"
    middle = (
        "import os, subprocess, sys, time\n"
        f"environment = dict(os.environ, **({{'{processes.STARTER}': str(os.getpid())}} if {launched} else {{}}))\n"
        f"last = subprocess.Popen([sys.executable, '-c', {last!r}], env=environment, stdout=subprocess.DEVNULL)\n"
        "print(last.pid, flush=True)\n"
        "time.sleep(1)"
    )
    clean = {k: v for k, v in os.environ.items() if k not in (processes.STARTER, "TORCHELASTIC_RUN_ID")}
    done = subprocess.run([sys.executable, "-c", middle], env=clean, stdout=subprocess.PIPE, text=True, check=True)
    pid, end = int(done.stdout), time.monotonic() + (20 if launched else 1)
    while _alive(pid) and time.monotonic() < end:
        time.sleep(0.05)
    assert _alive(pid) != launched
    if not launched:
        os.kill(pid, signal.SIGKILL)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
