"""The page that ``check`` prints, section by section, and the mistakes that it finds on the way."""

from __future__ import annotations

import logging
import re
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from lightning.pytorch.utilities.exceptions import MisconfigurationException

from grpo_lightning.errors import RunStopped, UserError, in_one_line

WIDTH = 110
OPTION = re.compile(r"--[\w.]*\w")
T = TypeVar("T")


class Page:
    """Plain text on stdout, in sections, each printed as soon as it is known.

    What the package logs meanwhile is part of the page: information as a line, a warning as a line that begins with
    ``!``. Nothing is said twice.
    """

    def __init__(self) -> None:
        self.mistakes: list[str] = []
        """One line each: option and value, what is wrong, what to do."""
        self.set_back: set[str] = set()
        """Options that are looked at no further, since their default stands in for a value that was refused."""
        self._said: set[str] = set()

    @contextmanager
    def section(self, title: str) -> Iterator[None]:
        """Everything that is said or logged until its end stands under ``title``."""
        print(f"\n{title}\n{'-' * len(title)}")
        log = logging.getLogger("grpo_lightning")
        handlers, level, propagate = log.handlers, log.level, log.propagate
        log.handlers, log.propagate = [_Messages(self)], False
        log.setLevel(logging.INFO)
        try:
            yield
        finally:
            log.handlers, log.propagate = handlers, propagate
            log.setLevel(level)

    def say(self, text: str, *, mark: str = "") -> None:
        """One paragraph; ``mark`` stands in front of it."""
        if text in self._said:
            return
        self._said.add(text)
        first = f"  {mark} " if mark else "  "
        print(textwrap.fill(text, WIDTH, initial_indent=first, subsequent_indent=" " * (len(first) + 2)), flush=True)

    def show(self, lines: str) -> None:
        """Lines as they are, such as a table's."""
        print(textwrap.indent(lines, "  "), flush=True)

    def attempt(self, step: Callable[[], T]) -> T | None:
        """What ``step`` returns; if it fails by a mistake of the user's, None, and the mistake is on the page."""
        try:
            return step()
        except (UserError, RunStopped) as error:
            mistake = str(error)
        except MisconfigurationException as error:
            mistake = f"--trainer: {in_one_line(error)}"
        self.note(mistake)
        return None

    def note(self, mistake: str) -> None:
        """Keep a mistake, one line, and go on."""
        if mistake not in self.mistakes and not self.set_back.intersection(OPTION.findall(mistake)):
            self.mistakes.append(mistake)
            self.show("ERROR, told at the end of the page")

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Whatever unexpected error happens inside, the verdict is printed before its traceback."""
        try:
            yield
        except Exception:
            self.close(finished=False)
            raise

    def close(self, *, finished: bool = True) -> None:
        """The verdict, and every mistake in one line.

        Args:
            finished: false if an error that is none of the user's ended the check.
        """
        found = len(self.mistakes)
        verdict = f"{f'{found} mistake' + 's' * (found > 1) if found else 'No mistake'} found"
        print(f"\n{verdict}{'' if finished else ' before an error ended the check'}.", flush=True)
        for mistake in self.mistakes:
            print(f"error: {mistake}", flush=True)


class _Messages(logging.Handler):
    def __init__(self, page: Page) -> None:
        super().__init__(logging.INFO)
        self._page = page

    def emit(self, record: logging.LogRecord) -> None:
        text, _, trace = record.getMessage().partition("\n")
        self._page.say(text, mark="!" if record.levelno >= logging.WARNING else "")
        if trace:
            self._page.show(trace)
