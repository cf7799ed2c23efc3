from __future__ import annotations

from pathlib import Path

from grpo_lightning.loggers import MetricsCSV, TensorBoard


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


def test_tensorboard_opens_with_the_first_figure(tmp_path: Path) -> None:
    logger = TensorBoard(str(tmp_path / "run"))
    assert not hasattr(logger, "experiment")  # what Lightning asks before any check has run
    logger.save()
    logger.finalize("success")
    assert not (tmp_path / "run").exists()
    logger.log_metrics({"loss": 0.5}, step=1)
    logger.finalize("success")
    assert list((tmp_path / "run" / "tensorboard").glob("events*"))
