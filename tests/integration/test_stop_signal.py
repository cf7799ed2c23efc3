"""SIGUSR1 ends a run between two rollouts, and the run that goes on ends like one that was never stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from tests.integration.command_line import equal, exported_weights, fit, grpo, records, rows, untimed

pytestmark = pytest.mark.integration

MODEL_CHECKPOINT = "lightning.pytorch.callbacks.ModelCheckpoint"


def announce(step: int, **options: Any) -> dict[str, Any]:
    return {"class_path": "tests.integration.stopping.Announce", "init_args": {"step": step, **options}}


def weights(run: Path) -> dict[str, torch.Tensor]:
    newest = max((run / "checkpoints").glob("*.ckpt"), key=lambda path: path.lstat().st_mtime)
    return torch.load(newest, map_location="cpu", weights_only=True)["state_dict"]


def whole_and_part(tiny: Path, tmp_path: Path, **changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The configurations of a run over one epoch of four rollouts, and of the same run that will be stopped."""
    whole, part = (grpo(tiny, tmp_path / name, trainer__max_steps=-1, **changes) for name in ("whole", "part"))
    return whole, part


def assert_goes_on(capsys: pytest.CaptureFixture[str], whole: dict[str, Any], part: dict[str, Any]) -> None:
    """Both runs to their end: figures and weights are equal."""
    part["trainer"]["callbacks"] = whole["trainer"].get("callbacks", [])
    fit(capsys, part, "--ckpt_path=last")
    fit(capsys, whole)
    part, whole = (Path(config["trainer"]["default_root_dir"]) for config in (part, whole))
    assert len(rows(whole)) > 1
    assert untimed(part) == untimed(whole)
    ours, theirs = weights(part), weights(whole)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert not list(part.glob("previous-*"))
    assert (part / "hf").exists()


@pytest.mark.parametrize("updates", [1, 2])
def test_after_the_rollout_at_hand(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], updates: int
) -> None:
    """Not inside a rollout, whose other windows would be lost; without the evaluation of its end, and the export."""
    whole, part = whole_and_part(
        tiny, tmp_path, rollout__updates_per_rollout=updates, trainer__limit_val_batches=1, trainer__min_steps=8
    )
    part["trainer"]["callbacks"] = [announce(updates + 1)]
    outcome = fit(capsys, part)
    assert f"stopping by SIGUSR1 after step {2 * updates}; go on with --ckpt_path last" in outcome.err
    run = tmp_path / "part"
    assert [row["step"] for row in rows(run)] == [str(step) for step in range(1, 2 * updates + 1)]
    assert not (run / "evaluations.jsonl").exists()
    assert not (run / "hf").exists()
    for config in (whole, part):
        del config["trainer"]["min_steps"]
    assert_goes_on(capsys, whole, part)
    assert [line["step"] for line in records(run / "evaluations.jsonl")] == [4 * updates]


@pytest.mark.parametrize("validating", [False, True])
def test_after_the_evaluation_that_is_due(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], validating: bool
) -> None:
    whole, part = whole_and_part(tiny, tmp_path, trainer__limit_val_batches=1, trainer__val_check_interval=2)
    part["trainer"]["callbacks"] = [announce(2, validating=validating)]
    fit(capsys, part)
    run, figures = tmp_path / "part", untimed(tmp_path / "part")
    assert [row["step"] for row in figures] == ["1", "2"]
    assert [line["step"] for line in records(run / "evaluations.jsonl")] == [2]
    if not validating:  # exported later, without another step
        fit(capsys, part, "--ckpt_path=last", "--trainer.max_steps=2")
        assert untimed(run) == figures
        trained = {name.removeprefix("policy.model."): weight for name, weight in weights(run).items()}
        assert equal(exported_weights(run), trained)
        assert "| 2 | running_totals |" in (run / "hf" / "README.md").read_text()
    assert_goes_on(capsys, whole, part)
    assert [line["step"] for line in records(tmp_path / "part" / "evaluations.jsonl")] == [2, 4]


def test_with_checkpoints_of_the_users_own(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """None of which is due where the run stops."""
    own = {"class_path": MODEL_CHECKPOINT, "init_args": {"save_last": True}}
    whole, part = whole_and_part(tiny, tmp_path, trainer__callbacks=[own])
    part["trainer"]["callbacks"] = [own, announce(2)]
    fit(capsys, part)
    assert [path.name for path in (tmp_path / "part" / "checkpoints").iterdir()] == ["last-step2.ckpt"]
    assert_goes_on(capsys, whole, part)


def test_with_checkpoints_on_another_machine(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = {"class_path": MODEL_CHECKPOINT, "init_args": {"dirpath": f"memory://{tmp_path.name}"}}
    said = fit(capsys, grpo(tiny, tmp_path / "run", trainer__callbacks=[own, announce(2)], trainer__max_steps=-1)).err
    place = f"memory://{tmp_path.name}/last-step2.ckpt"
    assert f"stopping by SIGUSR1 after step 2; go on with --ckpt_path {place}" in said
    assert fsspec.filesystem("memory").size(place) > 1000


def test_without_checkpoints(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = grpo(tiny, tmp_path / "run", trainer__enable_checkpointing=False, trainer__max_steps=3)
    config["trainer"]["callbacks"] = [announce(1)]
    assert "after step 1 without a checkpoint" in fit(capsys, config).err
    assert len(rows(tmp_path / "run")) == 1


def test_killed_while_a_checkpoint_took_the_place_of_another(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The link still names the older file, which is gone; the newer one is there."""
    config = grpo(tiny, tmp_path / "run")
    fit(capsys, config)
    link = tmp_path / "run" / "checkpoints" / "last.ckpt"
    link.unlink()
    link.symlink_to("step1.ckpt")
    fit(capsys, config, "--trainer.max_steps=3", "--ckpt_path=last")
    assert [row["step"] for row in rows(tmp_path / "run")] == ["1", "2", "3"]
    assert not list((tmp_path / "run").glob("previous-*"))
