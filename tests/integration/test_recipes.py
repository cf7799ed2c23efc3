"""The published recipes: every value that their sources give stands in the resolved config, and each trains.

The tables below are the published values, written down once more by hand in the project's terms. Values that a source
leaves open are not in them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.integration.command_line import REPOSITORY, Outcome, records, rows, run
from tests.integration.published_rewards import NAMES, OF_RECIPE, SETS
from tests.integration.stand_ins import (
    CONFIGS,
    Parsed,
    all_packages,
    build_chat_model,
    flat,
    words,
    write_rows,
)

pytestmark = pytest.mark.integration

DATA = "grpo_lightning.data"
ADVANTAGES, REDUCTION = "grpo_lightning.advantages", "grpo_lightning.functional.reduction"
VLLM = "grpo_lightning.engines.VLLMEngine"
MODEL, TEMPLATE, ENGINE = "model.init_args", "data.template.init_args", "rollout.engine.init_args"
OBJECTIVE, OPTIMIZER = f"{MODEL}.objective.init_args", f"{MODEL}.optimizer"

GRPO: dict[str, Any] = {
    "model.class_path": "grpo_lightning.GRPOModule",
    f"{MODEL}.objective.class_path": "grpo_lightning.objectives.ClippedObjective",
    f"{OBJECTIVE}.epsilon": 0.2,
    f"{OBJECTIVE}.epsilon_high": 0.2,
    f"{OBJECTIVE}.beta": 0.04,
    f"{OBJECTIVE}.kl_estimator": "k3",
    f"{OBJECTIVE}.kl_ratio": False,  # plain k3
    "rollout.advantages": f"{ADVANTAGES}.group_normalized",
    "rollout.reduction": f"{REDUCTION}.sequence_mean",
    "rollout.top_p": 1.0,
    "rollout.updates_per_rollout": 1,
}
"""What the four have in common: the loss of DeepSeekMath."""


def adamw(lr: float, betas: list[float], weight_decay: float, kind: str = "torch.optim.AdamW") -> dict[str, Any]:
    return {
        f"{MODEL}.lr": lr,
        f"{OPTIMIZER}.class_path": kind,
        f"{OPTIMIZER}.init_args.betas": betas,
        f"{OPTIMIZER}.init_args.weight_decay": weight_decay,
    }


def saved(every_n_rollouts: int) -> dict[str, Any]:
    return {
        "trainer.callbacks.0.class_path": "grpo_lightning.callbacks.checkpoint.RunCheckpoint",
        "trainer.callbacks.0.init_args.every_n_rollouts": every_n_rollouts,
    }


RECIPES: dict[str, dict[str, Any]] = {
    "math_open_r1": GRPO
    | {
        f"{MODEL}.policy": "Qwen/Qwen2.5-7B",
        f"{MODEL}.gradient_checkpointing": True,
        "data.source.class_path": f"{DATA}.CompetitionMath",
        "data.source.init_args.split": "train",
        f"{TEMPLATE}.answer_format": "think_answer",
        "rollout.passes": 1,
        "rollout.engine.class_path": VLLM,
        f"{ENGINE}.memory_share": 0.5,
        f"{ENGINE}.sleep_level": 2,
        "trainer.strategy": "fsdp2",
        "trainer.devices": 8,
    },
    "gsm8k_qwen2.5_1.5b": GRPO
    | adamw(1e-6, [0.9, 0.999], 0.01)
    | {
        f"{MODEL}.policy": "Qwen/Qwen2.5-1.5B",
        f"{MODEL}.max_grad_norm": 1.0,
        "data.source.class_path": f"{DATA}.GSM8K",
        "data.source.init_args.split": "train",
        f"{TEMPLATE}.answer_format": "chinese",
        "data.prompts_per_step": 4,
        "data.max_prompt_length": 512,
        "rollout.group_size": 8,
        "rollout.max_completion_length": 1024,
        "rollout.temperature": 0.8,
        "rollout.passes": 4,
        "rollout.engine.class_path": VLLM,
        f"{ENGINE}.memory_share": 0.8,
        f"{ENGINE}.tensor_parallel_size": 1,
        "trainer.max_epochs": 3,
        "trainer.callbacks.1.class_path": "lightning.pytorch.callbacks.ModelCheckpoint",
        "trainer.callbacks.1.init_args.every_n_epochs": 1,
        "trainer.callbacks.1.init_args.every_n_train_steps": None,
        "trainer.callbacks.1.init_args.save_on_train_epoch_end": True,
        "trainer.callbacks.1.init_args.save_top_k": -1,  # all are kept
        "trainer.callbacks.2.class_path": "grpo_lightning.callbacks.AdaptiveKL",
        "trainer.callbacks.2.init_args.target": 3.0,
        "trainer.callbacks.2.init_args.rate": 0.1,
        "trainer.callbacks.2.init_args.minimum": 0.001,
        "trainer.callbacks.2.init_args.maximum": 0.5,
        "trainer.log_every_n_steps": 10,
    },
    "logic_choice": GRPO
    | adamw(5e-6, [0.9, 0.99], 0.1, "bitsandbytes.optim.PagedAdamW8bit")
    | {
        f"{MODEL}.lr_scheduler_type": "cosine",
        f"{MODEL}.warmup_ratio": 0.1,
        f"{MODEL}.max_grad_norm": 0.1,
        "data.source.class_path": f"{DATA}.JsonLines",
        "data.source.init_args.question_column": "prompt",
        "data.source.init_args.answer_column": "response",
        f"{TEMPLATE}.answer_format": "reasoning_choice",
        "data.prompts_per_step": 1 * 4,  # a device x accumulation
        "data.max_prompt_length": 2048,
        "rollout.group_size": 4,
        "rollout.max_completion_length": 8192,
        "rollout.passes": 1,
        "trainer.max_epochs": 1,
        "trainer.log_every_n_steps": 10,
    }
    | saved(200),  # rollouts of one optimizer step each
    "gsm8k_qwen2.5_0.5b": GRPO
    | adamw(5e-6, [0.9, 0.99], 0.1)
    | {
        f"{MODEL}.policy": "Qwen/Qwen2.5-0.5B-Instruct",
        f"{MODEL}.lr_scheduler_type": "cosine",
        f"{MODEL}.warmup_ratio": 0.1,
        f"{MODEL}.max_grad_norm": 0.1,
        "data.source.class_path": f"{DATA}.GSM8K",
        "data.source.init_args.split": "train",
        f"{TEMPLATE}.answer_format": "reasoning_answer",
        f"{TEMPLATE}.chat": None,  # the model's own chat template
        "data.prompts_per_step": 8 * 4 // 8,  # completions a device x accumulation / G
        "data.max_prompt_length": 256,
        "rollout.group_size": 8,
        "rollout.max_completion_length": 200,
        "rollout.passes": 1,
        "rollout.engine.class_path": VLLM,
        f"{ENGINE}.memory_share": 0.3,
        "trainer.precision": "bf16-mixed",
        "trainer.max_epochs": 1,
        "trainer.log_every_n_steps": 1,
        "trainer.logger.class_path": "lightning.pytorch.loggers.WandbLogger",
    }
    | saved(100),
}
FILES = {
    "gsm8k_qwen2.5_0.5b": ("gsm8k", ["--data.eval_sources", "[]"]),
    "gsm8k_qwen2.5_1.5b": ("gsm8k", ["--data.eval_sources", "[]"]),
    "math_open_r1": ("math", ["--data.eval_sources", "[]"]),
    "logic_choice": ("choice", ["--model.optimizer", "torch.optim.AdamW"]),
}
"""The rows that each is tried on, and what stands in for the hub or for a GPU's optimizer."""


