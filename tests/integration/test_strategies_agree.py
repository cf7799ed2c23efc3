"""One recorded rollout, and one supervised run, under every strategy: the same norms, weights and figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integration.command_line import REPOSITORY
from tests.integration.replay_on_ranks import BOUND, COMBINATIONS, LR, SUPERVISED, replay_all
from tests.unit.models.tiny import tiny_model, tiny_tokenizer

pytestmark = pytest.mark.integration

EXACT = [name for name in COMBINATIONS if "bf16" not in name and "padding" not in name]
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
@pytest.mark.parametrize("name", [*EXACT, *SUPERVISED])
def test_norms_weights_and_figures_are_those_of_one_process(
    results: dict[str, Results], strategy: str, name: str
) -> None:
    one, two = results["auto"][name], results[strategy][name]
    assert len(two["steps"]) == (4 if name in SUPERVISED else 2 * COMBINATIONS[name]["updates"])
    assert min(norms(one)) > 2 * BOUND  # every step is clipped
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
@pytest.mark.parametrize(
    ("how", "without"),
    [
        ("checkpointing", "windows 2, beta 0.04"),
        ("checkpointing, LoRA", "windows 2, beta 0.04, LoRA"),
        ("bf16, checkpointing", "bf16"),
        ("PPO, value head, checkpointing", "PPO, value head"),
        ("padding", "windows 2, beta 0.04"),
        ("padding, LoRA", "windows 2, beta 0.04, LoRA"),
    ],
)
def test_neither_gradient_checkpointing_nor_padding_changes_anything(
    results: dict[str, Results], strategy: str, how: str, without: str
) -> None:
    again, plain = results[strategy][how], results[strategy][without]
    # Packing adds in another order, and each step makes more of the difference.
    assert norms(again) == pytest.approx(norms(plain), rel=5e-5 if "padding" in how else 1e-5)


@pytest.mark.parametrize("strategy", ["auto", "ddp", "fsdp2", "fsdp"])
def test_a_supervised_run_is_the_same_packed_and_its_held_out_loss_that_of_one_process(
    results: dict[str, Results], strategy: str
) -> None:
    one, padded = results["auto"]["supervised"], results[strategy]["supervised, padding"]
    for packed in (one, results[strategy]["supervised"]):
        assert norms(packed) == pytest.approx(norms(padded), rel=1e-5)
        assert [step["loss"] for step in packed["steps"]] == pytest.approx([s["loss"] for s in padded["steps"]])
        assert packed["held out"] == [pytest.approx(figures, rel=1e-5) for figures in padded["held out"]]
    assert [list(figures) for figures in one["held out"]] == 2 * [["val/some/loss", "val/others/loss", "val/loss"]]
    assert one["held out"][0]["val/loss"] != pytest.approx(one["held out"][1]["val/loss"], rel=1e-3)


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
def test_policy_and_critic_are_clipped_by_themselves(results: dict[str, Results], strategy: str) -> None:
    """The value head begins at 0, and so is as long as its first step: its own learning rate times the bound."""
    whole, lora = (results[strategy][f"PPO, value head{also}"] for also in ("", ", LoRA"))
    for run in (whole, lora):
        assert run["steps"][0]["critic/grad_norm"] > 2 * BOUND
        head = torch.cat([weight.flatten() for weight in run["weights"][0][-2:]])
        assert len(head) == 32 + 1
        assert float(head.norm()) == pytest.approx(LR * BOUND, rel=1e-5)
    assert results[strategy]["PPO, critic"]["steps"][0]["critic/learning_rate"] == 0.1


@pytest.mark.parametrize("strategy", ["auto", "ddp", "fsdp2"])
def test_values_in_bfloat16_are_about_those_in_float32(results: dict[str, Results], strategy: str) -> None:
    precise, low = (results[strategy][f"PPO, value head{also}"] for also in ("", ", bf16"))
    assert low["steps"][0]["ratio"] == 1.0
    for figure in ("critic/vf_loss", "critic/vpred_mean", "critic/grad_norm"):
        figures = [[step[figure] for step in run["steps"]] for run in (low, precise)]
        assert figures[0] == pytest.approx(figures[1], rel=0.03), figure
    assert {weight.dtype for weight in low["weights"][-1]} == {torch.float32}


@pytest.mark.parametrize("strategy", ["auto", "ddp", "fsdp2"])
def test_the_reference_is_where_the_run_began(results: dict[str, Results], strategy: str) -> None:
    for name, combination in COMBINATIONS.items():
        kl = [step.get("kl") for step in results[strategy][name]["steps"]]
        if combination["beta"]:
            assert kl[0] == 0.0
            assert len(kl) == 1 or kl[-1] > 1e-5
        else:
            assert set(kl) == {None}
