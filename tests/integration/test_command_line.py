"""``fit`` as users compose, repeat, move and resume it."""

from __future__ import annotations

import inspect
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from grpo_lightning import GRPOModule, PromptDataModule, RolloutCallback, SFTModule, cli
from grpo_lightning.callbacks.checkpoint import RunCheckpoint
from grpo_lightning.callbacks.evaluation import EvaluationCallback
from grpo_lightning.callbacks.export import ExportCallback
from grpo_lightning.callbacks.samples import SamplesCallback
from grpo_lightning.data.tiny_model import build_tiny_model
from grpo_lightning.policy_module import PolicyModule
from tests.integration.command_line import fit, grpo, listing, rows, run, totals, untimed, written

pytestmark = pytest.mark.integration

CALLBACKS = "tests.integration.stopping"


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "hf" / "model.safetensors")


def _equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def _checkpoint(file: Path) -> dict[str, Any]:
    return torch.load(file, weights_only=True)


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
        (config["rollout"], [RolloutCallback]),
        (config["evaluation"], [EvaluationCallback]),
        (config["samples"], [SamplesCallback]),
        (config["export"], [ExportCallback]),
    ):
        names = {name for kind in kinds for name in inspect.signature(kind).parameters} - {"kwargs"}
        assert given.keys() == names


def test_the_saved_configuration_repeats_the_run(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Same configuration, same run, to the last bit; nothing of the first is lost when the second takes its folder."""
    folder = tmp_path / "run"
    fit(capsys, grpo(tiny, folder, rollout__passes=2, trainer__max_steps=4))
    assert [row["step"] for row in rows(folder)] == ["1", "2", "3", "4"]
    assert not _equal(_weights(folder), load_file(tiny / "model.safetensors"))
    first = listing(folder)
    outcome = run(capsys, "fit", "--config", str(folder / "config.yaml"))
    assert outcome.code == 0
    assert "held a run already; moved it to" in outcome.err
    assert listing(folder / "previous-1") == first
    assert untimed(folder) == untimed(folder / "previous-1")
    assert _equal(_weights(folder), _weights(folder / "previous-1"))
    assert (folder / "config.yaml").read_text() == (folder / "previous-1" / "config.yaml").read_text()

    # A file named in --config may itself be moved: a third run, again from the folder's own configuration.
    assert run(capsys, "fit", "--config", str(folder / "config.yaml"), "--seed_everything=2").code == 0
    assert listing(folder / "previous-1") == first
    assert untimed(folder) != untimed(folder / "previous-2")
    assert not _equal(_weights(folder), _weights(folder / "previous-2"))


@pytest.fixture
def resumable(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> Path:
    """A run of 4 steps, by that number or as one epoch, with a checkpoint at every step."""
    checkpoints = {
        "class_path": "lightning.pytorch.callbacks.ModelCheckpoint",
        "init_args": {"every_n_train_steps": 1, "save_top_k": -1, "filename": "{step}", "save_last": True},
    }
    config = grpo(tiny, tmp_path / "run", trainer__max_steps=4, trainer__callbacks=[checkpoints])
    config["model"]["init_args"] |= {"lr_scheduler_type": "linear", "warmup_ratio": 0.25}
    if getattr(request, "param", "steps") == "epochs":
        config["trainer"] |= {"max_steps": -1, "max_epochs": 1}
    fit(capsys, config)
    return tmp_path / "run"


@pytest.mark.parametrize("resumable", ["steps", "epochs"], indirect=True)
def test_a_resumed_run_ends_like_one_that_was_never_stopped(
    resumable: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, end = untimed(resumable), _weights(resumable)
    before = (resumable / "metrics.csv").read_text()
    checkpoint = str(resumable / "checkpoints" / "step=2.ckpt")
    outcome = run(capsys, "fit", "--config", str(resumable / "config.yaml"), "--ckpt_path", checkpoint)
    assert outcome.code == 0, outcome.err
    assert untimed(resumable) == whole
    assert _equal(_weights(resumable), end)
    assert (resumable / "config-2.yaml").exists()
    assert (resumable / "metrics-1.csv").read_text() == before  # the rows after step 2 were run again
    assert not list(resumable.glob("previous-*"))


@pytest.mark.parametrize("saved", ["after a step", "at the end of the epoch"])
def test_an_epoch_more(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], saved: str) -> None:
    """A run that has ended goes on with the next epoch's first prompts, as if it had been asked for two."""
    every_step = {
        "class_path": "lightning.pytorch.callbacks.ModelCheckpoint",
        "init_args": {"every_n_train_steps": 1, "save_last": True},
    }
    callbacks = [every_step] if saved == "after a step" else []
    configs = [
        grpo(
            tiny,
            tmp_path / f"{epochs}",
            trainer__max_steps=-1,
            trainer__max_epochs=epochs,
            trainer__callbacks=callbacks,
        )
        for epochs in (1, 2)
    ]
    for config in configs:
        fit(capsys, config)
    fit(capsys, configs[0], "--trainer.max_epochs=2", "--ckpt_path=last")
    assert [row["step"] for row in rows(tmp_path / "1")] == [str(step) for step in range(1, 9)]
    assert untimed(tmp_path / "1") == untimed(tmp_path / "2")
    assert _equal(_weights(tmp_path / "1"), _weights(tmp_path / "2"))


@pytest.mark.parametrize("evaluated", [False, True])
def test_more_steps(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], evaluated: bool) -> None:
    """A run that ended at its number of steps, inside an epoch, goes on from there as if it had been asked for more."""
    whole, part = (grpo(tiny, tmp_path / name) for name in ("whole", "part"))
    for config, steps in ((whole, 6), (part, 3)):
        config["trainer"]["max_steps"] = steps
        if evaluated:
            config["trainer"] |= {"limit_val_batches": 1.0, "val_check_interval": 2}
        fit(capsys, config)
    fit(capsys, part, "--trainer.max_steps=6", "--ckpt_path=last")
    assert [row["step"] for row in rows(tmp_path / "part")] == [str(step) for step in range(1, 7)]
    assert untimed(tmp_path / "part") == untimed(tmp_path / "whole")
    assert _equal(_weights(tmp_path / "part"), _weights(tmp_path / "whole"))