for _recipe, _rewards in OF_RECIPE.items():
    RECIPES[_recipe] |= flat(SETS[_rewards])


def config(recipe: str) -> Path:
    return CONFIGS / f"{recipe}.yaml"


COLD_START: dict[str, Any] = adamw(1e-5, [0.9, 0.95], 0.01) | {
    f"{MODEL}.lr_scheduler_type": "cosine",
    f"{MODEL}.warmup_ratio": 0.1,
    f"{MODEL}.max_grad_norm": 1.0,
    f"{MODEL}.dtype": "float32",
    f"{MODEL}.max_length": 1024,
    "data.prompts_per_step": 256,
    "trainer.max_epochs": 4,
}
"""verl's supervised fine-tuning."""


# --- values -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def resolved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What ``config.yaml`` in the run folder would say."""
    with all_packages(tmp_path_factory.mktemp("packages")):
        return {
            recipe: as_saved(
                config(recipe), *(["--data.source.path", "rows.jsonl"] if recipe == "logic_choice" else [])
            )
            for recipe in RECIPES
        }


def as_saved(file: Path, *options: str) -> dict[str, Any]:
    cli = Parsed(words([file], *options))
    return flat(yaml.safe_load(cli._parser("fit").dump(cli.config["fit"], skip_none=False)))


