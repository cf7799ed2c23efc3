"""Real runs under every strategy, with vLLM in each rank: the same samples, a sampler in step, exports that open."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_lightning.data.tiny_model import build_tiny_model
from tests.integration.command_line import REPOSITORY, VLLM, grpo, records, rows, start, written
from tests.integration.load_in_vllm import TOKENS

pytestmark = [pytest.mark.integration, pytest.mark.vllm]

LORA = {"class_path": "grpo_lightning.models.LoRA", "init_args": {"r": 4, "lora_alpha": 8}}
RUNS: dict[str, dict[str, Any]] = {
    "single": {},
    "ddp": {"trainer__strategy": "ddp", "trainer__devices": 2, "export__dtype": "bfloat16"},
    "fsdp2": {"trainer__strategy": "fsdp2", "trainer__devices": 2},
    "fsdp2, LoRA": {"trainer__strategy": "fsdp2", "trainer__devices": 2, "model__init_args__adapter": LORA},
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(str(tmp_path_factory.mktemp("base") / "tiny"), hidden=128, layers=2, mlp=128)


@pytest.fixture(scope="module")
def runs(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three steps under each strategy; the run folders."""
    folders = {name: tmp_path_factory.mktemp("runs") / name.replace(", ", "_") for name in RUNS}
    for name, folder in folders.items():
        changes = {
            "rollout__engine": {"class_path": VLLM, "init_args": {"kv_cache_gib": 0.1}},
            "model__init_args__objective": {
                "class_path": "grpo_lightning.objectives.ClippedObjective",
                "init_args": {"beta": 0.04},
            },
            "samples__every_n_rollouts": 1,
            "trainer__max_steps": 3,
            **RUNS[name],
        }
        outcome = start("fit", "--config", written(grpo(base, folder, **changes), folder.with_suffix(".yaml")))
        assert outcome.code == 0, outcome.err
    return folders


def _samples(folder: Path) -> list[dict[str, Any]]:
    """Every completion of the run, rollout by rollout, in the order of the data's rows."""
    files = sorted((folder / "samples").glob("rollout_*.parquet"))
    assert len(files) == 3
    return [record for file in files for record in sorted(records(file), key=lambda record: record["row"])]


def _logprobs(model: Any) -> torch.Tensor:
    ids = torch.tensor([TOKENS])
    with torch.no_grad():
        logprobs = model(input_ids=ids).logits.log_softmax(-1)[0, :-1]
    return logprobs.gather(1, ids[0, 1:, None]).squeeze(1)


@pytest.mark.parametrize("name", ["ddp", "fsdp2"])
def test_every_strategy_draws_the_same_samples(runs: dict[str, Path], name: str) -> None:
    one, two = _samples(runs["single"]), _samples(runs[name])
    for key in ("prompt", "completion", "reward"):
        assert [record[key] for record in two] == [record[key] for record in one]
    assert [r["advantage"] for r in two] == pytest.approx([r["advantage"] for r in one])
    norms = [[float(row["grad_norm"]) for row in rows(runs[which])] for which in ("single", name)]
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)


@pytest.mark.parametrize("name", list(RUNS))
def test_the_sampler_has_the_new_weights_after_every_step(runs: dict[str, Path], name: str) -> None:
    steps = rows(runs[name])
    assert len(steps) == 3
    assert max(float(row["sampling/logp_difference/max"]) for row in steps) < 1e-5
    assert float(steps[0]["kl"]) == 0.0
    assert float(steps[-1]["kl"]) > 1e-4  # by then the weights have moved far beyond that gap


@pytest.mark.parametrize("name", list(RUNS))
def test_an_export_opens_in_transformers_and_is_the_trained_policy(
    runs: dict[str, Path], base: Path, name: str
) -> None:
    stored = load_file(runs[name] / "hf" / "model.safetensors")
    assert "lm_head.weight" not in stored, "tied to the embedding, and so written twice"
    dtype = getattr(torch, RUNS[name].get("export__dtype", "float32"))
    assert {tensor.dtype for tensor in stored.values()} == {dtype}
    assert AutoModelForCausalLM.from_pretrained(runs[name] / "hf").dtype == dtype
    model, report = AutoModelForCausalLM.from_pretrained(
        runs[name] / "hf", output_loading_info=True, dtype=torch.float32
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert model.generation_config.eos_token_id
    assert AutoTokenizer.from_pretrained(runs[name] / "hf").eos_token
    saved = torch.load(runs[name] / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    if "LoRA" in name:
        assert all("lora_" in key for key in saved)
        live = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), runs[name] / "adapter")
    else:
        live = AutoModelForCausalLM.from_pretrained(base)
        weights = {key.removeprefix("policy.model."): tensor for key, tensor in saved.items()}
        assert live.load_state_dict(weights, strict=False) == (["lm_head.weight"], [])  # tied: stored once
        for parameter in live.parameters():
            parameter.data = parameter.data.to(dtype).float()
    torch.testing.assert_close(_logprobs(model), _logprobs(live), rtol=0, atol=1e-5)
    assert (_logprobs(model) - _logprobs(AutoModelForCausalLM.from_pretrained(base))).abs().max() > 1e-3


def test_exports_open_in_vllm(runs: dict[str, Path]) -> None:
    folders = [str(folder / "hf") for folder in runs.values()]
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.load_in_vllm", *folders],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("logprobs ")]
    for folder, found in json.loads(line.removeprefix("logprobs ")).items():
        expected = _logprobs(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))
        torch.testing.assert_close(torch.tensor(found), expected, rtol=0, atol=1e-4)
