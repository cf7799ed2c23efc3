"""SIGTERM and Ctrl-C while a run trains: the first asks it to end between two rollouts, a second ends it at once."""

from __future__ import annotations

import _thread
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from lightning.pytorch.utilities.exceptions import SIGTERMException

from grpo_lightning import ranks

NAMES: dict[int, str] = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl-C"}
ROLLOUT_SHARE = 0.7
"""Of the time until the end, for the rollout at hand; the rest is for the checkpoint."""
SAME_SECONDS = 0.2
"""Within this time the same signal is no second one: coreutils' ``timeout`` sends it to its child, and to the group."""
TORCHRUN_SECONDS = 1.0
"""torchrun passes on the Ctrl-C that its ranks have got from the terminal as well: within this time it is the same."""
FOLLOWS_SECONDS = 1.0
"""So long after the first rank has given up do the others end."""

received = 0
"""The first signal that this process got while its newest run trained; 0 until then."""
outlasts_run = False
"""True on the command line: what is left after a run that got a signal must be done in the same time. A program or a
notebook that calls ``fit`` lives on."""


class Interrupted(SIGTERMException):
    """Ends a run; its exit code is 128 + the signal's number, as a shell's.

    Args:
        signum: of the signal.
    """

    def __init__(self, signum: int) -> None:
        super().__init__()
        self.signum = signum


class Interruption:
    """Waits for the two signals from ``begin`` to ``end``.

    A thread reads them from the descriptor to which Python writes their numbers at once: a handler runs only between
    two of Python's own instructions, so never while the main thread waits for another rank. After the first signal,

    - callbacks find ``signum`` set, and end the run after the rollout at hand;
    - if that has not come to pass in 0.7 of the time, and ``gives_up`` is true by then, ``Interrupted`` is raised in
      the main thread, wherever it is (ranks that only follow just end: the first rank speaks and writes for all);
    - when the time is over, or at a second signal, the process ends, whatever it is at.

    A main thread that waits for another rank is interrupted when gloo tells it that this one is gone. NCCL tells it
    nothing: a first rank that waits for it so ends when the time is over, without another checkpoint.

    Args:
        grace_seconds: from the first signal to the end.
        newest: says from which checkpoint the run can go on.
    """

    def __init__(self, *, grace_seconds: float, newest: Callable[[], str]) -> None:
        self.grace_seconds, self.newest = grace_seconds, newest
        self.signum = 0
        """Of the first signal; 0 until then."""
        self.gives_up = False
        """Whether the main thread may be interrupted: nothing that it has begun would be left half done."""
        self._expired = self._ours = self._over = False
        self._begun = 0.0
        self._restore: list[Callable[[], Any]] = []

    def begin(self) -> None:
        """Wait from now on; elsewhere than in the main thread, where no handler can be set, do nothing."""
        if threading.current_thread() is not threading.main_thread():
            return
        global received
        received = 0
        read, write = os.pipe()
        os.set_blocking(write, False)
        older = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self._restore = [lambda: signal.set_wakeup_fd(older), lambda: os.close(write)]
        for each in NAMES:
            handler = signal.signal(each, self._handle)
            self._restore.append(lambda each=each, handler=handler: signal.signal(each, handler))
        threading.Thread(target=self._watch, args=(read,), name="signal-watch", daemon=True).start()

    def end(self) -> None:
        """Wait no more; on the command line, not if a signal has come (``outlasts_run``)."""
        self.gives_up = False
        if self.signum and outlasts_run:
            return
        self._over = True
        restore, self._restore = self._restore, []
        for step in restore:
            step()

    def _handle(self, signum: int, *_: Any) -> None:
        if self._expired and self.gives_up:
            self.gives_up = False
            raise Interrupted(self.signum)

    def _watch(self, read: int) -> None:
        if signum := self._next(read, None):
            self._count_down(read, signum)
        os.close(read)  # the run has ended

    def _count_down(self, read: int, signum: int) -> None:
        global received
        received = self.signum = signum
        self._begun = time.monotonic()
        self._say(
            f"{NAMES[signum]}: stopping after this rollout, in {self.grace_seconds:.0f} s at most; once more ends it "
            "at once"
        )
        self._wait(read, self.grace_seconds * ROLLOUT_SHARE)
        if self.gives_up:
            self._say("the rollout takes too long; giving it up")
            if ranks.rank():  # as good: the first rank, which may wait for this one, finds it gone
                time.sleep(FOLLOWS_SECONDS)
                if self.gives_up:  # still: it may be in the rollout's optimizer steps by now
                    os._exit(0)
            else:
                self._expired = self._ours = True
                _thread.interrupt_main(signum)
        self._wait(read, self.grace_seconds)
        if not self._over:
            self._leave("did not end in time")

    def _wait(self, read: int, seconds: float) -> None:
        """Until so long after the first signal, or to the end of the run; a second signal ends it all."""
        while not self._over and (left := self._begun + seconds - time.monotonic()) > 0:
            if self._next(read, left):
                self._leave("ended at once")

    def _next(self, read: int, seconds: float | None) -> int:
        """The next signal; 0 after that time, or if there will be none."""
        end = None if seconds is None else time.monotonic() + seconds
        waiter = select.poll()
        waiter.register(read, select.POLLIN)
        while end is None or time.monotonic() < end:
            if not waiter.poll(None if end is None else max(end - time.monotonic(), 0) * 1000):
                return 0
            number = os.read(read, 1)
            if not number:
                return 0
            if number[0] not in NAMES:
                continue
            if self._ours:
                self._ours = False
            elif not self._repeats(number[0]):
                return number[0]
        return 0

    def _repeats(self, signum: int) -> bool:
        """Whether it is the first signal again, which was sent once and has come by two ways."""
        passed = time.monotonic() - self._begun
        if self.signum and "TORCHELASTIC_RUN_ID" in os.environ:
            return passed < TORCHRUN_SECONDS
        return signum == self.signum and passed < SAME_SECONDS

    def _leave(self, how: str) -> NoReturn:
        try:
            if ranks.rank() == 0:
                self._say(f"stopped: by {NAMES[self.signum]}; {how}; {self.newest()}")
        finally:
            os._exit(128 + self.signum)

    def _say(self, text: str) -> None:
        if ranks.rank() == 0:
            os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"{text}\n".encode())
