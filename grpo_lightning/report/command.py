"""``python -m grpo_lightning report RUN_DIR... [--output report.html]``."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import ArgumentError, ArgumentParser

from grpo_lightning.errors import UserError, in_one_line
from grpo_lightning.files import replacing
from grpo_lightning.report.page import render
from grpo_lightning.report.reading import Run, is_run, read_run, short_names

FILE = "report.html"


def main(args: list[str]) -> None:
    """Parse the command line, write the page, say where it is."""
    parser = ArgumentParser(
        prog="python -m grpo_lightning report",
        exit_on_error=False,
        description="Writes one HTML page about one run, or several side by side; it opens offline in any browser.",
    )
    parser.add_argument("runs", nargs="+", type=str, help="run folders (--trainer.default_root_dir of `fit`)")
    parser.add_argument(
        "--output", type=str | None, default=None, help="the page; default: report.html in the run's folder, or here"
    )
    try:
        given = parser.parse_args(args)
    except ArgumentError as error:
        raise UserError(f"report: {in_one_line(error)}; try `report --help`") from error
    print(write_report([Path(run) for run in given.runs], given.output))


def write_report(folders: list[Path], output: str | Path | None = None) -> Path:
    """The page of one or several run folders.

    Args:
        folders: of runs that have ended or are going on.
        output: file to write; None takes ``report.html`` in the folder of the only run, else in the current folder.

    Returns:
        The file, whole or not there at all.

    Raises:
        UserError: a folder is no run's, or the file cannot be written.
    """
    distinct = list({folder.resolve(): folder for folder in folders}.values())
    for folder in distinct:
        if not is_run(folder):
            raise UserError(f"report {folder}: {_what_it_is(folder)}")
    runs: list[Run] = [
        read_run(folder, name=name, of=len(distinct))
        for folder, name in zip(distinct, short_names(distinct), strict=True)
    ]
    file = Path(output) if output is not None else (distinct[0] / FILE if len(distinct) == 1 else Path(FILE))
    # What has no form in UTF-8 has been replaced where it was read; this is for the names of folders.
    content = render(runs).encode("utf-8", "replace")
    try:
        with replacing(file) as page:
            page.write(content)
    except OSError as error:
        raise UserError(
            f"--output {file}: cannot be written ({error.strerror}); name another file by --output"
        ) from error
    return file


def _what_it_is(folder: Path) -> str:
    wanted = "give a run's folder (--trainer.default_root_dir)"
    try:
        if not folder.exists():
            return f"there is no such folder; {wanted}"
        if not folder.is_dir():
            return f"is a file; {wanted}"
        inside = sorted(str(child) for child in folder.iterdir() if child.is_dir() and is_run(child))
    except OSError as error:
        return f"cannot be read ({error.strerror}); {wanted}"
    wanted = f"give {' or '.join(inside[:3])}" if inside else wanted
    return f"is no run folder (it has neither metrics.csv nor config.yaml); {wanted}"
