"""Callbacks that change what the loss weighs, the reference or the completion limit, in runs and their resumes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.integration.command_line import REPOSITORY, checkpoint_content, rows, run, written
from tests.integration.resuming import checkpoint, command, differences, resumed
from tests.integration.steering import ON_TWO_RANKS, STEERING, SYNC, TARGET_ENTROPY, TARGET_KL, steered

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def whole(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with all of them."""
    folder = tmp_path_factory.mktemp("steered") / "whole"
    command(steered(tiny, folder, *STEERING))
    return folder


def by_rollout(folder: Path, name: str) -> list[list[float]]:
    """A figure of the two optimizer steps of each rollout."""
    column = [float(row[name]) for row in rows(folder)]
    return [column[first : first + 2] for first in range(0, len(column), 2)]


def test_beta_follows_the_kl_of_the_last_rollout(whole: Path) -> None:
    beta, moves = 0.1, set()
    for seen, used in zip(by_rollout(whole, "kl_sequence"), by_rollout(whole, "kl_coef"), strict=True):
        assert used == pytest.approx([beta, beta])
        kl = sum(seen) / 2
        factor = 1.5 if kl > 1.5 * TARGET_KL else 0.5 if kl < 0.5 * TARGET_KL else 1.0
        beta, moves = min(max(beta * factor, 0.001), 0.5), moves | {factor}
    assert {0.5, 1.5} <= moves, "both directions"


def test_the_bonus_is_there_while_the_entropy_is_low(whole: Path) -> None:
    coefficient, low, used = 0.0, False, []
    for seen, weights in zip(by_rollout(whole, "entropy"), by_rollout(whole, "entropy_coef"), strict=True):
        assert weights == pytest.approx([coefficient if low else 0.0] * 2)
        low = sum(seen) / 2 <= TARGET_ENTROPY
        coefficient = max(coefficient + (0.01 if low else -0.01), 0.0)
        used.append(weights[0])
    assert {weight > 0 for weight in used[1:]} == {True, False}, used


def test_completions_get_longer(whole: Path) -> None:
    """From 3 to the 8 tokens of --rollout.max_completion_length over 10 optimizer steps of 2 a rollout."""
    assert by_rollout(whole, "completions/limit") == [[limit, limit] for limit in (3, 4, 5, 6, 7, 8)]
    longest = [int(float(row["completions/max_length"])) for row in rows(whole)[::2]]
    assert longest == [3, 4, 5, 6, 7, 8]


def reference(folder: Path, step: int, of: str = "reference.model.") -> dict[str, torch.Tensor]:
    """The reference's weights in a checkpoint, or the policy's."""
    state = checkpoint_content(checkpoint(folder, step))["state_dict"]
    return {name.removeprefix(of): tensor for name, tensor in state.items() if name.startswith(of)}


def test_the_reference_follows_the_policy_every_fourth_step(whole: Path, tiny: Path) -> None:
    start, expected = load_file(tiny / "model.safetensors"), {}
    for step in range(2, 13, 2):
        policy, found = reference(whole, step, of="policy.model."), reference(whole, step)
        assert found.keys() == policy.keys()
        for name, tensor in found.items():
            before = expected.get(name, start[name])
            expected[name] = 0.6 * policy[name] + 0.4 * before if step % 4 == 0 else before
            torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-6)
    assert all((expected[name] - start[name]).abs().max() > 1e-4 for name in expected)


def test_a_resumed_run_is_steered_as_the_whole_one(whole: Path, tiny: Path) -> None:
    config = steered(tiny, whole, *STEERING)
    for step in (2, 6):
        assert differences(whole, resumed(config, whole, step, killed=True)) == [], step


def test_what_the_loss_sees_is_the_moved_reference_and_other_checkpoints_are_refused(
    whole: Path, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, copied = tmp_path / "plain", tmp_path / "copied"
    copy = SYNC | {"init_args": {"alpha": 1.0, "every_n_steps": 3}}
    command(steered(tiny, copied, copy, trainer__max_epochs=1))
    # Copied after step 4, whose rollout passed step 3, and after step 6.
    assert [float(row["kl"]) == 0 for row in rows(copied)] == [True, False, False, False, True, False]

    without = written(steered(tiny, plain, trainer__max_epochs=1), tmp_path / "plain.yaml")
    moved = str(checkpoint(whole, 4))
    outcome = run(capsys, "fit", "--config", without, "--ckpt_path", moved)
    assert outcome.mistake == (
        "--ckpt_path: the checkpoint's reference moves with the policy, and this run's does not; add "
        "grpo_lightning.callbacks.ReferenceSync in --trainer.callbacks"
    )
    # An evaluation has no use for it, nor has a run without a KL term.
    assert (
        run(capsys, "validate", "--config", without, "--ckpt_path", moved, "--trainer.limit_val_batches", "1").code == 0
    )
    unregularized = ["--model.objective.init_args.beta", "0", "--trainer.max_epochs", "-1", "--trainer.max_steps", "6"]
    outcome = run(capsys, "fit", "--config", without, "--ckpt_path", moved, *unregularized)
    assert outcome.code == 0, outcome.err
    assert not reference(plain, 6)

    added = written(steered(tiny, tmp_path / "added", SYNC), tmp_path / "added.yaml")
    outcome = run(capsys, "fit", "--config", added, "--ckpt_path", str(checkpoint(plain, 6)))
    assert outcome.mistake.startswith("--ckpt_path: the checkpoint's reference does not move with the policy, and this")


@pytest.fixture(scope="module")
def ranks(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ranks")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launch, "-m", "tests.integration.steering", str(tiny), str(root)],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return root


@pytest.mark.parametrize("name", ON_TWO_RANKS)
def test_two_ranks_are_steered_as_one_process(whole: Path, ranks: Path, name: str) -> None:
    for figure in ("kl_sequence", "kl_coef", "entropy_coef", "completions/limit"):
        assert len(by_rollout(ranks / name, figure)) == 3
        for one, two in zip(by_rollout(whole, figure), by_rollout(ranks / name, figure), strict=False):
            assert two == pytest.approx(one, rel=1e-3, abs=1e-6), figure
    if name == "fsdp2":
        for step in (2, 4):
            alone, found = reference(whole, step), reference(ranks / name, step)
            assert found.keys() == alone.keys()
            for tensor in found:
                torch.testing.assert_close(found[tensor], alone[tensor], rtol=0, atol=1e-4)
    assert differences(ranks / name, ranks / f"{name}-4") == []
