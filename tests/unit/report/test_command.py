"""The command: where the page goes, and one line for a mistake."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from grpo_lightning.__main__ import main
from grpo_lightning.errors import UserError
from grpo_lightning.files import DRAFT, draft_of
from grpo_lightning.report.command import write_report
from tests.unit.report.run_folders import run_folder


def test_one_run_has_its_page_in_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_folder(tmp_path / "one")
    main(["report", str(folder)])
    assert capsys.readouterr().out == f"{folder / 'report.html'}\n"
    assert (folder / "report.html").read_text("utf-8").startswith("<!doctype html>")
    assert not list(folder.glob(f"*{DRAFT}"))


def test_several_runs_have_theirs_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [run_folder(tmp_path / name) for name in ("one", "two")]
    monkeypatch.chdir(tmp_path)
    assert write_report([*folders, folders[0]]) == Path("report.html")
    page = Path("report.html").read_text("utf-8")
    assert "2 runs side by side" in page
    assert "<bdi>one</bdi>" in page
    assert write_report(folders, tmp_path / "deep" / "page.html").exists()


@pytest.mark.parametrize(
    ("make", "given", "said"),
    [
        ("", "nowhere", "there is no such folder; give a run's folder"),
        ("empty/x", "empty", "is no run folder (it has neither metrics.csv nor config.yaml); give a run's folder"),
        ("outer/run/metrics.csv", "outer", "is no run folder (it has neither metrics.csv nor config.yaml); give "),
        ("file", "file", "is a file; give a run's folder"),
    ],
)
def test_a_folder_that_is_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: str, given: str, said: str
) -> None:
    if make:
        (tmp_path / make).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / make).write_text("")
    with pytest.raises(SystemExit) as end:
        main(["report", str(tmp_path / given)])
    assert end.value.code == 2
    line = capsys.readouterr().err
    assert line.startswith(f"error: report {tmp_path / given}: {said}")
    assert line.count("\n") == 1
    if given == "outer":
        assert str(tmp_path / "outer" / "run") in line


@pytest.mark.parametrize("words", [[], ["--outptu", "x"]])
def test_a_wrong_command_line(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["report", *words])
    assert end.value.code == 2
    line = capsys.readouterr().err
    assert line.startswith("error: report: ")
    assert line.count("\n") == 1


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "one")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"--output .*file/x.html: cannot be written \(.+\); name another file"):
        write_report([folder], tmp_path / "file" / "x.html")
    if Path("/dev/full").exists():
        os.symlink("/dev/full", draft_of(folder / "report.html"))
        with pytest.raises(UserError, match="No space left"):
            write_report([folder])
        assert not (folder / "report.html").exists()
