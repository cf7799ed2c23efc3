"""A resumed run ends as one that was never stopped, to the last bit, from whichever step it goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from grpo_lightning.data.tiny_model import build_tiny_model
from grpo_lightning.files import BEFORE
from tests.integration.command_line import (
    REPOSITORY,
    VLLM,
    checkpoint_content,
    equal,
    exported_weights,
    fit,
    grpo,
    listing,
    records,
    rows,
    run,
    start,
    untimed,
    written,
)
from tests.integration.resuming import (
    CHANGED,
    DRAWS,
    HERE,
    ON_TWO_RANKS,
    PPO_ON_TWO_RANKS,
    SUPERVISED_ON_TWO_RANKS,
    checkpoint,
    command,
    copy_of,
    differences,
    ppo,
    resumed,
    steps,
    supervised,
    three_epochs,
)

pytestmark = pytest.mark.integration

CALLBACKS = "tests.integration.stopping"

EVERY_STEP = {
    "class_path": "lightning.pytorch.callbacks.ModelCheckpoint",
    "init_args": {
        "every_n_train_steps": 4,
        "save_top_k": -1,
        "filename": "step{step}",
        "auto_insert_metric_name": False,
        "enable_version_counter": False,
    },
}
VARIANTS: dict[str, dict[str, Any]] = {
    "four steps a rollout, warm-up, KL": {
        "rollout__passes": 2,
        "rollout__updates_per_rollout": 2,
        "model__init_args__lr_scheduler_type": "cosine",
        "model__init_args__warmup_ratio": 0.2,
        "model__init_args__objective": {
            "class_path": "grpo_lightning.objectives.ClippedObjective",
            "init_args": {"beta": 0.1},
        },
        "trainer__val_check_interval": 2,
        "trainer__callbacks": [EVERY_STEP],
    },
    "momentum, a reward that draws, killed": {
        "model__init_args__optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.5, "momentum": 0.9}},
        "model__init_args__lr": None,
        "rollout__rewards": [DRAWS],
        "trainer__val_check_interval": 1.0,
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_from_every_step_of_three_epochs(tiny: Path, tmp_path: Path, variant: str) -> None:
    whole, changes = tmp_path / "whole", VARIANTS[variant]
    config = three_epochs(tiny, whole, **changes)
    command(config)
    size = changes.get("rollout__passes", 1) * changes.get("rollout__updates_per_rollout", 1)
    assert steps(whole) == [size * rollout for rollout in range(1, 10)]
    for step in steps(whole):
        folder = resumed(config, whole, step, killed=variant.endswith("killed"))
        assert differences(whole, folder) == [], step


LORA = {"class_path": "grpo_lightning.models.LoRA", "init_args": {"r": 4}}


def test_an_adapter(tiny: Path, tmp_path: Path) -> None:
    """From within an epoch and from its end."""
    whole = tmp_path / "whole"
    config = three_epochs(tiny, whole, model__init_args__adapter=LORA, model__init_args__lr=1e-2)
    command(config)
    for step in (2, 3):
        assert differences(whole, resumed(config, whole, step, killed=True)) == [], step


def test_a_supervised_run_from_every_step_of_two_epochs(tiny: Path, tmp_path: Path) -> None:
    """And an adapter's from one."""
    for name, changes in (("whole", {}), ("adapter", {"model__init_args__adapter": LORA})):
        whole = tmp_path / name
        config = supervised(tiny, whole, trainer__max_epochs=2, **changes)
        command(config)
        assert float(rows(whole)[-1]["val/loss"]) < float(rows(whole)[2]["val/loss"])
        for step in (2,) if changes else range(1, 7):
            assert differences(whole, resumed(config, whole, step, killed=True)) == [], (name, step)


@pytest.mark.parametrize("critic", ["value head", "model"])
def test_ppo(tiny: Path, tmp_path: Path, critic: str) -> None:
    """With a critic's weights, their moments and their learning rate; the config's rate wins over the checkpoint's."""
    whole, changes = tmp_path / "whole", {"model__init_args__critic": str(tiny)} if critic == "model" else {}
    config = ppo(tiny, whole, **changes)
    command(config)
    assert float(rows(whole)[-1]["critic/vpred_mean"]) != 0
    assert differences(whole, resumed(config, whole, 2, killed=True)) == []
    config["model"]["init_args"] |= {"critic_lr": 1e-3, "lr_scheduler_type": "constant"}
    (last, *_) = reversed(rows(resumed(config, whole, 4, killed=True)))
    assert (float(last["learning_rate"]), float(last["critic/learning_rate"])) == (1e-3, 1e-3)
    assert float(rows(whole)[-1]["critic/learning_rate"]) == pytest.approx(10 * float(rows(whole)[-1]["learning_rate"]))


