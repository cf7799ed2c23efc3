"""Six architectures learn through the command line on both samplers, and trainer and sampler agree on every token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from grpo_lightning import policy_module
from grpo_lightning.data.arithmetic import build_tokenizer
from tests.integration.command_line import TRANSFORMERS, VLLM, fit, grpo, records, rows, run, written
from tests.unit.engines.tiny_models import FAMILIES, save_model

pytestmark = pytest.mark.integration

GAP = "sampling/logp_difference/mean"
ENGINES = [
    pytest.param(TRANSFORMERS, id="transformers"),
    pytest.param({"class_path": VLLM, "init_args": {"kv_cache_gib": 0.25}}, id="vllm", marks=pytest.mark.vllm),
]


def _model(family: str, folder: Path) -> Path:
    save_model(family, folder)
    (folder / "generation_config.json").unlink()
    build_tokenizer().save_pretrained(folder)
    return folder


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "hf" / "model.safetensors")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"qwen2_untied"}))
def test_two_steps(family: str, engine: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first step moves every weight by 0.1, several times what it was: the sampler must follow."""
    model = _model(family, tmp_path / "model")
    config = grpo(model, tmp_path / "run", rollout__engine=engine, model__init_args__lr=0.1)
    fit(capsys, config)
    before, after = load_file(model / "model.safetensors"), _weights(tmp_path / "run")
    assert before.keys() == after.keys()
    moved = [(after[name] - before[name]).abs().max().item() for name in before]
    assert min(moved) > 0.01
    first, second = rows(tmp_path / "run")
    assert float(first[GAP]) < 1e-5
    assert float(second[GAP]) < 1e-5
    assert abs(float(second["entropy"]) - float(first["entropy"])) > 0.1


@pytest.mark.vllm
def test_evaluation_on_vllm_leaves_training_undisturbed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And the export, asked by vLLM, answers as the policy did at the last evaluation."""
    model = _model("qwen2", tmp_path / "model")
    engine = {"class_path": VLLM, "init_args": {"kv_cache_gib": 0.25}}
    changes: dict[str, Any] = {"rollout__engine": engine, "trainer__max_steps": 3, "evaluation__samples": 2}
    fit(capsys, grpo(model, tmp_path / "without", **changes))
    config = grpo(model, tmp_path / "with", **changes, trainer__val_check_interval=1)
    config["trainer"] |= {"limit_val_batches": 1.0, "num_sanity_val_steps": -1}
    fit(capsys, config)
    without, evaluated = _weights(tmp_path / "without"), _weights(tmp_path / "with")
    assert all(torch.equal(without[name], evaluated[name]) for name in without)

    export = str(tmp_path / "with" / "hf")
    file = written(config, tmp_path / "config.yaml")
    assert run(capsys, "validate", "--config", file, "--model.policy", export).code == 0
    samples = tmp_path / "with" / "samples"
    during, after = (records(samples / f"val_running_totals{when}.jsonl") for when in ("_step000003", ""))
    assert [answer["completion"] for answer in during] == [answer["completion"] for answer in after]


def test_without_vllm_the_default_sampler_is_transformers(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo_lightning.engines.vllm_process._DISTRIBUTIONS", ())
    outcome = fit(capsys, grpo(tiny, tmp_path / "run", rollout__engine=None))
    assert "Sampling with transformers" in outcome.err
    assert "not installed" in outcome.err
    assert len(rows(tmp_path / "run")) == 2


def test_bfloat16_arithmetic_on_float32_weights(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = grpo(tiny, tmp_path / "run", trainer__precision="bf16-mixed", rollout__passes=2, trainer__max_steps=4)
    fit(capsys, config)
    after = _weights(tmp_path / "run")
    assert all(tensor.dtype == torch.float32 for tensor in after.values())
    before = load_file(tiny / "model.safetensors")
    assert all((after[name] - before[name]).abs().max() > 1e-4 for name in before)
    table = rows(tmp_path / "run")
    assert all(float(row[GAP]) < 0.05 for row in table)
    # Old log-probabilities are taken with the arithmetic of the step itself, so that the first pass clips nothing.
    assert float(table[0]["clip_ratio/region_mean"]) == 0.0
    assert float(table[2]["clip_ratio/region_mean"]) == 0.0


def test_gradient_checkpointing_changes_nothing(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, on in (("off", False), ("on", True)):
        config = grpo(tiny, tmp_path / name, model__init_args__gradient_checkpointing=on, trainer__max_steps=3)
        fit(capsys, config)
    off, on_ = _weights(tmp_path / "off"), _weights(tmp_path / "on")
    for name in off:
        torch.testing.assert_close(on_[name], off[name], rtol=0, atol=1e-6)
    samples = [(tmp_path / name / "samples" / "rollout_000001.parquet").read_bytes() for name in ("off", "on")]
    assert samples[0] == samples[1]


@pytest.mark.parametrize(("beta", "models"), [(0.0, 1), (0.1, 2)])
def test_the_reference_is_loaded_where_it_is_needed(
    tiny: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    beta: float,
    models: int,
) -> None:
    loaded: list[str] = []
    real = policy_module.load_policy

    def load(path: str, **arguments: Any) -> Any:
        loaded.append(arguments["flag"])
        return real(path, **arguments)

    monkeypatch.setattr(policy_module, "load_policy", load)
    fit(capsys, grpo(tiny, tmp_path / "run"), "--model.objective.beta", str(beta))
    assert loaded == ["--model.policy", "--model.reference"][:models]
    table = rows(tmp_path / "run")
    if beta:
        assert float(table[0]["kl"]) == 0.0
        assert float(table[1]["kl"]) > 0.0
    else:
        assert "kl" not in table[0]
    loaded.clear()  # no evaluation asks the reference
    config = written(grpo(tiny, tmp_path / "evaluated", trainer__limit_val_batches=1), tmp_path / "evaluated.yaml")
    outcome = run(capsys, "validate", "--config", config, "--model.objective.beta", str(beta))
    assert (outcome.code, loaded) == (0, ["--model.policy"]), outcome.err
