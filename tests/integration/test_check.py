"""``check`` finds what is wrong with a run before it starts, all of it at once, and says what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoTokenizer

from grpo_lightning import policy_module
from tests.integration.command_line import REWARDS, Outcome, fit, grpo, jsonl, listing, run, written
from tests.integration.stand_ins import CONFIGS, all_packages, build_chat_model, write_rows

pytestmark = pytest.mark.integration

MATH, TOTALS = "grpo_lightning.rewards.math_accuracy", "grpo_lightning.data.arithmetic.running_total_accuracy"
GOOD = [{"question": f"Tom has {number}. How many?", "answer": str(number)} for number in range(8)]


def check(capsys: pytest.CaptureFixture[str], config: dict[str, Any], *arguments: str) -> Outcome:
    folder = next(path for path in Path(config["trainer"]["default_root_dir"]).parents if path.is_dir())
    return run(capsys, "check", "--config", written(config, folder / "run.yaml"), *arguments)


def mistakes(outcome: Outcome) -> list[str]:
    """The lines that say what is wrong; the parser's are on stderr, before there is a page."""
    lines = outcome.out.splitlines() + outcome.err.splitlines()
    found = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    assert outcome.code == (2 if found else 0), outcome
    assert "Traceback" not in outcome.err
    return found


def rows(*lines: Any) -> Callable[[Path], dict[str, Any]]:
    """A change to the configuration that makes a file of these rows, or texts, the data."""

    def change(folder: Path) -> dict[str, Any]:
        file = folder / "rows.jsonl"
        file.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines), "utf-8")
        return {"data__source": jsonl(file)}

    return change


def nothing(folder: Path) -> dict[str, Any]:
    return {}


def empty_evaluation(folder: Path) -> dict[str, Any]:
    (folder / "empty.jsonl").write_text("")
    return {"data__eval_sources": [jsonl(folder / "empty.jsonl")]}


def file_in_the_way(folder: Path) -> dict[str, Any]:
    (folder / "file").write_text("")
    return {"trainer__default_root_dir": str(folder / "file" / "run")}


def policy_of_an_older_run(folder: Path) -> dict[str, Any]:
    shutil.copytree(folder / "tiny", folder / "run" / "hf")
    return {"model__init_args__policy": str(folder / "run" / "hf")}


def two_beginnings(folder: Path) -> dict[str, Any]:
    tokenizer = AutoTokenizer.from_pretrained(folder / "tiny")
    tokenizer.bos_token = tokenizer.pad_token
    tokenizer.save_pretrained(folder / "tiny")
    layout = {"layout": f"{tokenizer.bos_token}{tokenizer.bos_token}{{question}}", "answer_format": "none"}
    return {"data__template": {"class_path": "grpo_lightning.data.PromptTemplate", "init_args": layout}}


def unread_golds(folder: Path) -> dict[str, Any]:
    return rows(*GOOD[:4], *({**row, "answer": "\\frac{1}{"} for row in GOOD[:4]))(folder) | {
        "rollout__rewards": [MATH]
    }


def unmet_layout(folder: Path) -> dict[str, Any]:
    layout = {"class_path": "grpo_lightning.data.PromptTemplate", "init_args": {"answer_format": "boxed"}}
    return {"data__template": layout, "rollout__rewards": [TOTALS]}


