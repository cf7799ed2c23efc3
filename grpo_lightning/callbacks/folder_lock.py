"""One ``fit`` at a time in a run folder."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import lightning as L

from grpo_lightning import ranks
from grpo_lightning.errors import UserError

log = logging.getLogger(__name__)
NAME = ".lock"
"""The file that is locked; a run that is killed leaves it, and no lock on it."""
PATIENCE_SECONDS = 5.0
"""For a run that was killed, or told to end, to be gone."""
TAKEN = (errno.EAGAIN, errno.EACCES)
"""What the system says of a lock that another process holds."""


class FolderLock(L.Callback):
    """Refuses a second ``fit`` in a folder where one is running: they would write the same files.

    The first rank holds a lock of its process (POSIX, ``fcntl.lockf``) on a file of the folder, from before anything is
    moved there. The system drops it when that process ends, however that happens; processes that it has forked do not
    hold it, which they would do with ``flock``. Where files cannot be locked, a run goes on without.
    """

    def __init__(self) -> None:
        self._file: BinaryIO | None = None

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        # Early where there is a file already: a start that is refused for another reason is to leave none.
        if stage == "fit" and (Path(trainer.default_root_dir) / NAME).exists():
            self.on_fit_start(trainer, pl_module)

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if ranks.rank() == 0 and self._file is None:
            self._hold(Path(trainer.default_root_dir) / NAME)

    def release(self) -> None:
        """Once nothing more is written."""
        if self._file is not None:
            with suppress(OSError):
                os.unlink(self._file.name)  # while it is locked
            self._file.close()
            self._file = None

    def _hold(self, place: Path) -> None:
        """Lock the file and say in it who does.

        Raises:
            UserError: another process holds the lock, and still does after some seconds.
        """
        until = time.monotonic() + PATIENCE_SECONDS
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            file = place.open("a+b")
            while not _locked(file):
                if time.monotonic() > until:
                    file.seek(0)
                    holder = file.read(200).decode("utf-8", "replace").strip() or "another process"
                    raise UserError(
                        f"--trainer.default_root_dir {place.parent}: is in use by {holder}; choose another folder, or "
                        "wait for that run's end"
                    )
                time.sleep(0.1)
                file.close()
                file = place.open("a+b")
            self._file = file
            file.truncate(0)
            started = time.strftime("%Y-%m-%d %H:%M:%S")
            file.write(f"process {os.getpid()} on {socket.gethostname()} (started {started})\n".encode())
            file.flush()
        except OSError as error:
            log.warning("%s: cannot be locked (%s); see to it that no other run writes there", place, error.strerror)


def _locked(file: BinaryIO) -> bool:
    """True if the lock is ours now, on the file that still has its name: a run that ends removes it."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in TAKEN:
            return False
        raise
    return os.fstat(file.fileno()).st_nlink > 0
