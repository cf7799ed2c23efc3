"""How the processes of one run end: all of them, soon, and with one message.

Lightning or torchrun starts a process for each rank. A rank that fails leaves the others waiting in a collective: gloo
tells them that a peer is gone, NCCL does not. What ends them is the process that started them: torchrun stops all when
one fails, Lightning (whose first rank starts the others) looks every 5 seconds. Nobody looks after ranks whose starter
is gone, so they do that themselves.
"""

from __future__ import annotations

import atexit
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from grpo_lightning.errors import RunStopped, UserError, lost_peer

STARTER = "GRPO_LIGHTNING_STARTER"
"""Environment variable that tells a rank which process started it."""
LOOK_SECONDS = 0.5
SPEAKS_ALONE_SECONDS = 4.0
"""A failure on all ranks reaches them all within this time; the first rank speaks for them."""
GRACE_SECONDS = 10.0
"""From SIGTERM to the end of a rank that does not end by itself."""
NO_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""What the system says of a disk that takes nothing more."""
LAST_SECONDS = 60.0
"""For the other ranks to end once the first is done: nothing but clearing up is left."""


def end_with_starter() -> None:
    """From now on this process ends when the launcher that started it does; one that a user started goes on."""
    starter = os.getppid()
    if "TORCHELASTIC_RUN_ID" in os.environ or os.environ.get(STARTER) == str(starter):
        threading.Thread(target=_watch, args=(starter,), name="starter-watch", daemon=True).start()
    os.environ[STARTER] = str(os.getpid())


def _watch(starter: int) -> None:
    while os.getppid() == starter:
        time.sleep(LOOK_SECONDS)
    os._exit(1)  # what was to be said, the starter has said


def check_launch(devices: int, hosts: int) -> None:
    """Refuse a trainer for other ranks than torchrun has started: each might train alone, all in one folder.

    Args:
        devices: processes of a host that the trainer reckons with.
        hosts: number of hosts that it reckons with.
    """
    started = int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else devices * hosts
    if started != devices * hosts:
        local = int(os.environ["LOCAL_WORLD_SIZE"])
        raise UserError(
            f"--trainer.devices {devices} and --trainer.num_nodes {hosts} make {devices * hosts} rank(s), but torchrun "
            f"started {started} process(es); set --trainer.devices {local} --trainer.num_nodes {started // local}"
        )


def wait_for(children: Iterable[subprocess.Popen]) -> int:
    """Wait for the ranks that this one started; the first exit code that is not 0, else 0.

    Lightning leaves at once, and calls a run good whose other ranks fail at the very end.
    """
    end, code = time.monotonic() + LAST_SECONDS, 0
    for child in children:
        try:
            code = code or child.wait(max(end - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            child.kill()
            print(f"error: another rank (process {child.pid}) does not end; it was killed", file=sys.stderr)
            code = code or 1
    return abs(code)


def leave(code: int) -> NoReturn:
    """End a rank that is done, after what was registered for the end (loggers').

    The interpreter's own end takes modules apart while gloo's threads still run, which now and then aborts the rank.
    """
    atexit._run_exitfuncs()
    end(code)


def rank() -> int:
    """This process's number, known before there is a process group."""
    names = ("RANK", "LOCAL_RANK", "SLURM_PROCID")  # torchrun's, Lightning's, SLURM's
    return int(next((os.environ[name] for name in names if name in os.environ), 0))


def fail(error: Exception | SystemExit | KeyboardInterrupt) -> NoReturn:
    """Say what went wrong, once for all ranks, and end.

    By code 2 for a user's mistake, 143 for SIGTERM, 130 for Ctrl-C (0 for both on the others of a ``fit``'s ranks,
    which end together), else 1.

    Raises:
        error: a bug's, in a process that is alone.
    """
    several = _several()
    if several and rank() and isinstance(error, Exception):
        # The first rank, if it failed too, takes this one with it; if it did not, nobody has said yet what is wrong.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(SPEAKS_ALONE_SECONDS)
    code, line = _verdict(error)
    if line:
        print(f"[rank: {rank()}] " * bool(rank()) + line, file=sys.stderr)
    if rank() and code in (128 + signal.SIGTERM, 128 + signal.SIGINT) and _told_to_end(error):
        code = 0  # what started this rank would take it for a fault, and end the first one, which may still save
    if several:
        if code is None:
            sys.excepthook(type(error), error, error.__traceback__)
        end(1 if code is None else code)
    if code is None:
        raise error
    sys.exit(code)


def stop_by_sigterm(*_: Any) -> NoReturn:
    """What SIGTERM does during a run, in the place of Lightning's handler.

    That one exchanges a tensor with the other ranks, wherever they are: in the middle of another exchange, both wait
    for ever.
    """
    from lightning.pytorch.utilities.exceptions import SIGTERMException

    raise SIGTERMException


def end_soon_after_sigterm() -> None:
    """From now on SIGTERM ends this rank after some seconds, whatever its main thread waits for.

    Python runs a handler between two of its own instructions, so never while the main thread waits in an exchange for a
    rank that is gone, of which NCCL tells it nothing. But the signal's number is written to a descriptor at once.
    """
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def watch() -> None:
        while signal.SIGTERM not in os.read(read, 1):
            pass
        time.sleep(GRACE_SECONDS)
        end(128 + signal.SIGTERM)

    threading.Thread(target=watch, name="sigterm-watch", daemon=True).start()


def _several() -> bool:
    """True if this process is one of several ranks; Lightning forgets it in the environment when a run ends."""
    from grpo_lightning import ranks

    return ranks.world_size() > 1 or int(os.environ.get("WORLD_SIZE", 1)) > 1 or rank() > 0


def end(code: int) -> NoReturn:
    """End this rank at once: the interpreter and the process group may wait for other ranks in vain."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _told_to_end(error: BaseException) -> bool:
    """True in a ``fit`` that a signal ends: one of any other command reaches a single rank, and must end the rest."""
    from grpo_lightning.interruption import Interrupted, received

    return isinstance(error, Interrupted) or received != 0


def _verdict(error: BaseException) -> tuple[int | None, str]:
    """Exit code, and what there is to say in one line; (None, "") for a bug, which needs its traceback."""
    from lightning.pytorch.utilities.exceptions import SIGTERMException

    from grpo_lightning.interruption import NAMES, received

    if isinstance(error, SIGTERMException):
        signum = getattr(error, "signum", signal.SIGTERM)
        return 128 + signum, f"stopped: by {NAMES[signum]}"
    if any(isinstance(cause, KeyboardInterrupt) for cause in _chain(error)):  # Lightning makes it a SystemExit
        return 128 + signal.SIGINT, f"stopped: by {NAMES[signal.SIGINT]}"
    if isinstance(error, SystemExit):  # the parser's
        return (error.code if isinstance(error.code, int) else int(error.code is not None)), ""
    for cause in _chain(error):  # jsonargparse wraps what a constructor raises
        if isinstance(cause, UserError):
            return 2, f"error: {cause}"
        if isinstance(cause, RunStopped):
            return 1, f"stopped: {cause}"
        if lost_peer(cause) and received:  # the other was told to end too
            return 128 + received, f"stopped: by {NAMES[received]}"
        if lost_peer(cause):
            return 1, "stopped: another rank is gone; if it did not say why, it was killed (out of memory?)"
        if type(cause).__module__.startswith("wandb.") and "API key" in str(cause):
            remedy = "`wandb login`, WANDB_MODE=offline, or --trainer.logger true for files alone"
            return 2, f"error: --trainer.logger: Weights & Biases knows nobody here: {remedy}"
        if isinstance(cause, OSError) and cause.errno in NO_DISK:
            return 1, f"stopped: {cause.filename or 'a file'} could not be written: {cause.strerror}"
    return None, ""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
