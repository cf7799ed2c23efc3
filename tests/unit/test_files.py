"""A file or folder is the old one or the new one, wherever its writing is cut off."""

from __future__ import annotations

import logging
import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from grpo_lightning import files
from grpo_lightning.files import BEFORE, DRAFT, Outlived, discard, put_back, replacing, sweep, take_place


def content(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_the_new_file_takes_the_place_of_the_old_one_once_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, order = tmp_path / "a", []
    file.write_text("old")
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda number: (order.append("on disk"), fsync(number)))
    monkeypatch.setattr(Path, "replace", lambda path, to: (order.append(content(tmp_path)), replace(path, to)))
    with replacing(file) as draft:
        draft.write(b"new")
    assert order == ["on disk", {"a": "old", f"a{DRAFT}": "new"}, "on disk"]  # the last: of the folder's names
    assert content(tmp_path) == {"a": "new"}


@pytest.mark.parametrize("end", [KeyboardInterrupt, OSError])
def test_what_is_cut_off_leaves_the_old_file_alone(tmp_path: Path, end: type[BaseException]) -> None:
    file = tmp_path / "a"
    file.write_text("old")

    def half() -> None:
        with replacing(file) as draft:
            draft.write(b"ne")
            raise end

    with pytest.raises(end):
        half()
    assert content(tmp_path) == {"a": "old"}


def test_a_folder_in_the_place_of_another_and_of_a_file(tmp_path: Path) -> None:
    for older in ("folder", "file"):
        draft, place = tmp_path / f"x{DRAFT}", tmp_path / older
        draft.mkdir()
        (draft / "shard").write_text("new")
        if older == "folder":
            place.mkdir()
            (place / "other").write_text("old")
        else:
            place.write_text("old")
        take_place(draft, place)
        assert content(place) == {"shard": "new"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.parametrize("fault", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("moment", ["first renaming", "second renaming", "removal"])
def test_a_folder_whose_taking_of_a_place_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, fault: type[BaseException]
) -> None:
    """By a kill: afterwards a whole folder is in the place. Or the system refuses: then the old one is there at once,
    or the new one if it is the old one that cannot be removed."""
    draft, place, other = tmp_path / f"last.ckpt{DRAFT}", tmp_path / "last.ckpt", tmp_path / "step1.ckpt"
    for folder, text in ((draft, "new"), (place, "old")):
        folder.mkdir()
        (folder / "shard").write_text(text)
        (folder / ".metadata").write_text(text)
    other.write_text("a file")

    def stops(path: Path, *_: object, **options: object) -> None:
        if moment == "removal":
            (path / ".metadata").unlink()
        raise fault

    name = {"first renaming": "rename", "second renaming": "replace"}.get(moment)
    with monkeypatch.context() as patch:
        if name is None:
            patch.setattr(files.shutil, "rmtree", stops)
        else:
            patch.setattr(Path, name, stops)
        with nullcontext() if moment == "removal" and fault is OSError else pytest.raises(fault):
            take_place(draft, place)
    killed_between = moment == "second renaming" and fault is KeyboardInterrupt
    assert place.exists() != killed_between
    assert put_back(tmp_path)
    new = killed_between or moment == "removal"
    assert content(place) == dict.fromkeys(("shard", ".metadata"), "new" if new else "old")
    sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last.ckpt", "step1.ckpt"]


def test_an_empty_place_gets_the_old_folder_back_where_the_new_one_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = tmp_path / f"last.ckpt{BEFORE}"
    before.mkdir()
    (before / "shard").write_text("old")

    def refused(path: Path, to: Path) -> None:
        raise OSError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refused)
        sweep(tmp_path)
    assert "cannot be renamed" in caplog.text
    assert content(before) == {"shard": "old"}, "removed, though it is all there is"
    sweep(tmp_path)
    assert content(tmp_path / "last.ckpt") == {"shard": "old"}
    assert [path.name for path in tmp_path.iterdir()] == ["last.ckpt"]


def test_a_folder_that_is_half_removed_has_its_name_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "step4.ckpt"
    place.mkdir()
    (place / "shard").write_text("x")

    def killed(path: Path, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(files.shutil, "rmtree", lambda path, ignore_errors=False: ignore_errors or killed(path))
        with pytest.raises(KeyboardInterrupt):
            discard(place)
    assert [path.name for path in tmp_path.iterdir()] == [f"step4.ckpt.old{DRAFT}"]
    (tmp_path / f"step5.ckpt{DRAFT}").write_text("half")
    (tmp_path / "model.partial").write_text("a download")
    (tmp_path / "step3.ckpt").write_text("whole")
    sweep(tmp_path)
    assert content(tmp_path) == {"step3.ckpt": "whole", "model.partial": "a download"}


def test_a_link_goes_and_what_it_names_stays(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    discard(tmp_path / "link")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_series_of_failures_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    outlived = Outlived("metrics.csv", consequence="training goes on")
    with caplog.at_level(logging.WARNING, logger="grpo_lightning"):
        for works in (False, False, True, True, False):
            with outlived():
                if not works:
                    raise OSError(28, "No space left on device")
            assert outlived.failing != works
    failure = "WARNING: metrics.csv: No space left on device; training goes on"
    assert [record.getMessage() for record in caplog.records] == [failure, "metrics.csv: works again", failure]
    with pytest.raises(ValueError, match="a bug"), outlived():
        raise ValueError("a bug")