PLANTED: dict[str, tuple[str, Callable[[Path], dict[str, Any]], list[str]]] = {
    "one completion a group": ("--rollout.group_size=1", nothing, ["--rollout.group_size 1", "use 2 or more"]),
    "windows that do not divide": (
        "--rollout.updates_per_rollout=3 --trainer.max_steps=3",
        nothing,
        ["--data.prompts_per_step 4", "3 windows", "nearest valid: 3 or 6"],
    ),
    "steps below one rollout": (
        "--rollout.passes=4 --trainer.max_steps=3",
        nothing,
        ["--trainer.max_steps 3", "nearest valid: 4"],
    ),
    "beyond the model's positions": (
        "--rollout.max_completion_length=250",
        nothing,
        ["--data.max_prompt_length 64", "250", "256 tokens", "lower one"],
    ),
    "all prompts left out": ("--data.max_prompt_length=5", nothing, ["all 16 prompts", "raise the limit"]),
    "fewer prompts than a batch": ("--data.prompts_per_step=20", nothing, ["16 prompts", "--data.prompts_per_step 20"]),
    "validation beyond the epoch": (
        "--trainer.val_check_interval=5 --trainer.limit_val_batches=1",
        nothing,
        ["--trainer.val_check_interval 5", "nearest valid: 4"],
    ),
    "no data file": (
        "",
        lambda folder: {"data__source": jsonl(folder / "none.jsonl")},
        ["none.jsonl", "no such file", "give the path"],
    ),
    "a broken line": ("", rows(*GOOD, '{"question": '), ["line 9 is not JSON", "write one object a line"]),
    "no answers": (
        "",
        rows(*({"question": row["question"], "gold": row["answer"]} for row in GOOD)),
        ["'answer'", "gold", "--data.source.answer_column"],
    ),
    "golds that cannot be read": ("", unread_golds, ["math_accuracy", "4 of", "mend the rows"]),
    "a layout that the reward does not know": (
        "",
        unmet_layout,
        ["running_total_accuracy", "16 of 16 golds", "--data.template.answer_format"],
    ),
    "an evaluation without rows": ("", empty_evaluation, ["empty.jsonl has no rows", "that is not empty"]),
    "a reward that does not exist": (
        "--rollout.rewards=[math.nope]",
        nothing,
        ["--rollout.rewards math.nope", "math has no nope"],
    ),
    "one score for all": (f"--rollout.rewards=[{REWARDS}.one_for_all]", nothing, ["one_for_all", "one"]),
    "a reward that fails": (
        f"--rollout.rewards=[{REWARDS}.fails]",
        nothing,
        ["reward fails failed at row 0: KeyError: 'nothing' (its prompt begins '"],
    ),
    "a reward without its column": (
        f"--rollout.rewards=[{REWARDS}.needs_level]",
        nothing,
        ["needs a column 'level'", "its columns: answer"],
    ),
    "an option that does not exist": (
        "--rollout.group_sise=4",
        nothing,
        ["--rollout.group_sise", "did you mean --rollout.group_size?"],
    ),
    "greedy rollouts": ("--rollout.temperature=0", nothing, ["--rollout.temperature 0", "must be positive"]),
    "a cut distribution with a sampler correction": (
        "--rollout.top_p=0.9",
        nothing,
        ["--rollout.top_p", "--model.correction false"],
    ),
    "fp16": ("--trainer.precision=16-mixed", nothing, ["--trainer.precision 16-mixed", "use bf16-mixed"]),
    "no GPU": ("--trainer.accelerator=gpu", nothing, ["--trainer.accelerator gpu", "try with"]),
    "a folder that cannot be written": ("", file_in_the_way, ["cannot be written", "choose another folder"]),
    "a folder whose run holds the policy": (
        "",
        policy_of_an_older_run,
        ["--model.policy", "moved aside", "choose another --trainer.default_root_dir"],
    ),
    "no checkpoint": ("--ckpt_path=none.ckpt", nothing, ["--ckpt_path none.ckpt: no such file", "'last'"]),
    "two beginnings": ("", two_beginnings, ["begins with two", "--data.template.layout"]),
    "no model": ("--model.policy=no/such/model", nothing, ["--model.policy no/such/model", "no such folder"]),
    "options of another schedule": (
        '--model.lr_scheduler_type=cosine --model.lr_scheduler_kwargs={"min_lr_rate":0.1}',
        nothing,
        ["--model.lr_scheduler_kwargs", "does not fit --model.lr_scheduler_type cosine"],
    ),
    "a sampler with other weights": (
        "--rollout.engine=tests.integration.broken_engines.OtherWeights",
        nothing,
        ["log-probabilities differ", "--model.max_logp_difference"],
    ),
    "a sampler without figures": (
        "--rollout.engine=tests.integration.broken_engines.NoFigures",
        nothing,
        ["NaN"],
    ),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_mistake_is_found_alone(
    planted: str, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, change, fragments = PLANTED[planted]
    shutil.copytree(tiny, tmp_path / "tiny")
    changes = change(tmp_path)
    before = listing(tmp_path)
    outcome = check(capsys, grpo(tmp_path / "tiny", tmp_path / "run", **changes), *arguments.split())
    (found,) = mistakes(outcome)
    assert all(fragment in found for fragment in fragments), found
    assert listing(tmp_path).keys() - before.keys() == {"run.yaml"}


def test_a_disk_that_is_too_small(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint of the tiny model has 12 bytes a weight; the command that trains refuses with the same words."""
    monkeypatch.setattr("grpo_lightning.callbacks.disk.shutil.disk_usage", lambda _: SimpleNamespace(free=480_000))
    config = grpo(tiny, tmp_path / "run")
    (found,) = mistakes(check(capsys, config))
    assert "480 kB are free" in found
    assert "487 kB" in found, "two checkpoints of 20,288 weights x (4 + 8) bytes"
    assert "--export.dtype bfloat16" in found
    assert run(capsys, "fit", "--config", str(tmp_path / "run.yaml")).mistake == found
    assert not (tmp_path / "run").exists()


def test_nobody_is_logged_in(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "NETRC", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "nobody"))
    config = grpo(tiny, tmp_path / "run", trainer__logger={"class_path": "lightning.pytorch.loggers.WandbLogger"})
    (found,) = mistakes(check(capsys, config))
    assert found.startswith("--trainer.logger: Weights & Biases knows nobody here; `wandb login`")
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert mistakes(check(capsys, config, "--sampler_gap=false")) == []


def test_all_mistakes_are_found_at_once(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "--trainer.precision=16-mixed", "--trainer.accelerator=gpu", "--ckpt_path=none.ckpt", "--model.lr=-1",
        "--rollout.temperature=0", "--rollout.group_size=1", "--rollout.updates_per_rollout=3",
        "--rollout.max_completion_length=250", "--data.prompts_per_step=20", "--trainer.max_steps=4",
        "--evaluation.samples=few", "--rollout.tempreture", "2", "--rollout.rewards=[math.nope]",
    ]  # fmt: skip
    config = grpo(tiny, tmp_path / "run", data__suffle=True, model__init_args__dtype="int8", export__dtype="int4")
    found = mistakes(check(capsys, config, *arguments))
    flags = [line.split()[0].rstrip(":") for line in found]
    assert set(flags[:6]) == {
        "--data.suffle", "--model.dtype", "--export.dtype", "--evaluation.samples", "--rollout.tempreture",
        "--rollout.rewards",
    }, found  # fmt: skip
    assert flags[6:] == [
        "--ckpt_path", "--trainer.precision", "--model.lr", "--rollout.temperature", "--trainer.accelerator",
        "--data.source", "--rollout.group_size", "--data.prompts_per_step", "--trainer.max_steps",
        "--data.max_prompt_length",
    ], found  # fmt: skip


@pytest.mark.parametrize("planted", ["one completion a group", "no data file", "greedy rollouts", "no checkpoint"])
def test_fit_says_the_same(
    planted: str, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_module, "load_policy", lambda *a, **k: pytest.fail("the weights were loaded"))
    arguments, change, _ = PLANTED[planted]
    config = grpo(tiny, tmp_path / "run", **change(tmp_path))
    said = mistakes(check(capsys, config, *arguments.split()))
    assert [run(capsys, "fit", "--config", str(tmp_path / "run.yaml"), *arguments.split()).mistake] == said


def test_the_page_of_a_good_run(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The numbers are those of the run that follows."""
    config = grpo(tiny, tmp_path / "run", rollout__passes=2, rollout__updates_per_rollout=2, trainer__max_steps=8)
    outcome = check(capsys, config)
    assert mistakes(outcome) == []
    page = " ".join(outcome.out.split())
    for part in (
        "A rollout is 4 prompts x 4 completions = 16, on one rank.",
        "cut into 2 windows and gone through twice: 4 optimizer steps a rollout, of 2 prompts (8 completions) each",
        "The run is 8 optimizer steps = 2 rollouts, 8 prompts",
        "32 completions of at most 8 tokens (256 in all)",
        "training: 4 samples a prompt at temperature 1, top_p 1, top_k 0, min_p 0; at most 8 tokens",
        "The model has 20,288 weights, of which 20,288 are trained",
        "a checkpoint has 243 kB, the export 81.2 kB",
        "No mistake found.",
    ):
        assert part in page, outcome.out
    assert not (tmp_path / "run").exists()
    fit(capsys, config)
    assert "It holds a run already" in check(capsys, config, "--sampler_gap", "false").out


def test_ranks_are_counted_and_none_is_started(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = grpo(tiny, tmp_path / "run", trainer__strategy="fsdp2", trainer__devices=2)
    outcome = check(capsys, config)
    assert mistakes(outcome) == []
    assert "= 16, on 2 ranks, 2 prompts each." in outcome.out
    found = mistakes(check(capsys, config, "--trainer.devices=3", "--data.eval_batch_size=6"))
    assert all(line.startswith("--data.prompts_per_step 4") and line.endswith("3 or 6") for line in found), found
    assert len(found) == 2, "neither prompts nor windows can be dealt to them"


def test_what_is_odd_is_said_and_stops_nothing(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = grpo(tiny, tmp_path / "run", trainer__max_steps=40, trainer__max_epochs=1)
    outcome = check(capsys, config, "--rollout.micro_batch_tokens=20", "--sampler_gap=false")
    assert mistakes(outcome) == []
    page = " ".join(outcome.out.split())
    assert "! --rollout.micro_batch_tokens 20: less than one sequence may have" in page
    assert "raise it to 72" in page
    assert "! --trainer.max_steps 40: --trainer.max_epochs 1 ends the run before, after step 4;" in page


def test_empty_columns_and_models_are_said(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A reward that asks for a column gets None where a row lacks it; a model may take long and is not called."""
    leveled = [{**row, "level": 1} for row in GOOD[2:]]
    config = grpo(tiny, tmp_path / "run", **rows(*GOOD[:2], *leveled)(tmp_path))
    model = {"class_path": "grpo_lightning.rewards.RewardModel", "init_args": {"model": "no/such/model"}}
    config["rollout"]["rewards"] = [f"{REWARDS}.names_level", model]
    outcome = check(capsys, config, "--sampler_gap=false")
    (found,) = mistakes(outcome)
    assert found.startswith("reward model no/such/model: there is no folder no/such/model")
    page = " ".join(outcome.out.split())
    assert "! column 'level' is empty in 2 of 8 rows; a reward that asks for it, as names_level does, gets None" in page
    assert "model: not tried, since it is a model." in page


def test_a_checkpoint_of_another_model(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(capsys, grpo(tiny, tmp_path / "first"))
    other = grpo(tiny, tmp_path / "other", trainer__max_steps=4)
    lora = [
        "--model.adapter",
        "grpo_lightning.models.LoRA",
        "--ckpt_path",
        str(tmp_path / "first/checkpoints/last.ckpt"),
    ]
    (found,) = mistakes(check(capsys, other, *lora))
    assert found.startswith("--ckpt_path: the checkpoint is of another model")
    assert mistakes(check(capsys, other, *lora[2:])) == []


# --- what is shipped ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_chat_model(tmp_path_factory.mktemp("models") / "chat")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_rows(tmp_path_factory.mktemp("data"))


OWN_ROWS = {"GSM8K": "gsm8k", "CompetitionMath": "math", "JsonLines": "choice"}


@pytest.mark.parametrize("config", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_config_passes(
    config: Path, policy: Path, tiny: Path, data: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a stand-in for the model and a few rows of each data set, one rank, a CPU; everything else is the config's."""
    source = yaml.safe_load(config.read_text("utf-8"))["data"]["source"]["class_path"].rpartition(".")[2]
    options = {
        "model.policy": policy if source in OWN_ROWS else tiny,
        "trainer.default_root_dir": tmp_path / "run",
        "trainer.accelerator": "cpu",
        "trainer.devices": 1,
        "trainer.precision": "32-true",
    }
    if source in OWN_ROWS:
        options |= {"data.source.path": data[OWN_ROWS[source]], "data.eval_sources": "[]", "data.prompts_per_step": 2}
        options |= {"trainer.val_check_interval": 1.0}
    flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    engine = ["--config", str(CONFIGS / "engine" / "transformers.yaml")]
    with all_packages(tmp_path / "packages"):
        outcome = run(capsys, "check", "--config", str(config), *engine, *flags)
    assert mistakes(outcome) == [], outcome.out
    assert "No mistake found." in outcome.out


def test_what_does_not_fit_one_device_is_said(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*args: Any, **kwargs: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(policy_module, "load_policy", load)
    outcome = check(capsys, grpo(tiny, tmp_path / "run"))
    assert mistakes(outcome) == []
    assert "! Not finished: policy and sampler do not fit one device" in outcome.out


def test_help_lists_the_report_and_where_options_of_classes_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "report" in run(capsys, "--help").out
    assert "'report'" in run(capsys, "reprt").mistake
    assert "fit --model.help grpo_lightning.GRPOModule" in " ".join(run(capsys, "fit", "--help").out.split())
    (tmp_path / "empty.yaml").write_text("{}")
    assert "report: stands first" in run(capsys, "--config", str(tmp_path / "empty.yaml"), "report").mistake


def test_it_stands_first(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"check": grpo(tiny, tmp_path / "run")}
    outcome = run(capsys, "--config", written(config, tmp_path / "run.yaml"), "check")
    assert outcome.mistake == "check: stands first; write `python -m grpo_lightning check --config ...`"
