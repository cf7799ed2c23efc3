"""What ends a command with one line, and a library's message put into one."""

from __future__ import annotations


class UserError(ValueError):
    """Bad input from the user: one line that says what is wrong, where, and what to do.

    The command line prints the message alone, without a traceback, and exits with code 2. Raise it for a wrong flag,
    file or data set; never for a bug of our own.
    """


class RunStopped(RuntimeError):
    """The run cannot go on, and the message says why in one line; the command line exits with code 1.

    For conditions found while training that are neither a user's typing mistake nor a bug of our own: a sampler that
    no longer agrees with the trainer, a loss that stays NaN.
    """


def in_one_line(error: Exception) -> str:
    """A library's message without its line breaks and indents."""
    return " ".join(str(error).split())


def lost_peer(error: BaseException) -> bool:
    """True for what gloo and NCCL raise when another rank has ended, which is never the reason of anything."""
    text = str(error)
    return isinstance(error, RuntimeError) and ("gloo/transport" in text or "remote process exited" in text)
