"""A sequence-classification model as a run's reward: its scores under every strategy, and no trace of it elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Qwen2Config, Qwen2ForSequenceClassification

from grpo_lightning.__main__ import main
from tests.integration.command_line import (
    checkpoint_content,
    equal,
    exported_weights,
    fit,
    grpo,
    own_process_state,
    records,
    rows,
    run,
    start,
    template,
    totals,
    untimed,
    written,
)
from tests.integration.stand_ins import CHAT, CONFIGS, Parsed, build_chat_model, flat, words

pytestmark = pytest.mark.integration

OVERLAY = CONFIGS / "rewards" / "reward_model.yaml"
REWARD_MODEL = "grpo_lightning.rewards.RewardModel"
STRATEGIES: dict[str, dict[str, Any]] = {
    "single": {},
    "ddp": {"trainer__strategy": "ddp", "trainer__devices": 2},
    "fsdp2": {"trainer__strategy": "fsdp2", "trainer__devices": 2},
}
OTHER_CHAT = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"


class LastToken(nn.Module):
    """A user's own scorer: the id of the last token that is looked at, times ``scale``, behind two other labels."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        last = input_ids.gather(1, attention_mask.sum(1, keepdim=True) - 1).float()
        return SimpleNamespace(logits=torch.cat([0 * last, 0 * last, self.scale * last], dim=1))


def reward(model: Any, **arguments: Any) -> dict[str, Any]:
    """A reward model in YAML."""
    return {"class_path": REWARD_MODEL, "init_args": {"model": model, **arguments}}


def build_classifier(folder: Path, tokenizer_of: Path, *, chat_template: str | None = None) -> Path:
    """A classifier of random weights, with another model's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_of)
    tokenizer.chat_template = chat_template
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        config = Qwen2Config(
            vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, intermediate_size=64, pad_token_id=0,
        )  # fmt: skip
        config.num_labels = 1
        model = Qwen2ForSequenceClassification(config)
        nn.init.normal_(model.score.weight)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def alone(folder: Path, texts: list[str]) -> list[float]:
    """Each text's score by transformers, without a batch."""
    model, tokenizer = (
        AutoModelForSequenceClassification.from_pretrained(folder).eval(),
        AutoTokenizer.from_pretrained(folder),
    )
    with torch.no_grad():
        encoded = [tokenizer(text, add_special_tokens=False, return_tensors="pt") for text in texts]
        return [model(**ids).logits[0, 0].item() for ids in encoded]


def samples(folder: Path) -> list[dict[str, Any]]:
    """Every completion of a run."""
    return [record for file in sorted((folder / "samples").glob("rollout_*.parquet")) for record in records(file)]


