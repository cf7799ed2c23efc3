from __future__ import annotations

import csv
import logging
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.loggers.logger import DummyLogger

from grpo_lightning import loggers
from grpo_lightning.callbacks.resume import ExactResume
from grpo_lightning.loggers import MetricsCSV, StepFigures, TensorBoard, outlived


def test_rows_are_written_at_once_and_columns_may_come_later(tmp_path: Path) -> None:
    logger = MetricsCSV(str(tmp_path / "run"))
    logger.log_metrics({"loss": 0.5}, step=1)
    assert logger.path.read_text() == "step,loss\n1,0.5\n"
    logger.log_metrics({"loss": 0.25}, step=2)
    assert logger.path.read_text() == "step,loss\n1,0.5\n2,0.25\n"
    logger.log_metrics({"val/accuracy": 0.75}, step=2)  # joins the row of its step
    assert logger.path.read_text() == "step,loss,val/accuracy\n1,0.5,\n2,0.25,0.75\n"
    logger.log_metrics({"loss": 0.125}, step=3)
    assert logger.path.read_text() == "step,loss,val/accuracy\n1,0.5,\n2,0.25,0.75\n3,0.125,\n"


def test_a_resumed_run_goes_on_in_the_file(tmp_path: Path) -> None:
    first = MetricsCSV(str(tmp_path))
    for step in (1, 2, 3):
        first.log_metrics({"loss": float(step)}, step=step)
    resumed = MetricsCSV(str(tmp_path))
    assert resumed.forget_after(2)
    assert not resumed.forget_after(2)
    resumed.log_metrics({"loss": 9.0}, step=3)
    assert resumed.path.read_text() == "step,loss\n1,1.0\n2,2.0\n3,9.0\n"
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.csv"]


def test_rows_of_a_long_run_are_not_held(tmp_path: Path) -> None:
    logger = MetricsCSV(str(tmp_path))
    tracemalloc.start()
    held = []
    for step in range(3000):
        logger.log_metrics({f"figure {number}": step + number / 7 for number in range(20)}, step=step)
        if step % 1000 == 999:
            held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert held[-1] - held[0] < 20_000  # bytes; 2,000 rows would take more than 2 MB


def test_half_a_line_of_a_killed_run_is_no_row(tmp_path: Path) -> None:
    """``1`` is what is left of step 12 and its figures."""
    (tmp_path / "metrics.csv").write_text("step,loss\n1,0.5\n11,0.25\n1")
    logger = MetricsCSV(str(tmp_path))
    logger.log_metrics({"loss": 0.125}, step=12)
    assert not logger.forget_after(12)
    logger.log_metrics({"val/accuracy": 1.0}, step=12)
    assert logger.path.read_text() == "step,loss,val/accuracy\n1,0.5,\n11,0.25,\n12,0.125,1.0\n"


def test_tensorboard_opens_with_the_first_figure(tmp_path: Path) -> None:
    logger = TensorBoard(str(tmp_path / "run"))
    assert not hasattr(logger, "experiment")  # what Lightning asks before any check has run
    logger.save()
    logger.finalize("success")
    assert not (tmp_path / "run").exists()
    logger.log_metrics({"loss": 0.5}, step=1)
    logger.finalize("success")
    assert list((tmp_path / "run" / "tensorboard").glob("events*"))


class Board(DummyLogger):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.points: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.points.append((step, metrics))


def test_the_file_gets_every_step_and_a_board_the_means_of_those_that_had_the_figure(tmp_path: Path) -> None:
    table, board, figures = MetricsCSV(str(tmp_path)), Board(), StepFigures()
    for step, values in enumerate(
        [{"loss": 1.0, "reward": 0.5, "learning_rate": 1e-3}, {"loss": 2.0, "learning_rate": 2e-3},
         {"loss": 6.0, "reward": 1.5, "learning_rate": 3e-3}, {"loss": 7.0}], start=1,
    ):  # fmt: skip
        figures.log(values, [table, board], step=step, every=3)
    assert board.points == [(3, {"loss": 3.0, "reward": 1.0, "learning_rate": 3e-3})]
    figures.flush([table, board], step=4)
    figures.flush([table, board], step=4)
    assert board.points[1:] == [(4, {"loss": 7.0})]
    assert [line.split(",")[:2] for line in table.path.read_text().splitlines()[1:]] == [
        ["1", "1.0"], ["2", "2.0"], ["3", "6.0"], ["4", "7.0"],
    ]  # fmt: skip


