"""The one exception for a user's mistake."""

from __future__ import annotations


class UserError(ValueError):
    """Bad input from the user: one line that says what is wrong, where, and what to do.

    The command line prints the message alone, without a traceback, and exits with code 2. Raise it for a wrong flag,
    file or data set; never for a bug of our own.
    """