@pytest.fixture(scope="module")
def on_two_ranks(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs and resumes under every strategy, all in one pair of processes."""
    root = tmp_path_factory.mktemp("ranks")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launch, "-m", HERE, str(tiny), str(root)],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return root


@pytest.mark.parametrize(
    ("name", "step"),
    [
        (name, step)
        for name, (_, each) in (ON_TWO_RANKS | SUPERVISED_ON_TWO_RANKS | PPO_ON_TWO_RANKS).items()
        for step in each
    ],
)
def test_on_two_ranks(on_two_ranks: Path, name: str, step: int) -> None:
    assert differences(on_two_ranks / name, on_two_ranks / f"{name}-{step}") == []


@pytest.mark.parametrize("change", CHANGED)
def test_the_configured_optimizer_wins_in_shards_too(on_two_ranks: Path, change: str) -> None:
    """A file of all weights and a folder of shards go on alike; with another optimizer, from the weights alone."""
    before = checkpoint_content(checkpoint(on_two_ranks / "fsdp2", 16))["state_dict"]
    ends = []
    for name in ("fsdp2", "sharded"):
        folder = on_two_ranks / f"{name}-{change}"
        assert [(int(row["step"]), float(row["learning_rate"])) for row in rows(folder)[16:]] == [
            (17, CHANGED[change]["lr"]), (18, CHANGED[change]["lr"]),
        ]  # fmt: skip
        ends.append(exported_weights(folder))
    moved = max(float((ends[0][n.removeprefix("policy.model.")] - old).abs().max()) for n, old in before.items())
    assert 0 < moved < (1e-4 if change == "rate" else 1e-2)
    for name, weight in ends[0].items():
        torch.testing.assert_close(weight, ends[1][name], rtol=0, atol=1e-7)
    (saved,) = checkpoint_content(checkpoint(on_two_ranks / f"fsdp2-{change}", 18))["optimizer_states"]
    kept = {"step", "exp_avg", "exp_avg_sq"} if change == "rate" else {"momentum_buffer"}
    assert all(set(moments) == kept for moments in saved["state"].values())


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2", "sharded"])
def test_one_process_goes_on_with_a_run_of_two(on_two_ranks: Path, tmp_path: Path, strategy: str) -> None:
    """From what two ranks wrote: the same prompts and seeds, and so the same completions by the same weights."""
    whole, folder = on_two_ranks / strategy, tmp_path / "alone"
    config = yaml.safe_load((whole / "config.yaml").read_text())
    config["trainer"] |= {"default_root_dir": str(folder), "devices": 1}
    config["rollout"]["rewards"] = ["tests.integration.reward_functions.share_of_digits"]
    if strategy == "sharded":  # in a process of its own, since it makes a process group
        file = written(config, folder.with_suffix(".yaml"))
        outcome = start("fit", "--config", file, "--ckpt_path", str(checkpoint(whole, 10)))
        assert outcome.code == 0, outcome.err
    else:
        config["trainer"]["strategy"] = "auto"
        command(config, "--ckpt_path", str(checkpoint(whole, 10)))
    assert [int(row["step"]) for row in rows(folder)] == [11, 12, 13, 14, 15, 16, 17, 18]

    def lines(root: Path, rollout: int, *names: str) -> list[tuple[Any, ...]]:
        found = records(root / "samples" / f"rollout_{rollout:06d}.parquet")
        return sorted(tuple(line[name] for name in names) for line in found)

    assert lines(folder, 6, "row", "completion") == lines(whole, 6, "row", "completion")
    for rollout in (7, 8, 9):
        assert lines(folder, rollout, "row") == lines(whole, rollout, "row")


def test_a_resume_at_every_step(tiny: Path, tmp_path: Path) -> None:
    """Stopped after each rollout, and gone on with from the checkpoint that the resumed run wrote."""
    changes: dict[str, Any] = {
        "rollout__rewards": [DRAWS],
        "trainer__limit_val_batches": 0,
        "trainer__callbacks": [],
    }
    whole, part = (three_epochs(tiny, tmp_path / name, **changes) for name in ("whole", "part"))
    command(whole)
    for step in range(1, 10):
        stop = {"class_path": f"{CALLBACKS}.Stop", "init_args": {"step": step, "validated": False}}
        part["trainer"]["callbacks"] = [stop]
        command(part, *(["--ckpt_path", "last"] if step > 1 else []))
        assert steps(tmp_path / "part") == [step]
    assert differences(tmp_path / "whole", tmp_path / "part") == []


@pytest.mark.vllm
def test_with_vllm(tmp_path: Path) -> None:
    policy = build_tiny_model(str(tmp_path / "policy"), hidden=128, layers=1, mlp=64)  # heads that vLLM can serve
    config = three_epochs(
        policy,
        tmp_path / "whole",
        rollout__engine={"class_path": VLLM, "init_args": {"kv_cache_gib": 0.1}},
        trainer__max_epochs=1,
        trainer__val_check_interval=2,
    )
    outcome = start("fit", "--config", written(config, tmp_path / "whole.yaml"))
    assert outcome.code == 0, outcome.err
    copy_of(tmp_path / "whole", tmp_path / "part", 1, killed=True)
    config["trainer"]["default_root_dir"] = str(tmp_path / "part")
    outcome = start("fit", "--config", written(config, tmp_path / "part.yaml"), "--ckpt_path=last")
    assert outcome.code == 0, outcome.err
    assert differences(tmp_path / "whole", tmp_path / "part") == []


def test_the_next_update_is_made_with_the_configured_numbers(
    resumable: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """AdamW by hand, from the stored moments of step 2 to those of the step after it."""
    lr, (beta1, beta2), decay, eps = 0.01, (0.5, 0.75), 0.25, 1e-4
    before = checkpoint_content(resumable / "checkpoints" / "step=2.ckpt")
    optimizer = {"betas": [beta1, beta2], "weight_decay": decay, "eps": eps}
    changes = {"model": {"init_args": {"optimizer": {"class_path": "torch.optim.AdamW", "init_args": optimizer}}}}
    changes["model"]["init_args"] |= {"lr_scheduler_type": "constant", "warmup_ratio": 0.0}
    arguments = ["--config", str(resumable / "config.yaml"), "--config", written(changes, resumable / "new.yaml")]
    arguments += ["--model.lr", str(lr), "--trainer.max_steps=3"]
    assert run(capsys, "fit", *arguments, "--ckpt_path", str(resumable / "checkpoints" / "step=2.ckpt")).code == 0
    after = checkpoint_content(resumable / "checkpoints" / "step=3.ckpt")
    old, new = (content["optimizer_states"][0]["state"] for content in (before, after))
    weights = [list(content["state_dict"].values()) for content in (before, after)]
    moved = 0.0
    # The output layer is the embedding, and stands last in the weights and not among the parameters.
    for number, weight, result in zip(sorted(old), *weights, strict=False):
        gradient = (new[number]["exp_avg"] - beta1 * old[number]["exp_avg"]) / (1 - beta1)
        second = beta2 * old[number]["exp_avg_sq"] + (1 - beta2) * gradient**2
        torch.testing.assert_close(new[number]["exp_avg_sq"], second, rtol=1e-3, atol=1e-9)
        mean, square = new[number]["exp_avg"] / (1 - beta1**3), new[number]["exp_avg_sq"] / (1 - beta2**3)
        expected = weight * (1 - lr * decay) - lr * mean / (square.sqrt() + eps)
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-7)
        moved = max(moved, float((result - weight).abs().max()))
    assert moved > 1e-3


def test_weights_and_biases_goes_on_with_the_same_run(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wandb = pytest.importorskip("wandb")
    logger = {
        "class_path": "lightning.pytorch.loggers.WandbLogger",
        "init_args": {"offline": True, "save_dir": str(tmp_path), "project": "test"},
    }
    last = f"--ckpt_path={tmp_path / 'run' / 'checkpoints' / 'last.ckpt'}"
    ids = []
    for folder, *arguments in (
        ["run"],
        ["run", last, "--trainer.max_steps=3"],
        ["fork", last, "--trainer.max_steps=4"],
    ):
        fit(capsys, grpo(tiny, tmp_path / folder, trainer__logger=logger), *arguments)
        ids.append(wandb.run.id)
        wandb.finish()  # as the end of the process does
    assert ids[0] == ids[1] != ids[2]  # a fork is a run of its own
    written = {path.stem for path in tmp_path.glob("wandb/offline-run-*/run-*.wandb")}
    assert written == {f"run-{id}" for id in ids}


def test_tensorboard_goes_on_in_the_same_folder(resumable: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Resumed at step 2: the older figures of steps 3 and 4 are hidden, even if the run now ends at 3."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    arguments = ["--config", str(resumable / "config.yaml"), "--trainer.max_steps=3"]
    arguments += ["--ckpt_path", str(resumable / "checkpoints" / "step=2.ckpt")]
    assert run(capsys, "fit", *arguments).code == 0
    board = EventAccumulator(str(resumable / "tensorboard"))
    board.Reload()
    assert [event.step for event in board.Scalars("loss")] == [1, 2, 3]


def test_the_bar_of_a_resumed_epoch_knows_its_length(resumable: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = str(resumable / "checkpoints" / "step=2.ckpt")
    arguments = ["--config", str(resumable / "config.yaml"), "--trainer.enable_progress_bar=true"]
    outcome = run(capsys, "fit", *arguments, "--ckpt_path", checkpoint)
    assert outcome.code == 0, outcome.err
    assert "3/4" in outcome.out + outcome.err


STEPS = {
    "class_path": "lightning.pytorch.callbacks.ModelCheckpoint",
    "init_args": {"every_n_train_steps": 1, "save_top_k": -1, "filename": "{step}", "save_last": True},
}
PATIENT = {
    "class_path": "lightning.pytorch.callbacks.EarlyStopping",
    "init_args": {"monitor": "reward", "mode": "max", "patience": 7},
}


@pytest.fixture
def resumable(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A run of 4 steps with a checkpoint at every step."""
    config = grpo(tiny, tmp_path / "run", trainer__max_steps=4, trainer__callbacks=[STEPS])
    config["model"]["init_args"] |= {"lr_scheduler_type": "linear", "warmup_ratio": 0.25}
    fit(capsys, config)
    return tmp_path / "run"


def test_a_run_of_so_many_steps_goes_on_in_its_folder(resumable: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, end = untimed(resumable), exported_weights(resumable)
    before = (resumable / "metrics.csv").read_text()
    checkpoint = str(resumable / "checkpoints" / "step=2.ckpt")
    outcome = run(capsys, "fit", "--config", str(resumable / "config.yaml"), "--ckpt_path", checkpoint)
    assert outcome.code == 0, outcome.err
    assert untimed(resumable) == whole
    assert equal(exported_weights(resumable), end)
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
    assert equal(exported_weights(tmp_path / "1"), exported_weights(tmp_path / "2"))


@pytest.mark.parametrize("evaluated", [False, True])
def test_more_steps(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], evaluated: bool) -> None:
    """A run that ended at its number of steps, inside an epoch, goes on from there as if it had been asked for more."""
    whole, part = (grpo(tiny, tmp_path / name) for name in ("whole", "part"))
    for config, end in ((whole, 6), (part, 3)):
        config["trainer"]["max_steps"] = end
        if evaluated:
            config["trainer"] |= {"limit_val_batches": 1.0, "val_check_interval": 2}
        fit(capsys, config)
    fit(capsys, part, "--trainer.max_steps=6", "--ckpt_path=last")
    assert [row["step"] for row in rows(tmp_path / "part")] == [str(step) for step in range(1, 7)]
    assert untimed(tmp_path / "part") == untimed(tmp_path / "whole")
    assert equal(exported_weights(tmp_path / "part"), exported_weights(tmp_path / "whole"))


def test_what_lies_after_the_checkpoint_is_put_aside(resumable: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Resumed at step 2 and ended at step 3: no row of the older step 4 stays in the curve."""
    line = '{{"command": "validate", "step": {}}}\n'
    evaluations, table = resumable / "evaluations.jsonl", resumable / "metrics.csv"
    evaluations.write_text(line.format(2) + line.format(4))
    samples = ("rollout_000002.parquet", "rollout_000003.parquet", "val_totals_step000002.jsonl", "val_totals.jsonl")
    for name in (*samples, "val_totals_step000004.jsonl"):
        (resumable / "samples" / name).write_text(name)
    with table.open("a") as file, evaluations.open("a") as other:  # as a kill may leave them
        file.write("5,0.2")
        other.write('{"comm')
    before = table.read_text(), evaluations.read_text()
    checkpoint = str(resumable / "checkpoints" / "step=2.ckpt")
    arguments = ["--config", str(resumable / "config.yaml"), "--trainer.max_steps=3"]
    assert run(capsys, "fit", *arguments, "--ckpt_path", checkpoint).code == 0
    assert [row["step"] for row in rows(resumable)] == ["1", "2", "3"]
    assert evaluations.read_text() == line.format(2)
    assert {path.name for path in (resumable / "checkpoints-1").iterdir()} == {
        "step=3.ckpt", "step=4.ckpt", "last.ckpt",
    }  # fmt: skip
    newest = checkpoint_content(resumable / "checkpoints" / "step=3.ckpt")  # of this run, and what `last` finds now
    assert newest["global_step"] == 3
    assert ((resumable / "metrics-1.csv").read_text(), (resumable / "evaluations-1.jsonl").read_text()) == before
    aside = {path.name: path.read_text() for path in (resumable / "samples-1").iterdir()}
    assert aside == {name: name for name in ("rollout_000003.parquet", "val_totals_step000004.jsonl")}
    assert {path.name for path in (resumable / "samples").iterdir()} == {
        "rollout_000001.parquet", "rollout_000002.parquet", "val_totals_step000002.jsonl", "val_totals.jsonl",
    }  # fmt: skip


def test_the_configuration_wins_over_the_checkpoint(
    resumable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {
        "model": {
            "init_args": {
                "lr_scheduler_type": "constant",
                "optimizer": {
                    "class_path": "torch.optim.AdamW",
                    "init_args": {"betas": [0.5, 0.6], "weight_decay": 0.125, "eps": 1e-7},
                },
            }
        },
        "trainer": {"max_steps": 6, "max_epochs": 3, "max_time": "00:01:00:00", "callbacks": [STEPS, PATIENT]},
    }
    arguments = ["--config", str(resumable / "config.yaml"), "--config", written(changes, tmp_path / "b.yaml")]
    last = str(resumable / "checkpoints" / "last.ckpt")
    content = checkpoint_content(Path(last))  # as of a run with less patience, which has used up its time
    impatient = {"patience": 1, "wait_count": 0, "stopped_epoch": 0, "best_score": torch.tensor(0.0)}
    content["callbacks"] |= {"EarlyStopping{'monitor': 'reward', 'mode': 'max'}": impatient}
    content["callbacks"] |= {"Timer": {"time_elapsed": {"train": 3600.0}}}
    torch.save(content, last)
    outcome = run(capsys, "fit", *arguments, "--ckpt_path", last, "--model.lr=1e-7")
    assert outcome.code == 0, outcome.err
    assert [int(row["step"]) for row in rows(resumable)] == [1, 2, 3, 4, 5, 6]
    assert [float(row["learning_rate"]) for row in rows(resumable)[4:]] == [1e-7, 1e-7]
    assert float(rows(resumable)[4]["num_tokens"]) > float(rows(resumable)[3]["num_tokens"])
    saved = yaml.safe_load((resumable / "config-2.yaml").read_text())
    assert saved["model"]["init_args"]["lr"] == 1e-7
    assert saved["ckpt_path"] == last
    assert saved["weights_only"] is True
    checkpoint = checkpoint_content(resumable / "checkpoints" / "step=6.ckpt")
    assert checkpoint["global_step"] == 6
    (group,) = checkpoint["optimizer_states"][0]["param_groups"]
    assert (group["lr"], group["initial_lr"]) == (1e-7, 1e-7)
    assert (list(group["betas"]), group["weight_decay"], group["eps"]) == ([0.5, 0.6], 0.125, 1e-7)
    stopping = checkpoint["callbacks"]["EarlyStopping{'monitor': 'reward', 'mode': 'max'}"]
    assert (stopping["patience"], float(stopping["best_score"])) == (7, 0.0)
    assert not any(name.startswith("reference.") for name in checkpoint["state_dict"])


def test_another_optimizer_begins_anew(resumable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    optimizer = {"class_path": "torch.optim.AdamW", "init_args": {"amsgrad": True}}
    changes = {"model": {"init_args": {"optimizer": optimizer}}, "trainer": {"max_steps": 3}}
    arguments = ["--config", str(resumable / "config.yaml"), "--config", written(changes, tmp_path / "b.yaml")]
    outcome = run(capsys, "fit", *arguments, "--ckpt_path", str(resumable / "checkpoints" / "step=2.ckpt"))
    assert outcome.code == 0, outcome.err
    needs = "the checkpoint's optimizer has kept exp_avg, exp_avg_sq, step, and AdamW needs exp_avg, exp_avg_sq, "
    assert f"{needs}max_exp_avg_sq, step: it begins anew, from the weights alone" in outcome.err
    (saved,) = checkpoint_content(resumable / "checkpoints" / "step=3.ckpt")["optimizer_states"]
    assert {int(moments["step"]) for moments in saved["state"].values()} == {1}


def test_last_finds_the_newest_checkpoint(resumable: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Even if a kill came while a new folder was about to take its place."""
    checkpoints = resumable / "checkpoints"
    (checkpoints / "last.ckpt").unlink()
    (checkpoints / "step=4.ckpt").rename(checkpoints / f"step=4.ckpt{BEFORE}")
    arguments = ["--config", str(resumable / "config.yaml"), "--trainer.max_steps=5", "--trainer.max_epochs=2"]
    outcome = run(capsys, "fit", *arguments, "--ckpt_path=last")
    assert outcome.code == 0, outcome.err
    found = yaml.safe_load((resumable / "config-2.yaml").read_text())["ckpt_path"]
    assert found == str(checkpoints / "step=4.ckpt")
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
    for word in ("fit", "validate"):
        outcome = run(capsys, word, *arguments, "--ckpt_path", str(resumable / "checkpoints" / "last.ckpt"))
        assert "--ckpt_path" in outcome.mistake
        assert f"--model.policy {other}" in outcome.mistake
    assert listing(resumable) == before


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
    assert equal(exported_weights(tmp_path / "part"), exported_weights(tmp_path / "whole"))


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
    assert "Loading weights" not in outcome.err  # before any work
    assert listing(resumable) == before
    outcome = run(capsys, "fit", *arguments, "--trainer.max_steps=5")
    assert outcome.code == 0, outcome.err
    assert [row["step"] for row in rows(resumable)] == ["1", "2", "3", "4", "5"]


def test_a_file_that_is_no_checkpoint(resumable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken, shards = tmp_path / "broken.ckpt", tmp_path / "shards.ckpt"
    broken.write_bytes((resumable / "checkpoints" / "last.ckpt").read_bytes()[:-100])
    shards.mkdir()  # killed before the metadata, which come last
    before = listing(resumable)
    for file in (broken, shards, resumable / "hf" / "model.safetensors"):
        outcome = run(capsys, "fit", "--config", str(resumable / "config.yaml"), "--ckpt_path", str(file))
        assert f"--ckpt_path {file}: is no checkpoint, or an incomplete one" in outcome.mistake
    assert listing(resumable) == before


def test_shards_are_for_strategies_that_read_them(on_two_ranks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = on_two_ranks / "sharded"
    arguments = ["--config", str(whole / "config.yaml"), "--trainer.devices=1", "--trainer.limit_val_batches=1"]
    arguments += ["--ckpt_path", str(checkpoint(whole, 6)), "--trainer.default_root_dir", str(whole.with_name("one"))]
    refused = run(capsys, "validate", *arguments, "--trainer.strategy=auto")
    assert "is a folder of shards; go on with the --trainer.strategy that wrote it" in refused.mistake


def test_last_passes_over_what_is_incomplete(resumable: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoints = resumable / "checkpoints"
    (checkpoints / "last.ckpt").write_bytes(b"half a checkpoint")
    (checkpoints / "step=4.ckpt").unlink()
    (checkpoints / "step=9.ckpt").symlink_to("step=8.ckpt")  # which is gone
    outcome = run(capsys, "fit", "--config", str(resumable / "config.yaml"), "--ckpt_path=last")
    assert outcome.code == 0, outcome.err
    assert yaml.safe_load((resumable / "config-2.yaml").read_text())["ckpt_path"] == str(checkpoints / "step=3.ckpt")


def test_a_checkpoint_of_weights_alone(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run cannot go on from it; it is evaluated under the step that it was saved at."""
    saving = {"every_n_train_steps": 1, "save_weights_only": True, "filename": "weights"}
    checkpoints = {"class_path": "lightning.pytorch.callbacks.ModelCheckpoint", "init_args": saving}
    fit(capsys, grpo(tiny, tmp_path / "run", trainer__callbacks=[checkpoints]))
    weights = str(tmp_path / "run" / "checkpoints" / "weights.ckpt")
    Path(weights).rename(f"{weights}{BEFORE}")  # as a kill may leave it
    arguments = ["--config", str(tmp_path / "run" / "config.yaml"), "--ckpt_path", weights]
    outcome = run(capsys, "fit", *arguments)
    assert f"--ckpt_path {weights}: holds weights alone" in outcome.mistake
    assert "Loading weights" not in outcome.err
    assert run(capsys, "validate", *arguments, "--trainer.limit_val_batches=1.0").code == 0
    (line,) = records(tmp_path / "run" / "evaluations.jsonl")
    assert (line["step"], line["checkpoint"]) == (2, weights)