@pytest.fixture(scope="module")
def judge(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_classifier(tmp_path_factory.mktemp("judges") / "judge", tiny)


@pytest.fixture(scope="module")
def runs(tiny: Path, judge: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two steps under each strategy; the run folders."""
    root = tmp_path_factory.mktemp("runs")
    for name, changes in STRATEGIES.items():
        config = grpo(
            tiny, root / name, rollout__rewards=[reward(str(judge), batch_tokens=200)],
            samples__every_n_rollouts=1, **changes,
        )  # fmt: skip
        file = written(config, root / f"{name}.yaml")
        if changes:
            outcome = start("fit", "--config", file)
            assert outcome.code == 0, outcome.err
        else:
            with own_process_state():
                main(["fit", "--config", file])
    return {name: root / name for name in STRATEGIES}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rewards_of_a_run_are_the_models_scores(runs: dict[str, Path], judge: Path, strategy: str) -> None:
    lines = samples(runs[strategy])
    assert len(lines) == 2 * 4 * 4
    expected = alone(judge, [line["prompt"] + line["completion"] for line in lines])
    assert [line["rewards/judge"] for line in lines] == pytest.approx(expected, abs=1e-5)
    assert len(set(expected)) > 16
    for step, found in enumerate(rows(runs[strategy])):
        scores = torch.tensor(expected[16 * step : 16 * step + 16])
        assert float(found["rewards/judge/mean"]) == pytest.approx(scores.mean().item(), abs=1e-5)
        assert float(found["grad_norm"]) > 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_neither_optimizer_checkpoint_nor_export_holds_it(runs: dict[str, Path], tiny: Path, strategy: str) -> None:
    checkpoint = checkpoint_content(runs[strategy] / "checkpoints" / "last.ckpt")
    names = set(checkpoint["state_dict"])
    assert names
    assert all(name.startswith("policy.") for name in names)
    assert not [name for name in names if "score" in name]
    policy = {name: weight.shape for name, weight in exported_weights(runs[strategy]).items()}
    assert policy == {name: weight.shape for name, weight in load_file(tiny / "model.safetensors").items()}
    states = checkpoint["optimizer_states"][0]["state"]
    assert len(states) == len(policy)
    of_callbacks = checkpoint["callbacks"] | {"HealthCallback": None}  # which names the rewards that it watches
    assert "judge" not in json.dumps(of_callbacks, default=str)


def test_strategies_agree(runs: dict[str, Path]) -> None:
    for strategy in ("ddp", "fsdp2"):
        for one, other in zip(rows(runs["single"]), rows(runs[strategy]), strict=True):
            assert float(one["grad_norm"]) == pytest.approx(float(other["grad_norm"]), rel=1e-4)


def test_a_run_goes_on_from_its_checkpoint(
    tiny: Path, judge: Path, runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = grpo(
        tiny, tmp_path / "run", rollout__rewards=[reward(str(judge), batch_tokens=200)],
        samples__every_n_rollouts=1, trainer__max_steps=1,
    )  # fmt: skip
    fit(capsys, config)
    fit(capsys, {**config, "trainer": {**config["trainer"], "max_steps": 2}}, "--ckpt_path", "last")
    assert equal(exported_weights(tmp_path / "run"), exported_weights(runs["single"]))
    assert untimed(tmp_path / "run") == untimed(runs["single"])


def test_a_module_by_its_class_path(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scorer = {"class_path": f"{__name__}.LastToken", "init_args": {"scale": 0.5}}
    last = reward(scorer, tokenizer=str(tiny), label=2, max_length=2, name="last")
    config = grpo(
        tiny, tmp_path / "run", rollout__rewards=[last],
        samples__every_n_rollouts=1,
    )  # fmt: skip
    fit(capsys, config)
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    lines = samples(tmp_path / "run")
    expected = [0.5 * tokenizer(line["prompt"] + line["completion"])["input_ids"][-1] for line in lines]
    assert [line["rewards/last"] for line in lines] == expected
    # Of two tokens the last is the same; every prompt has more.
    assert [float(row["rewards/last/truncated"]) for row in rows(tmp_path / "run")] == [16.0, 16.0]
    # The written configuration runs again.
    again = fit(capsys, yaml.safe_load((tmp_path / "run" / "config.yaml").read_text("utf-8")))
    assert again.code == 0
    assert samples(tmp_path / "run") == lines


def test_chat_prompts_are_rendered_by_the_reward_models_own_template(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = build_chat_model(tmp_path / "policy")
    judge = build_classifier(tmp_path / "judge", policy, chat_template=OTHER_CHAT)
    config = grpo(
        policy, tmp_path / "run", rollout__rewards=[reward(str(judge))], samples__every_n_rollouts=1,
        data__template={"class_path": "grpo_lightning.data.PromptTemplate", "init_args": {"answer_format": "none"}},
        data__max_prompt_length=256, trainer__max_steps=1,
    )  # fmt: skip
    config["data"].pop("eval_sources")
    fit(capsys, config)
    lines = samples(tmp_path / "run")
    questions = [line["prompt"].split("<|im_start|>user\n")[1].split("<|im_end|>")[0] for line in lines]
    texts = [f"[user] {q}\n[assistant] {line['completion']}\n" for q, line in zip(questions, lines, strict=True)]
    assert [line["rewards/judge"] for line in lines] == pytest.approx(alone(judge, texts), abs=1e-5)
    assert CHAT != OTHER_CHAT

    plain = build_classifier(tmp_path / "plain", policy)
    config["rollout"]["rewards"] = [reward(str(plain))]
    outcome = run(capsys, "fit", "--config", written(config, tmp_path / "plain.yaml"))
    assert "the prompts are chat messages, but its tokenizer has no chat template" in outcome.mistake


def test_predict_scores_with_it(tiny: Path, judge: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = grpo(tiny, tmp_path / "run", rollout__rewards=[reward(str(judge))])
    config["data"]["eval_sources"] = [totals("eval", 3)]
    outcome = run(capsys, "predict", "--config", written(config, tmp_path / "c.yaml"))
    assert outcome.code == 0, outcome.err
    lines = records(tmp_path / "run" / "predictions.jsonl")
    expected = alone(judge, [line["prompt"] + line["completion"] for line in lines])
    assert [line["rewards"]["judge"] for line in lines] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("./nothing_here", "reward model ./nothing_here: there is no folder ./nothing_here"),
        ("nobody/nothing", "reward model nobody/nothing: its configuration cannot be loaded"),
        ("tiny", "lacks the weights score.weight, so its scores would be random numbers"),
    ],
)
def test_a_wrong_model_ends_the_run_before_it_begins(
    model: str, message: str, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = grpo(tiny, tmp_path / "run", rollout__rewards=[reward(str(tiny) if model == "tiny" else model)])
    outcome = run(capsys, "fit", "--config", written(config, tmp_path / "c.yaml"))
    assert message in outcome.mistake
    assert not list((tmp_path / "run").rglob("metrics.csv"))


def test_the_shipped_overlay_scores(
    tiny: Path, judge: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = grpo(tiny, tmp_path / "run", data__template=template(), trainer__max_steps=1)
    fit(
        capsys, config, "--config", str(OVERLAY),
        "--rollout.rewards.init_args.model", str(judge),
    )  # fmt: skip
    assert "rewards/judge/mean" in rows(tmp_path / "run")[0]


@pytest.mark.parametrize("recipe", ["gsm8k_qwen2.5_0.5b", "gsm8k_qwen2.5_1.5b", "math_open_r1", "quickstart"])
def test_the_shipped_overlay_replaces_a_recipes_rewards(recipe: str) -> None:
    with own_process_state():
        parsed = Parsed(words([CONFIGS / f"{recipe}.yaml", OVERLAY])).config["fit"]
    found = {key: value for key, value in flat(parsed["rollout"]).items() if key.startswith("rewards")}
    arguments = {key.removeprefix("rewards.0.init_args."): value for key, value in found.items() if "init_args" in key}
    assert found == {"rewards.0.class_path": REWARD_MODEL} | {
        f"rewards.0.init_args.{k}": v for k, v in arguments.items()
    }
    assert arguments["model"] == "Skywork/Skywork-Reward-V2-Qwen3-0.6B"
    assert (arguments["dtype"], arguments["batch_tokens"], arguments["label"]) == ("float32", 16384, 0)
    assert (parsed["rollout"]["reward_weights"], parsed["rollout"]["reward_gates"]) == ([1.0], None)