def test_what_lies_after_the_checkpoint_is_put_aside(resumable: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Resumed at step 2 and ended at step 3: no row of the older step 4 stays in the curve."""
    line = '{{"command": "validate", "step": {}}}\n'
    (resumable / "evaluations.jsonl").write_text(line.format(2) + line.format(4))
    checkpoint = str(resumable / "checkpoints" / "step=2.ckpt")
    arguments = ["--config", str(resumable / "config.yaml"), "--trainer.max_steps=3"]
    assert run(capsys, "fit", *arguments, "--ckpt_path", checkpoint).code == 0
    assert [row["step"] for row in rows(resumable)] == ["1", "2", "3"]
    assert "\n4," in (resumable / "metrics-1.csv").read_text()
    assert (resumable / "evaluations.jsonl").read_text() == line.format(2)


def test_the_configuration_wins_over_the_checkpoint(
    resumable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {
        "model": {
            "init_args": {
                "lr_scheduler_type": "constant",
                "optimizer": {
                    "class_path": "torch.optim.AdamW",
                    "init_args": {"lr": 1.0, "betas": [0.5, 0.6], "weight_decay": 0.125, "eps": 1e-7},
                },
            }
        },
        "trainer": {"max_steps": 6, "max_epochs": 3},
    }
    arguments = ["--config", str(resumable / "config.yaml"), "--config", written(changes, tmp_path / "b.yaml")]
    last = str(resumable / "checkpoints" / "last.ckpt")
    outcome = run(capsys, "fit", *arguments, "--ckpt_path", last, "--model.lr=1e-7")
    assert outcome.code == 0, outcome.err
    assert [int(row["step"]) for row in rows(resumable)] == [1, 2, 3, 4, 5, 6]
    assert [float(row["learning_rate"]) for row in rows(resumable)[4:]] == [1e-7, 1e-7]
    assert float(rows(resumable)[4]["num_tokens"]) > float(rows(resumable)[3]["num_tokens"])
    saved = yaml.safe_load((resumable / "config-2.yaml").read_text())
    assert saved["model"]["init_args"]["lr"] == 1e-7
    assert saved["ckpt_path"] == last
    checkpoint = _checkpoint(resumable / "checkpoints" / "step=6.ckpt")
    assert checkpoint["global_step"] == 6
    (group,) = checkpoint["optimizer_states"][0]["param_groups"]
    assert (group["lr"], group["initial_lr"]) == (1e-7, 1e-7)
    assert (list(group["betas"]), group["weight_decay"], group["eps"]) == ([0.5, 0.6], 0.125, 1e-7)
    assert not any(name.startswith("reference.") for name in checkpoint["state_dict"])


def test_last_finds_the_newest_checkpoint(resumable: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--config", str(resumable / "config.yaml"), "--trainer.max_steps=5", "--trainer.max_epochs=2"]
    outcome = run(capsys, "fit", *arguments, "--ckpt_path=last")
    assert outcome.code == 0, outcome.err
    assert [int(row["step"]) for row in rows(resumable)] == [1, 2, 3, 4, 5]


def test_resuming_into_another_folder_moves_what_lies_there(
    resumable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "metrics.csv").write_text("step\n99\n")
    arguments = ["--config", str(resumable / "config.yaml"), "--trainer.default_root_dir", str(other)]
    checkpoint = str(resumable / "checkpoints" / "step=2.ckpt")
    before = listing(resumable)
    assert run(capsys, "fit", *arguments, "--ckpt_path", checkpoint).code == 0
    assert [row["step"] for row in rows(other)] == ["3", "4"]
    assert (other / "previous-1" / "metrics.csv").read_text() == "step\n99\n"
    assert listing(resumable) == before


@pytest.mark.parametrize("change", [{"hidden": 64}, {"layers": 1}])
def test_a_checkpoint_of_another_model(
    resumable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, int]
) -> None:
    other = build_tiny_model(str(tmp_path / "other"), **({"hidden": 32, "layers": 2, "mlp": 64} | change))
    arguments = ["--config", str(resumable / "config.yaml"), "--model.policy", str(other)]
    before = listing(resumable)
    for command in ("fit", "validate"):
        outcome = run(capsys, command, *arguments, "--ckpt_path", str(resumable / "checkpoints" / "last.ckpt"))
        assert "--ckpt_path" in outcome.mistake
        assert f"--model.policy {other}" in outcome.mistake
    assert listing(resumable) == before


def test_the_last_checkpoint_is_where_the_run_ended(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Validated after step 3, ended after step 4."""
    config = grpo(tiny, tmp_path / "run", trainer__max_steps=4, trainer__val_check_interval=3)
    config["trainer"]["limit_val_batches"] = 1.0
    fit(capsys, config)
    checkpoints = tmp_path / "run" / "checkpoints"
    assert sorted(path.name for path in checkpoints.iterdir()) == ["last.ckpt", "step4.ckpt"]
    assert _checkpoint(checkpoints / "last.ckpt")["global_step"] == 4


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
    assert _equal(_weights(tmp_path / "broken"), _weights(tmp_path / "whole"))


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


@pytest.mark.parametrize("stopped", ["after a rollout", "after a validation", "after every validation"])
def test_a_run_stopped_within_an_epoch_goes_on_there(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], stopped: str
) -> None:
    """By a time limit or by early stopping: the epoch's other prompts are not taken for done."""
    whole, part = (grpo(tiny, tmp_path / name, trainer__max_steps=-1) for name in ("whole", "part"))
    for config in (whole, part):
        if stopped != "after a rollout":
            interval = 2 if stopped == "after a validation" else 1
            config["trainer"] |= {"limit_val_batches": 1, "val_check_interval": interval}
    fit(capsys, whole)
    stop = {"step": 2, "validated": stopped != "after a rollout"}
    part["trainer"]["callbacks"] = [{"class_path": f"{CALLBACKS}.Stop", "init_args": stop}]
    fit(capsys, part)
    assert [row["step"] for row in rows(tmp_path / "part")] == ["1", "2"]
    del part["trainer"]["callbacks"]
    fit(capsys, part, "--ckpt_path=last")
    assert untimed(tmp_path / "part") == untimed(tmp_path / "whole")
    assert _equal(_weights(tmp_path / "part"), _weights(tmp_path / "whole"))


