"""Who holds a run folder, and until when."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_lightning.callbacks import folder_lock
from grpo_lightning.callbacks.folder_lock import NAME, FolderLock
from grpo_lightning.errors import UserError

HOLDER = """
import os, sys, time
from types import SimpleNamespace
from grpo_lightning.callbacks.folder_lock import FolderLock
lock = FolderLock()
lock.on_fit_start(SimpleNamespace(default_root_dir=sys.argv[1]), None)
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(60)
"""
"""A run with a worker that it has forked."""


def started(root: Path) -> Any:
    return SimpleNamespace(default_root_dir=str(root))


def test_a_second_run_is_refused_until_the_first_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gone by a kill that its worker has outlived."""
    monkeypatch.setattr(folder_lock, "PATIENCE_SECONDS", 0.2)
    root = tmp_path / "run"
    first = subprocess.Popen([sys.executable, "-c", HOLDER, str(root)], stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    worker = int(first.stdout.readline())
    try:
        second = FolderLock()
        for begin in (second.on_fit_start, lambda *given: second.setup(*given, "fit")):
            with pytest.raises(UserError, match=rf"{root}: is in use by process {first.pid} on .* \(started 2.*choose"):
                begin(started(root), None)
        second.setup(started(root), None, "validate")  # type: ignore[arg-type]
        first.send_signal(signal.SIGKILL)
        first.wait()
        second.on_fit_start(started(root), None)  # type: ignore[arg-type]
        assert f"process {os.getpid()} " in (root / NAME).read_text()
        second.release()
        assert not (root / NAME).exists()
    finally:
        os.kill(worker, signal.SIGKILL)
        first.kill()


def test_a_refused_start_makes_no_folder(tmp_path: Path) -> None:
    FolderLock().setup(started(tmp_path / "run"), None, "fit")  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_where_files_cannot_be_locked_a_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", refused)
    lock = FolderLock()
    lock.on_fit_start(started(tmp_path), None)  # type: ignore[arg-type]
    lock.release()
    assert "No locks available" in caplog.text
