"""One recorded rollout under every strategy: the same gradient norms, the same weights, the same figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integration.command_line import REPOSITORY
from tests.integration.replay_on_ranks import COMBINATIONS, replay_all
from tests.unit.models.tiny import tiny_model, tiny_tokenizer

pytestmark = pytest.mark.integration

EXACT = [name for name in COMBINATIONS if "bf16" not in name]
Results = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Results]:
    """What each strategy made of the rollout; ``auto`` is one process."""
    folder = tmp_path_factory.mktemp("replays")
    policy = folder / "policy"
    tiny_model("Qwen2").save_pretrained(policy)  # a tied head
    tiny_tokenizer().save_pretrained(policy)
    found = {"auto": replay_all("auto", str(policy), devices=1)}
    return found | {strategy: replay_on_two(strategy, policy, folder) for strategy in ("ddp", "fsdp2", "fsdp")}


def replay_on_two(strategy: str, policy: Path, folder: Path, accelerator: str = "cpu") -> Results:
    """What two processes make of it."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "tests.integration.replay_on_ranks", strategy, str(policy), str(folder), accelerator]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return torch.load(folder / f"{strategy}.pt", weights_only=False)


def norms(result: dict[str, Any]) -> list[float]:
    return [step["grad_norm"] for step in result["steps"]]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
@pytest.mark.parametrize("name", EXACT)
def test_norms_weights_and_figures_are_those_of_one_process(
    results: dict[str, Results], strategy: str, name: str
) -> None:
    one, two = results["auto"][name], results[strategy][name]
    assert len(two["steps"]) == 2 * COMBINATIONS[name]["updates"]
    assert min(norms(one)) > 0.1  # twice the bound and more: every step is clipped
    assert norms(two) == pytest.approx(norms(one), rel=1e-5)
    for mine, theirs in zip(two["weights"], one["weights"], strict=True):
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-5)
    moved = [(a - b).abs().max() for a, b in zip(one["weights"][0], one["weights"][-1], strict=True)]
    assert max(moved) > 1e-3
    for mine, theirs in zip(two["steps"], one["steps"], strict=True):
        figures = [figure for figure in theirs if not figure.startswith("time/")]
        assert [mine[f] for f in figures] == pytest.approx([theirs[f] for f in figures], rel=1e-5, abs=1e-5)


def test_fsdp1_takes_the_same_steps(results: dict[str, Results]) -> None:
    """Its training alone, with Lightning's refusal of CPUs lifted; its weights are flat shards, not compared."""
    names = [name for name in EXACT if name in results["fsdp"]]
    assert len(names) == 5
    for name in names:
        assert norms(results["fsdp"][name]) == pytest.approx(norms(results["auto"][name]), rel=1e-5)
    assert results["fsdp"]["bf16"]["steps"][0]["ratio"] == 1.0


@pytest.mark.parametrize("strategy", ["auto", "ddp", "fsdp2"])
@pytest.mark.parametrize("lora", ["", ", LoRA"], ids=["whole model", "LoRA"])
def test_gradient_checkpointing_changes_nothing(results: dict[str, Results], strategy: str, lora: str) -> None:
    plain, again = results[strategy][f"windows 2, beta 0.04{lora}"], results[strategy][f"checkpointing{lora}"]
    assert norms(again) == pytest.approx(norms(plain), rel=1e-5)


@pytest.mark.parametrize("strategy", ["auto", "ddp", "fsdp2"])
@pytest.mark.parametrize("lora", ["", ", LoRA"], ids=["whole model", "LoRA"])
def test_bfloat16_has_a_first_ratio_of_one_and_about_the_same_gradient(
    results: dict[str, Results], strategy: str, lora: str
) -> None:
    precise, low = results[strategy][f"windows 2, beta 0.04{lora}"], results[strategy][f"bf16{lora}"]
    assert low["steps"][0]["ratio"] == 1.0
    assert low["steps"][0]["kl"] == 0.0
    # Later steps clip other tokens, and go other ways.
    assert norms(low)[:2] == pytest.approx(norms(precise)[:2], rel=0.1)
    assert norms(low)[:2] != norms(precise)[:2]
    assert {weight.dtype for weight in low["weights"][-1]} == {torch.float32}


@pytest.mark.parametrize("strategy", ["auto", "ddp", "fsdp2"])
@pytest.mark.parametrize("lora", ["", ", LoRA"], ids=["whole model", "LoRA"])
def test_so_has_bfloat16_where_the_reference_is_asked_first(
    results: dict[str, Results], strategy: str, lora: str
) -> None:
    (precise, *_), (low,) = (
        norms(results[strategy][name]) for name in (f"windows 1, beta 0.04{lora}", f"bf16{lora}, on policy")
    )
    assert low == pytest.approx(precise, rel=0.1)


@pytest.mark.parametrize("strategy", ["auto", "ddp", "fsdp2"])
def test_the_reference_is_where_the_run_began(results: dict[str, Results], strategy: str) -> None:
    for name, combination in COMBINATIONS.items():
        kl = [step.get("kl") for step in results[strategy][name]["steps"]]
        if combination["beta"]:
            assert kl[0] == 0.0
            assert len(kl) == 1 or kl[-1] > 1e-5
        else:
            assert set(kl) == {None}