def test_rows_that_a_full_disk_refused_are_written_with_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = MetricsCSV(str(tmp_path))
    logger.log_metrics({"loss": 1.0}, step=1)
    whole = logger.path.rename(tmp_path / "whole")
    logger.path.symlink_to("/dev/full")  # refuses every byte, as a full disk does

    def refuse(path: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(loggers, "replacing", refuse)
        logger.log_metrics({"loss": 2.0}, step=2)
        whole.replace(logger.path)
        logger.log_metrics({"loss": 3.0}, step=3)
    assert logger.path.read_text() == "step,loss\n1,1.0\n"
    with logger.path.open("a") as file:
        file.write("2,")  # what the disk had still taken
    logger.log_metrics({"loss": 4.0}, step=4)
    logger.log_metrics({"loss": 5.0}, step=5)
    assert logger.path.read_text() == "step,loss\n1,1.0\n2,2.0\n3,3.0\n4,4.0\n5,5.0\n"
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "WARNING: metrics.csv cannot be written: No space left on device; its rows are kept, and tried again",
        "metrics.csv cannot be written: works again",
    ]


def test_rows_that_were_refused_are_tried_again_before_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise OSError(28, "No space left on device")

    logger = MetricsCSV(str(tmp_path))
    with monkeypatch.context() as full:
        full.setattr(loggers, "replacing", refuse)
        logger.log_metrics({"loss": 1.0}, step=1)
        trainer: Any = SimpleNamespace(loggers=[logger], callbacks=[], strategy=SimpleNamespace(root_device=None))
        checkpoint: dict[str, Any] = {"callbacks": {}}
        ExactResume().on_save_checkpoint(trainer, None, checkpoint)
    assert not logger.path.exists()
    ExactResume().on_save_checkpoint(trainer, None, {})
    assert logger.path.read_text() == "step,loss\n1,1.0\n"
    logger.path.write_text("step,loss\n2,2.0\n")
    trainer.loggers = [MetricsCSV(str(tmp_path))]  # of a run that goes on from where the disk was full
    ExactResume().on_load_checkpoint(trainer, SimpleNamespace(optimizer_factory=None), checkpoint)
    assert logger.path.read_text() == "step,loss\n1,1.0\n2,2.0\n"


def test_events_that_cannot_be_written_are_tried_again_in_a_new_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = TensorBoard(str(tmp_path))
    logger.log_metrics({"loss": 0.5}, step=1)
    writer = logger.experiment

    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer, "add_scalar", refuse)
    for step in (2, 3):
        logger.log_metrics({"loss": 0.5}, step=step)
        logger.save()
    assert caplog.text.count("No space left on device; metrics.csv has them all") == 1
    monkeypatch.setattr(loggers, "REOPEN_SECONDS", 0.0)
    logger.log_metrics({"loss": 0.5}, step=4)
    assert logger.experiment is not writer
    logger.finalize("success")


class Server(DummyLogger):
    """A logger that talks to a server, which goes away."""

    def __init__(self) -> None:
        super().__init__()
        self.there, self.points = True, 0

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        if not self.there:
            raise ConnectionError("nobody answers")
        self.points += 1


def test_a_logger_that_has_worked_ends_no_run(caplog: pytest.LogCaptureFixture) -> None:
    never, lost = Server(), Server()
    never.there = False
    with pytest.raises(ConnectionError):
        outlived(never).log_metrics({}, step=1)
    outlived(lost)
    with caplog.at_level(logging.WARNING, logger="grpo_lightning"):
        for step, there in enumerate((True, False, False, True), start=1):
            lost.there = there
            lost.log_metrics({}, step=step)
    assert lost.points == 2
    assert [record.getMessage() for record in caplog.records] == [
        "WARNING: Server fails: ConnectionError: nobody answers; metrics.csv has every figure",
        "Server fails: works again",
    ]


def test_names_with_line_breaks_of_any_kind_outlive_a_resume(tmp_path: Path) -> None:
    names = ["a\u2028b", "c\rd", "e\nf", "g\x85h"]
    MetricsCSV(str(tmp_path)).log_metrics(dict.fromkeys(names, 0.5), step=1)
    with (tmp_path / "metrics.csv").open("a", newline="") as file:
        file.write("2,0.5,")
    MetricsCSV(str(tmp_path)).log_metrics({names[1]: 2.0}, step=3)
    with (tmp_path / "metrics.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["step"], row[names[1]]) for row in rows] == [("1", "0.5"), ("3", "2.0")]
    assert list(rows[0]) == ["step", *names]
