"""The argument parser: LightningCLI's, with one line for a mistake instead of a page."""

from __future__ import annotations

import difflib
import re
import sys
from typing import Any, NoReturn

from lightning.pytorch.cli import LightningArgumentParser

NOISE = re.compile(r"Does not validate|Subtypes:|Errors:|Given value|- Expected a <class 'NoneType'>|Problem with given")
UNKNOWN = re.compile(r"unrecognized arguments: (\S+)|Option '([^']+)' is not accepted|Key '([^']+)' is not expected")


class OneLineParser(LightningArgumentParser):
    """Names the option, the value and the nearest valid option; abbreviated options are refused as unknown."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.allow_abbrev = False

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:  # parsing inside parsing: the outer parser words it
            super().error(message, ex)
        parser = getattr(ex, "subcommand_parser", None) or self
        sys.stderr.write(f"error: {one_line(message, list(parser._option_string_actions))}\n")
        self.exit(2)


def one_line(message: str, options: list[str]) -> str:
    """What matters of a parser's message.

    Args:
        message: as jsonargparse words it, over several lines.
        options: option strings the parser knows, for "did you mean".
    """
    head = re.match(r'Parser key "([^"]+)":', message)
    option = f"--{head.group(1)}" if head else ""
    body = message[head.end() :] if head else message
    parts = [line.strip().removeprefix("- ") for line in body.splitlines() if line.strip() and not NOISE.search(line)]
    text = " ".join(dict.fromkeys(parts)).strip()
    unknown = UNKNOWN.search(text)
    if unknown:
        name = next(group for group in unknown.groups() if group)
        name = name if name.startswith("--") else f"{option or '-'}.{name}".replace("-.", "--")
        close = difflib.get_close_matches(name.split("=")[0], options, n=1, cutoff=0.6)
        hint = f"did you mean {close[0]}?" if close else "`--help` lists the options"
        return f"{name}: unknown option; {hint}"
    return f"{option}: {text}" if option else text