def test_steps_of_a_resumed_run_fit_its_rollouts(
    resumable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From step 3 on by two: it can end at 5 or 7, not at 6."""
    before = listing(resumable)
    arguments = ["--config", str(resumable / "config.yaml"), "--rollout.passes=2", "--trainer.max_epochs=2"]
    arguments += ["--ckpt_path", str(resumable / "checkpoints" / "step=3.ckpt")]
    outcome = run(capsys, "fit", *arguments, "--trainer.max_steps=6")
    assert "--trainer.max_steps 6" in outcome.mistake
    assert "begins at step 3; nearest valid: 5 or 7" in outcome.mistake
    assert listing(resumable) == before
    outcome = run(capsys, "fit", *arguments, "--trainer.max_steps=5")
    assert outcome.code == 0, outcome.err
    assert [row["step"] for row in rows(resumable)] == ["1", "2", "3", "4", "5"]


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


def test_a_file_that_is_no_checkpoint(resumable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.ckpt"
    broken.write_bytes(b"no checkpoint")
    before = listing(resumable)
    outcome = run(capsys, "fit", "--config", str(resumable / "config.yaml"), "--ckpt_path", str(broken))
    assert f"--ckpt_path {broken}" in outcome.mistake
    assert listing(resumable) == before


def test_a_trial_of_one_batch_touches_no_run(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "metrics.csv").write_text("older")
    fit(capsys, grpo(tiny, folder, rollout__passes=2, trainer__fast_dev_run=True))
    assert listing(folder) == {"metrics.csv": b"older"}
