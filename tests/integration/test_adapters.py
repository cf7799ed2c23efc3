"""LoRA by the command line: from nothing, from a trained adapter, from a checkpoint; beside gradient checkpointing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from grpo_lightning.data.tiny_model import build_tiny_model
from tests.integration.command_line import fit, grpo, rows, run, start, untimed, written

pytestmark = pytest.mark.integration

OBJECTIVE = {"class_path": "grpo_lightning.objectives.ClippedObjective", "init_args": {"beta": 0.04}}


def _config(policy: Path, folder: Path, *, adapter: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    lora = {"class_path": "grpo_lightning.models.LoRA", "init_args": {"r": 4, **(adapter or {})}}
    return grpo(
        policy, folder, model__init_args__adapter=lora, model__init_args__objective=OBJECTIVE,
        model__init_args__lr=1e-2, rollout__passes=2, trainer__max_steps=4, **changes,
    )  # fmt: skip


@pytest.fixture(scope="module")
def first(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of four steps from a new adapter."""
    return tmp_path_factory.mktemp("first") / "run"


def test_a_run_from_a_new_adapter(tiny: Path, first: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(capsys, _config(tiny, first))
    steps = rows(first)
    assert [float(row["grad_norm"]) > 0 for row in steps] == [True] * 4
    assert float(steps[0]["kl"]) == 0.0
    assert float(steps[1]["kl"]) > 0.0
    checkpoint = torch.load(first / "checkpoints" / "last.ckpt", weights_only=True)
    assert all("lora_" in name for name in checkpoint["state_dict"])
    # Half of it B, half of it A: nothing else has an optimizer state.
    assert len(checkpoint["optimizer_states"][0]["state"]) == len(checkpoint["state_dict"])


def test_a_run_from_a_trained_adapter_begins_at_its_reference(
    tiny: Path, first: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = fit(capsys, _config(tiny, tmp_path / "run", adapter={"path": str(first / "adapter")}))
    steps = rows(tmp_path / "run")
    assert "r 4" in outcome.err
    assert float(steps[0]["kl"]) == 0.0
    assert float(steps[-1]["kl"]) > 0.0
    # It went on from the trained adapter: its first samples are scored by the same weights as they were drawn with.
    assert float(steps[0]["sampling/logp_difference/max"]) < 1e-5
    # And this is another policy than the base model's: the first run's export is where this one began.
    assert rows(first)[0]["entropy"] != steps[0]["entropy"]


def test_the_model_below_a_trained_adapter_can_be_its_reference(
    tiny: Path, first: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = _config(tiny, tmp_path / "run", adapter={"path": str(first / "adapter")})
    fit(capsys, config, "--model.reference", str(tiny), "--trainer.max_steps=2")
    assert float(rows(tmp_path / "run")[0]["kl"]) > 0.0  # the adapter has moved from it already


def test_a_resumed_run_is_the_straight_one(
    tiny: Path, first: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    half = _config(tiny, tmp_path / "run")
    half["trainer"]["max_steps"] = 2
    fit(capsys, half)
    fit(capsys, _config(tiny, tmp_path / "run"), "--ckpt_path", "last")
    assert untimed(tmp_path / "run") == untimed(first)
    ours, theirs = (torch.load(f / "checkpoints" / "last.ckpt", weights_only=True) for f in (tmp_path / "run", first))
    for name, tensor in theirs["state_dict"].items():
        assert torch.equal(ours["state_dict"][name], tensor)


def test_a_checkpoint_of_an_adapter_is_refused_in_one_line_without_one(tiny: Path, first: Path, tmp_path: Path) -> None:
    config = grpo(tiny, tmp_path / "run")
    file = str(first / "checkpoints" / "last.ckpt")
    outcome = start("fit", "--config", written(config, tmp_path / "c.yaml"), "--ckpt_path", file)
    assert "without --model.adapter" in outcome.mistake


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"lora_alpha": 3.0}, "lora_alpha is 32.0 in the checkpoint and 3.0"),
        ({"use_rslora": True}, "use_rslora is False"),
        ("policy", "model under the adapter is"),
        ("path", "reference is the policy without its adapter in the checkpoint"),
    ],
    ids=["scale", "root", "other model", "other reference"],
)
def test_going_on_as_another_policy_is_refused(
    tiny: Path, first: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Any, what: str
) -> None:
    policy = tiny
    if change == "policy":  # of the same shape
        policy = build_tiny_model(str(tmp_path / "other"), hidden=32, layers=2, mlp=64, seed=7)
    adapter = {"path": str(first / "adapter")} if change == "path" else change if isinstance(change, dict) else {}
    config = _config(policy, tmp_path / "run", adapter=adapter)
    file = str(first / "checkpoints" / "last.ckpt")
    outcome = run(capsys, "fit", "--config", written(config, tmp_path / "c.yaml"), "--ckpt_path", file)
    assert what in outcome.mistake


def test_going_on_towards_another_reference_is_refused(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"model__init_args__objective": OBJECTIVE, "trainer__max_steps": 1}
    fit(capsys, grpo(tiny, tmp_path / "run", **options))
    other = build_tiny_model(str(tmp_path / "other"), hidden=32, layers=2, mlp=64, seed=7)
    config = grpo(other, tmp_path / "run", **options | {"trainer__max_steps": 2})
    outcome = run(capsys, "fit", "--config", written(config, tmp_path / "c.yaml"), "--ckpt_path", "last")
    assert "the reference is" in outcome.mistake
    fit(capsys, config, "--ckpt_path", "last", "--model.reference", str(tiny))


def test_by_flags_and_with_a_mistake(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(grpo(tiny, tmp_path / "run"), tmp_path / "c.yaml")
    flags = ["--model.adapter", "grpo_lightning.models.LoRA", "--model.adapter.r"]
    assert run(capsys, "fit", "--config", file, *flags, "2").code == 0
    assert "--model.adapter.r 0" in run(capsys, "fit", "--config", file, *flags, "0").mistake


@pytest.mark.parametrize("adapter", [False, True], ids=["whole model", "LoRA"])
def test_checkpointing_leaves_generation_alone(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], adapter: bool
) -> None:
    answers = []
    for checkpointing in (False, True):
        make = _config if adapter else grpo
        config = make(tiny, tmp_path / "run", model__init_args__gradient_checkpointing=checkpointing)
        fit(capsys, config)
        steps = rows(tmp_path / "run")
        assert all(float(row["grad_norm"]) > 0 for row in steps)
        assert AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "hf").config.use_cache
        answers.append((tmp_path / "run" / "samples" / "rollout_000001.parquet").read_bytes())
        answers.append(str([row["grad_norm"][:6] for row in steps]))
    assert answers[:2] == answers[2:]