def differences(found: dict[str, Any], published: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Key to (value in the config, published value)."""
    return {k: (found.get(k, "absent"), v) for k, v in published.items() if found.get(k, "absent") != v}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_has_the_published_values(recipe: str, resolved: dict[str, dict[str, Any]]) -> None:
    assert differences(resolved[recipe], RECIPES[recipe]) == {}


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_comparison_sees_every_value(recipe: str, resolved: dict[str, dict[str, Any]]) -> None:
    for key, value in RECIPES[recipe].items():
        other = value + 1 if isinstance(value, int | float) and not isinstance(value, bool) else f"not {value}"
        changed = resolved[recipe] | {key: other}
        assert differences(changed, RECIPES[recipe]) == {key: (other, value)}


def test_the_cold_start_has_the_published_values_and_the_prompts_of_what_follows(
    resolved: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    with all_packages(tmp_path / "packages"):
        found = as_saved(config("sft_gsm8k"))
    assert differences(found, COLD_START) == {}
    follows = resolved["gsm8k_qwen2.5_0.5b"]
    template = {key: value for key, value in follows.items() if key.startswith(("data.template", "data.source"))}
    assert differences(found, template) == {}


def test_a_changed_file_is_seen(tmp_path: Path) -> None:
    text = config("gsm8k_qwen2.5_1.5b").read_text("utf-8")
    changed = tmp_path / "changed.yaml"
    changed.write_text(text.replace("passes: 4", "passes: 1").replace("temperature: 0.8", "temperature: 1.0"), "utf-8")
    with all_packages(tmp_path / "packages"):
        found = as_saved(changed)
    assert differences(found, RECIPES["gsm8k_qwen2.5_1.5b"]) == {
        "rollout.passes": (1, 4),
        "rollout.temperature": (1.0, 0.8),
    }


def test_an_objective_in_a_recipe_is_that_of_its_overlay(resolved: dict[str, dict[str, Any]]) -> None:
    overlay = flat(yaml.safe_load((CONFIGS / "objective" / "grpo.yaml").read_text("utf-8")))
    for recipe in RECIPES:
        assert differences(resolved[recipe], overlay) == {}, recipe


# --- running ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_chat_model(tmp_path_factory.mktemp("models") / "chat")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_rows(tmp_path_factory.mktemp("data"))


def try_out(
    capsys: pytest.CaptureFixture[str], recipe: str, policy: Path, data: dict[str, Path], root: Path, *options: str
) -> Outcome:
    """One rollout of 2 prompts and short completions on a CPU; everything else is the recipe's."""
    rows_of, stand_ins = FILES[recipe]
    overlays = [config(recipe), CONFIGS / "strategy" / "single.yaml", CONFIGS / "engine" / "transformers.yaml"]
    small = {
        "model.policy": policy,
        "data.source.path": data[rows_of],
        "data.prompts_per_step": 2,
        "rollout.max_completion_length": 6,
        "samples.every_n_rollouts": 1,
        "trainer.max_steps": RECIPES[recipe]["rollout.passes"],
        "trainer.log_every_n_steps": 1,
        "trainer.accelerator": "cpu",
        "trainer.precision": "32-true",
        "trainer.enable_progress_bar": "false",
        "trainer.default_root_dir": root,
        "trainer.val_check_interval": 1.0,
    }
    flags = [word for name, value in small.items() for word in (f"--{name}", str(value))]
    return run(capsys, *words(overlays, *flags, *stand_ins, *options))


def test_the_cold_start_trains(
    policy: Path, data: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On stand-ins of one token a byte: six rows, laid out as the prompt asks."""
    overlays = [config("sft_gsm8k"), CONFIGS / "strategy" / "single.yaml", CONFIGS / "engine" / "transformers.yaml"]
    small = {
        "model.policy": policy,
        "data.source.path": data["gsm8k"],
        "data.eval_sources": "[]",
        "data.prompts_per_step": 6,
        "trainer.max_epochs": 1,
        "trainer.accelerator": "cpu",
        "trainer.precision": "32-true",
        "trainer.enable_progress_bar": "false",
        "trainer.default_root_dir": tmp_path / "run",
    }
    flags = [word for name, value in small.items() for word in (f"--{name}", str(value))]
    assert run(capsys, *words(overlays, *flags)).code == 0
    (step,) = rows(tmp_path / "run")
    layout = "<reasoning>\n{n}+2 = {sum}\n</reasoning>\n<answer>\n{sum}\n</answer>\n"
    assert float(step["tokens"]) == sum(len(layout.format(n=n, sum=n + 2)) + 1 for n in range(6))
    assert (tmp_path / "run" / "hf" / "model.safetensors").exists()


SAYS = {
    "gsm8k_qwen2.5_0.5b": ["<|im_start|>system", "<reasoning>\n...\n</reasoning>", "Tom has"],
    "gsm8k_qwen2.5_1.5b": ["请一步一步地推理", "### 答案: ", "问题: Tom has", "解答:"],
    "math_open_r1": ["<think> </think>", "<answer> </answer>", "User: What is $", "Assistant:"],
    "logic_choice": ["<|im_start|>system", "\\boxed{letter}", "Which is"],
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_trains(
    recipe: str,
    policy: Path,
    data: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    outcome = try_out(capsys, recipe, policy, data, tmp_path / "run")
    assert outcome.code == 0, outcome.err
    published, steps = RECIPES[recipe], RECIPES[recipe]["rollout.passes"]
    assert [row["step"] for row in rows(tmp_path / "run")] == [str(n + 1) for n in range(steps)]
    for term in NAMES[OF_RECIPE[recipe]]:
        assert f"rewards/{term}/mean" in rows(tmp_path / "run")[0]
    samples = records(tmp_path / "run" / "samples" / "rollout_000001.parquet")
    assert len(samples) == 2 * int(rollout_value(tmp_path / "run", "group_size"))
    for part in SAYS[recipe]:
        assert part in samples[0]["prompt"]
    # What the optimizer really got.
    (stored,) = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=False)["optimizer_states"]
    (group,) = stored["param_groups"]
    if f"{OPTIMIZER}.class_path" in published:
        assert list(group["betas"]) == published[f"{OPTIMIZER}.init_args.betas"]
        assert group["weight_decay"] == published[f"{OPTIMIZER}.init_args.weight_decay"]
        assert group["initial_lr"] == published[f"{MODEL}.lr"]


def rollout_value(folder: Path, name: str) -> Any:
    return yaml.safe_load((folder / "config.yaml").read_text("utf-8"))["rollout"][name]


def test_the_choice_is_taken_from_a_full_solution(
    policy: Path, data: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert try_out(capsys, "logic_choice", policy, data, tmp_path / "run").code == 0
    sample = records(tmp_path / "run" / "samples" / "rollout_000001.parquet")[0]
    assert sample["answer"] == "B"


def test_logic_choice_asks_for_its_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run(capsys, *words([config("logic_choice")], "--model.optimizer", "torch.optim.AdamW"))
    assert outcome.mistake == "--data.source.path is missing; give it as an option or in a --config file"


def test_the_answer_pattern_wants_a_box_with_one_of_four_letters() -> None:
    pattern = yaml.safe_load(config("logic_choice").read_text("utf-8"))["data"]["source"]["init_args"]["answer_pattern"]
    assert re.findall(pattern, "not \\boxed{A} nor \\boxed{E}\n<answer>\n\\boxed{ C }\n</answer>") == ["A", "C"]


def test_the_comments_name_files_and_options_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    """Options inside a class's arguments are not in the general help and are left out."""
    assert run(capsys, "fit", "--help").code == 0
    known = run(capsys, "fit", "--help").out
    for file in sorted(CONFIGS.rglob("*.yaml")):
        comments = " ".join(line.partition("#")[2] for line in file.read_text("utf-8").splitlines())
        for path in re.findall(r"configs/[\w./]+?\.yaml", comments):
            assert (REPOSITORY / path).exists(), (file, path)
        for option in re.findall(r"--(?:trainer|rollout|evaluation)\.\w+", comments):
            assert option in known, (file, option)
