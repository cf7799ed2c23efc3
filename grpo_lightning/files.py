"""Files that a kill at any byte, or a full disk, leaves either old or new; and failures that a run outlives."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

log = logging.getLogger(__name__)
DRAFT = ".grpo-partial"
"""Ends the name of what is being written; nothing reads it, and the next start removes it."""
BEFORE = f".before{DRAFT}"
"""Ends the name of what a new folder takes the place of: still whole, as the new one is, until the place is taken."""


def draft_of(path: Path) -> Path:
    """Where ``path`` is written first: beside it, since only within one file system is a renaming all or nothing."""
    return path.with_name(path.name + DRAFT)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of ``path`` once it is complete and on disk.

    However this is interrupted, ``path`` is what it was; a kill leaves the draft beside it.
    """
    draft = draft_of(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        take_place(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def take_place(draft: Path, path: Path) -> None:
    """Rename ``draft``, which is on disk, to ``path``, and have the disk know of it.

    A renaming takes the place of a file alone. Where a folder is involved, what is there is renamed first, and removed
    last; a kill in between leaves the place empty, and ``put_back`` fills it.
    """
    before = path.with_name(path.name + BEFORE)
    aside = os.path.lexists(path) and (path.is_dir() or draft.is_dir())
    if aside:
        discard(before)
        path.rename(before)
    try:
        draft.replace(path)
    except OSError:
        if aside:
            before.rename(path)
        raise
    on_disk(path.parent)
    if aside:
        _remove(before)


def put_back(folder: Path) -> bool:
    """Fill the places in ``folder`` that a kill has left empty: with the new content, or else with the old.

    Other processes may do so at the same time.

    Returns:
        False if one is still empty.
    """
    empty = False
    for before in folder.glob(f"*{BEFORE}"):
        path = before.with_name(before.name.removesuffix(BEFORE))
        for whole in (draft_of(path), before):
            if not os.path.lexists(path):
                with suppress(OSError):
                    whole.rename(path)
        empty |= not os.path.lexists(path)
    return not empty


def on_disk(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, has reached the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def discard(path: Path) -> None:
    """Remove a file, link or folder, if it is there.

    A folder is renamed first: a kill half-way through must not leave some of it under its own name.
    """
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    doomed = path if path.name.endswith(DRAFT) else path.with_name(f"{path.name}.old{DRAFT}")
    if doomed != path:
        shutil.rmtree(doomed, ignore_errors=True)
        path.rename(doomed)
    shutil.rmtree(doomed)


def sweep(folder: Path) -> None:
    """Remove the drafts that a killed run has left in ``folder``, after ``put_back``."""
    if not put_back(folder):
        log.warning("%s: what a killed run has left there cannot be renamed", folder)
        return
    for path in folder.glob(f"*{DRAFT}"):
        _remove(path)


def _remove(path: Path) -> None:
    try:
        discard(path)
    except OSError as error:
        log.warning("%s, which is not needed any more, cannot be removed: %s", path, error.strerror)


class Outlived:
    """Failures of something that training can do without, each series of which is said once.

    Args:
        what: the thing that fails, as the message names it.
        consequence: what follows, as the message's last words.
        failures: kinds of exceptions that are outlived.
    """

    def __init__(
        self, what: str, *, consequence: str, failures: type[Exception] | tuple[type[Exception], ...] = OSError
    ) -> None:
        self.what, self.consequence, self.failures = what, consequence, failures
        self.failing = False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Try what stands inside; afterwards ``failing`` says how it went."""
        try:
            yield
        except self.failures as error:
            if not self.failing:
                log.warning("WARNING: %s: %s; %s", self.what, said(error), self.consequence)
            self.failing = True
        else:
            if self.failing:
                log.warning("%s: works again", self.what)
            self.failing = False


def said(error: BaseException) -> str:
    """An exception in one line: the system's own words for what the system refused."""
    if isinstance(error.__cause__, OSError):  # which a library has wrapped
        error = error.__cause__
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
