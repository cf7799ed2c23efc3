"""Two signals, the time after the first, and what is left when the run is over; each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable

import pytest

from grpo_lightning import interruption
from grpo_lightning.interruption import Interruption

LIVED = 7
GRACE_SECONDS = 0.6


def end_of(run: Callable[[Interruption], None]) -> int | None:
    """Exit code of a process in which ``run`` is interrupted; ``LIVED`` if it came to its end."""

    def body() -> None:
        interrupted = Interruption(grace_seconds=GRACE_SECONDS, newest=lambda: "nothing to go on from")
        interrupted.begin()
        run(interrupted)
        os._exit(LIVED)

    process = multiprocessing.get_context("fork").Process(target=body)
    process.start()
    process.join(20)
    assert not process.is_alive()
    return process.exitcode


def send(interrupted: Interruption, signum: int = signal.SIGTERM) -> None:
    """The first signal, until it is known."""
    os.kill(os.getpid(), signum)
    while not interrupted.signum:
        time.sleep(0.01)


@pytest.mark.parametrize("outlasts", [False, True])
def test_who_lives_on_after_the_run(outlasts: bool) -> None:
    """A notebook and a program do; on the command line the rest has its time too."""

    def run(interrupted: Interruption) -> None:
        interruption.outlasts_run = outlasts
        before = signal.getsignal(signal.SIGTERM)
        send(interrupted)
        interrupted.end()
        time.sleep(GRACE_SECONDS + 0.3)
        assert signal.getsignal(signal.SIGTERM) != before

    assert end_of(run) == (143 if outlasts else LIVED)


def test_a_signal_that_comes_by_two_ways_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)

    def repeated(interrupted: Interruption) -> None:
        send(interrupted)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)

    def followed_by(signum: int, seconds: float) -> Callable[[Interruption], None]:
        def run(interrupted: Interruption) -> None:
            send(interrupted)
            time.sleep(seconds)
            os.kill(os.getpid(), signum)
            time.sleep(0.2)

        return run

    assert end_of(repeated) == LIVED
    assert end_of(followed_by(signal.SIGTERM, 0.25)) == 143
    assert end_of(followed_by(signal.SIGINT, 0.0)) == 143


@pytest.mark.parametrize("steps", [False, True])
def test_a_rank_that_follows_looks_again_before_it_leaves(monkeypatch: pytest.MonkeyPatch, steps: bool) -> None:
    """It may have begun its optimizer steps since the first one gave up."""
    monkeypatch.setattr(interruption, "FOLLOWS_SECONDS", 0.4)
    monkeypatch.setattr(interruption.ranks, "rank", lambda: 1)

    def run(interrupted: Interruption) -> None:
        interrupted.gives_up = True
        send(interrupted)
        time.sleep(GRACE_SECONDS * interruption.ROLLOUT_SHARE + 0.15)
        interrupted.gives_up = not steps
        time.sleep(5)

    assert end_of(run) == (143 if steps else 0)
