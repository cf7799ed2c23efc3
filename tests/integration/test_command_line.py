"""``fit`` as users compose, repeat, move and resume it."""

from __future__ import annotations

import inspect
from functools import partial
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from grpo_lightning import GRPOModule, PromptDataModule, RolloutCallback, SFTModule, cli
from grpo_lightning.callbacks.checkpoint import RunCheckpoint
from grpo_lightning.callbacks.evaluation import EvaluationCallback
from grpo_lightning.callbacks.export import ExportCallback
from grpo_lightning.callbacks.samples import SamplesCallback
from grpo_lightning.policy_module import PolicyModule
from grpo_lightning.rewards import RewardScorer
from tests.integration.command_line import (
    checkpoint_content,
    equal,
    exported_weights,
    fit,
    grpo,
    listing,
    rows,
    run,
    totals,
    untimed,
    written,
)

pytestmark = pytest.mark.integration

CALLBACKS = "tests.integration.stopping"


def test_later_files_and_flags_win(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = written(grpo(tiny, tmp_path / "run"), tmp_path / "a.yaml")
    second = written({"rollout": {"group_size": 5}, "model": {"init_args": {"lr": 0.5}}}, tmp_path / "b.yaml")
    outcome = run(capsys, "fit", "--config", first, "--config", second, "--model.lr=0.25", "--print_config")
    config = yaml.safe_load(outcome.out)
    assert config["rollout"]["group_size"] == 5
    assert config["rollout"]["max_completion_length"] == 8
    assert config["model"]["init_args"]["lr"] == 0.25
    assert config["model"]["init_args"]["policy"] == str(tiny)
    assert not (tmp_path / "run").exists()

    # Wherever the files stand, and a group's file too.
    group = written({"group_size": 3, "temperature": 0.5}, tmp_path / "rollout.yaml")
    words = ["--model.lr=0.25", "--rollout.group_size", "6", "-c", first, "--rollout", group, f"--config={second}"]
    config = yaml.safe_load(run(capsys, "fit", *words, "--print_config").out)
    assert (config["rollout"]["group_size"], config["rollout"]["temperature"]) == (6, 0.5)
    assert config["model"]["init_args"]["lr"] == 0.25


def test_every_constructor_argument_is_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    """The saved configuration lists every argument, so nothing that a run used is left unsaid."""
    model = ["--model=grpo_lightning.GRPOModule", "--model.policy=x"]
    data = ["--data.source=grpo_lightning.data.RunningTotals", "--data.prompts_per_step=4"]
    config = yaml.safe_load(run(capsys, "fit", *model, *data, "--print_config").out)
    supervised = ["--model=grpo_lightning.SFTModule", "--model.policy=x"]
    sft = yaml.safe_load(run(capsys, "fit", *supervised, *data, "--print_config").out)
    for given, kinds in (
        (config["model"]["init_args"], [GRPOModule, PolicyModule]),
        (sft["model"]["init_args"], [SFTModule, PolicyModule]),
        (config["data"], [PromptDataModule]),
        (config["rollout"], [RolloutCallback, RewardScorer]),
        (config["evaluation"], [EvaluationCallback]),
        (config["samples"], [SamplesCallback]),
        (config["export"], [ExportCallback]),
    ):
        names = {name for kind in kinds for name in inspect.signature(kind).parameters} - {"kwargs", "scoring"}
        assert given.keys() == names


def test_the_saved_configuration_repeats_the_run(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Same configuration, same run, to the last bit; nothing of the first is lost when the second takes its folder."""
    folder = tmp_path / "run"
    fit(capsys, grpo(tiny, folder, rollout__passes=2, trainer__max_steps=4))
    assert [row["step"] for row in rows(folder)] == ["1", "2", "3", "4"]
    assert not equal(exported_weights(folder), load_file(tiny / "model.safetensors"))
    first = listing(folder)
    outcome = run(capsys, "fit", "--config", str(folder / "config.yaml"))
    assert outcome.code == 0
    assert "held a run already; moved it to" in outcome.err
    assert listing(folder / "previous-1") == first
    assert untimed(folder) == untimed(folder / "previous-1")
    assert equal(exported_weights(folder), exported_weights(folder / "previous-1"))
    assert (folder / "config.yaml").read_text() == (folder / "previous-1" / "config.yaml").read_text()

    # A file named in --config may itself be moved: a third run, again from the folder's own configuration.
    assert run(capsys, "fit", "--config", str(folder / "config.yaml"), "--seed_everything=2").code == 0
    assert listing(folder / "previous-1") == first
    assert untimed(folder) != untimed(folder / "previous-2")
    assert not equal(exported_weights(folder), exported_weights(folder / "previous-2"))


def test_the_last_checkpoint_is_where_the_run_ended(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Validated after step 3, ended after step 4."""
    config = grpo(tiny, tmp_path / "run", trainer__max_steps=4, trainer__val_check_interval=3)
    config["trainer"]["limit_val_batches"] = 1.0
    fit(capsys, config)
    checkpoints = tmp_path / "run" / "checkpoints"
    assert sorted(path.name for path in checkpoints.iterdir()) == ["last.ckpt", "step4.ckpt"]
    assert checkpoint_content(checkpoints / "last.ckpt")["global_step"] == 4


@pytest.mark.parametrize("named", [False, True])
def test_checkpoints_within_a_long_epoch(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """Every so many rollouts, the newest alone is kept, and stored once; a run that breaks off goes on from there."""
    monkeypatch.setattr(cli, "RunCheckpoint", partial(RunCheckpoint, every_n_rollouts=3))
    whole = grpo(tiny, tmp_path / "whole", trainer__max_steps=-1, data__source=totals("train", 32))
    fit(capsys, whole)
    broken = grpo(tiny, tmp_path / "broken", trainer__max_steps=-1, data__source=totals("train", 32))
    broken["trainer"]["callbacks"] = [{"class_path": f"{CALLBACKS}.BreakOff", "init_args": {"step": 4}}]
    with pytest.raises(RuntimeError, match="broke off"):
        fit(capsys, broken)
    checkpoints = tmp_path / "broken" / "checkpoints"
    assert sorted(path.name for path in checkpoints.iterdir()) == ["last.ckpt", "step3.ckpt"]
    assert (checkpoints / "last.ckpt").readlink() == Path("step3.ckpt")
    del broken["trainer"]["callbacks"]
    fit(capsys, broken, "--ckpt_path", str(checkpoints / "step3.ckpt") if named else "last")
    # What a command names is not removed by it.
    left = ["step3.ckpt"] if named else []
    assert sorted(path.name for path in checkpoints.iterdir()) == ["last.ckpt", *left, "step8.ckpt"]
    assert (checkpoints / "last.ckpt").readlink() == Path("step8.ckpt")
    assert untimed(tmp_path / "broken") == untimed(tmp_path / "whole")
    assert equal(exported_weights(tmp_path / "broken"), exported_weights(tmp_path / "whole"))


def test_a_checkpoint_waits_for_the_validation_of_its_step(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that breaks off while it validates asks all of it again."""
    monkeypatch.setattr(cli, "RunCheckpoint", partial(RunCheckpoint, every_n_rollouts=1))
    config = grpo(tiny, tmp_path / "run", trainer__limit_val_batches=1.0, trainer__val_check_interval=2)
    config["trainer"]["max_steps"] = 4
    fault = {"class_path": f"{CALLBACKS}.BreakOff", "init_args": {"step": 2, "validating": True}}
    config["trainer"]["callbacks"] = [fault]
    with pytest.raises(RuntimeError, match="broke off"):
        fit(capsys, config)
    assert (tmp_path / "run" / "checkpoints" / "last.ckpt").readlink() == Path("step1.ckpt")


def test_checkpoints_that_rollouts_step_over_are_warned_of(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = grpo(tiny, tmp_path / "run", rollout__passes=2, trainer__max_steps=4)
    for interval, warnings in ((3, 1), (4, 0)):
        checkpoints = {"every_n_train_steps": interval, "save_top_k": -1}
        config["trainer"]["callbacks"] = [
            {"class_path": "lightning.pytorch.callbacks.ModelCheckpoint", "init_args": checkpoints}
        ]
        lines = [line for line in fit(capsys, config).err.splitlines() if "every_n_train_steps" in line]
        assert len(lines) == warnings
        assert all("every_n_train_steps=3" in line and line.endswith("2 or 4") for line in lines)


def test_the_log_says_how_is_sampled(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = grpo(tiny, tmp_path / "run", rollout__temperature=0.5)
    training = "training: 4 samples a prompt at temperature 0.5, top_p 1, top_k 0, min_p 0; at most 8 tokens"
    assert fit(capsys, config).err.count(training) == 1
    outcome = run(capsys, "validate", "--config", written(config, tmp_path / "c.yaml"), "--trainer.limit_val_batches=1")
    assert "TransformersEngine ready in 0 s, in float32" in outcome.err
    assert "training:" not in outcome.err


def test_a_trial_of_one_batch_touches_no_run(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "metrics.csv").write_text("older")
    fit(capsys, grpo(tiny, folder, rollout__passes=2, trainer__fast_dev_run=True))
    assert listing(folder) == {"metrics.csv": b"older"}
