"""One recorded rollout, learned from in pieces of any size: the same gradients and the same weights."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor

from grpo_lightning import GRPOModule
from grpo_lightning.functional.reduction import constant_length, sequence_mean, token_mean
from grpo_lightning.rollout.windows import cut_windows
from grpo_lightning.types import RolloutBatch, Window
from tests.integration.recorded_rollout import ROWS, Attach, Recorded, by_rows, by_tokens, recorded, replay
from tests.unit.models.tiny import saved_policy, tiny_model

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved_policy(tmp_path_factory.mktemp("policy"), "Llama")


SPLITS = {"1 row": by_rows(1), "2 rows": by_rows(2), "4 rows": by_rows(4), "40 tokens": by_tokens(40)}
EVERYTHING = by_rows(ROWS)


def _norms(module: Recorded) -> list[float]:
    return [figures["grad_norm"] for figures in module.steps]


# --- the split changes nothing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("updates", "passes"), [(1, 1), (2, 1), (1, 2), (2, 2)], ids=lambda n: str(n))
@pytest.mark.parametrize("reduction", [token_mean, sequence_mean, constant_length], ids=lambda r: r.__name__)
def test_gradient_norms_and_weights_are_the_same_for_every_split(
    policy: str, tmp_path: Path, updates: int, passes: int, reduction: Any
) -> None:
    shared = {"updates": updates, "passes": passes, "reduction": reduction, "rollouts": 2}
    # Plain SGD shows a wrong gradient in the weights; Adam's normalization would hide a wrong scale of it.
    shared["optimizer"] = lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9)
    whole, _, _ = replay(policy, tmp_path, **shared)
    assert len(whole.steps) == 2 * updates * passes
    assert min(_norms(whole)) > 0.02
    for name, split in SPLITS.items():
        pieces, _, _ = replay(policy, tmp_path, split=split, **shared)
        assert _norms(pieces) == pytest.approx(_norms(whole), rel=1e-5), name
        for mine, theirs in zip(pieces.weights[-1], whole.weights[-1], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)
        figures = [(m["loss"], m["entropy"], m["clip_ratio/region_mean"], m["ratio"]) for m in pieces.steps]
        expected = [(m["loss"], m["entropy"], m["clip_ratio/region_mean"], m["ratio"]) for m in whole.steps]
        assert [x for row in figures for x in row] == pytest.approx([x for row in expected for x in row], abs=1e-5)


def test_with_a_kl_term_too(policy: str, tmp_path: Path) -> None:
    shared = {"updates": 2, "passes": 2, "beta": 0.5}
    whole, _, _ = replay(policy, tmp_path, **shared)
    assert whole.steps[0]["kl"] == 0.0  # the policy is still its reference
    assert whole.steps[-1]["kl"] > 1e-3
    pieces, _, _ = replay(policy, tmp_path, split=by_rows(2), **shared)
    assert _norms(pieces) == pytest.approx(_norms(whole), rel=1e-4)
    assert pieces.steps[-1]["kl"] == pytest.approx(whole.steps[-1]["kl"], rel=1e-3)


def test_averaging_each_micro_batch_by_its_own_tokens_would_be_told_apart(policy: str, tmp_path: Path) -> None:
    def own_tokens(batch: RolloutBatch, options: dict[str, Any]) -> list[Window[RolloutBatch]]:
        windows = by_rows(2)(batch, options)
        for window in windows:
            for micro_batch in window.micro_batches:
                mask = micro_batch.completion_mask
                micro_batch.loss_weights = mask / mask.sum() / len(window.micro_batches)
        return windows

    right, wrong = replay(policy, tmp_path)[0], replay(policy, tmp_path, split=own_tokens)[0]
    assert _norms(wrong) != pytest.approx(_norms(right), rel=1e-2)


def test_dropping_flat_groups_changes_no_gradient(policy: str, tmp_path: Path) -> None:
    def keep_all(batch: RolloutBatch, options: dict[str, Any]) -> list[Window[RolloutBatch]]:
        return cut_windows(batch, micro_batch_tokens=60, **options | {"keep": None})

    dropped, kept = replay(policy, tmp_path)[0], replay(policy, tmp_path, split=keep_all)[0]
    assert _norms(dropped) == pytest.approx(_norms(kept), rel=1e-5)
    assert dropped.steps[0]["loss"] == pytest.approx(kept.steps[0]["loss"], abs=1e-6)


def test_gradient_checkpointing_changes_no_gradient(policy: str, tmp_path: Path) -> None:
    plain = replay(policy, tmp_path, passes=2)[0]
    again = replay(policy, tmp_path, passes=2, gradient_checkpointing=True)[0]
    assert _norms(again) == pytest.approx(_norms(plain), rel=1e-5)


# --- several passes -----------------------------------------------------------------------------------------------


class Ratios(L.Callback):
    """The largest |ratio - 1| of each window of each pass, and the old values before each."""

    def __init__(self) -> None:
        self.gaps: list[float] = []

    def setup(self, trainer: L.Trainer, pl_module: GRPOModule, stage: str) -> None:
        token_loss = pl_module.objective.token_loss

        def watched(logprobs: Tensor, rollout: RolloutBatch) -> Any:
            result = token_loss(logprobs, rollout)
            self.gaps.append(float(((result.metrics["ratio"] - 1).abs() * rollout.completion_mask).max()))
            return result

        pl_module.objective.token_loss = watched  # type: ignore[method-assign]


@pytest.mark.parametrize("split", [EVERYTHING, by_rows(3)], ids=["at once", "4 micro-batches"])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_the_first_pass_has_ratio_exactly_one_and_the_second_has_not(
    policy: str, tmp_path: Path, split: Any, precision: str
) -> None:
    ratios = Ratios()
    module, _, _ = replay(
        policy, tmp_path, split=split, passes=2, callbacks=(ratios,), trainer_options={"precision": precision}
    )
    half = len(ratios.gaps) // 2
    assert half == (1 if split is EVERYTHING else 4)
    # Exactly 1 in every micro-batch of the first pass: no step is taken before all of them are through.
    assert ratios.gaps[:half] == [0.0] * half
    assert min(ratios.gaps[half:]) > 1e-3
    assert module.steps[0]["clip_ratio/region_mean"] == 0.0
    assert module.steps[1]["clip_ratio/region_mean"] > 0.0


def test_old_logprobs_are_bit_equal_in_both_passes(policy: str, tmp_path: Path) -> None:
    seen: list[Tensor] = []

    class Watch(L.Callback):
        def setup(self, trainer: L.Trainer, pl_module: GRPOModule, stage: str) -> None:
            token_loss = pl_module.objective.token_loss

            def watched(logprobs: Tensor, rollout: RolloutBatch) -> Any:
                seen.append(rollout.old_logprobs.clone())
                return token_loss(logprobs, rollout)

            pl_module.objective.token_loss = watched  # type: ignore[method-assign]

    replay(policy, tmp_path, split=by_rows(3), passes=2, callbacks=(Watch(),))
    first, second = seen[:4], seen[4:]
    assert len(second) == 4
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_the_second_window_is_off_policy_already_in_the_first_pass(policy: str, tmp_path: Path) -> None:
    ratios = Ratios()
    replay(policy, tmp_path, updates=2, callbacks=(ratios,))
    assert ratios.gaps[0] == 0.0
    assert ratios.gaps[1] > 1e-3


# --- steps without signal -----------------------------------------------------------------------------------------


def test_a_loss_of_zero_still_learns(policy: str, tmp_path: Path) -> None:
    batch = recorded()
    batch.advantages = torch.tensor([1.0, -1.0] * (ROWS // 2))[:, None]
    # Pairs of equal length, so that the mean loss cancels.
    batch.completion_mask = (torch.arange(12) < 1).float().expand(ROWS, 12).contiguous()
    before = [p.detach() for p in tiny_model("Llama").parameters()]
    module, _, _ = replay(policy, tmp_path, batch=batch)
    assert abs(module.steps[0]["loss"]) < 1e-6
    assert module.steps[0]["grad_norm"] > 0.1
    assert module.steps[0]["skipped_steps"] == 0.0
    assert max(float((a - b).abs().max()) for a, b in zip(module.weights[0], before, strict=True)) > 1e-3


class FlattenAfterFirst(L.Callback):
    """Makes every advantage 0, or NaN, from the second rollout on."""

    def __init__(self, attach_value: float) -> None:
        self.value = attach_value

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        attach = next(c for c in trainer.callbacks if isinstance(c, Attach))
        attach.batch.advantages = torch.full((ROWS, 1), self.value)
        attach.options["keep"] = attach.batch.advantages.flatten() != 0


@pytest.mark.parametrize("value", [0.0, math.nan], ids=["every group flat", "NaN gradient"])
def test_a_step_without_a_usable_gradient_moves_no_weight_although_adam_has_momentum(
    policy: str, tmp_path: Path, value: float
) -> None:
    module, trainer, _ = replay(policy, tmp_path, rollouts=3, callbacks=(FlattenAfterFirst(value),))
    moments = [state["exp_avg"].abs().max() for state in trainer.optimizers[0].state.values()]
    assert max(moments) > 0
    assert [figures["skipped_steps"] for figures in module.steps] == [0.0, 1.0, 1.0]
    for later in module.weights[1:]:
        assert all(torch.equal(a, b) for a, b in zip(later, module.weights[0], strict=True))
    assert trainer.global_step == 3  # a skipped step counts


def test_a_flat_window_beside_one_with_signal_is_skipped_alone(policy: str, tmp_path: Path) -> None:
    batch = recorded()
    batch.advantages[: ROWS // 2] = 0.0
    module, _, _ = replay(policy, tmp_path, batch=batch, split=by_tokens(60), updates=2)
    assert [figures["skipped_steps"] for figures in module.steps] == [1.0, 0.0]
    assert module.steps[0]["grad_norm"] == 0.0


# --- what a step is -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("updates", "passes", "split"), [(1, 1, 4), (2, 1, 2), (1, 2, 4), (2, 2, 1)])
def test_max_steps_counts_optimizer_steps_and_so_does_the_schedule(
    policy: str, tmp_path: Path, updates: int, passes: int, split: int
) -> None:
    steps = 4  # optimizer steps: 4 / (updates x passes) of the eight rollouts
    module, trainer, attach = replay(
        policy, tmp_path, updates=updates, passes=passes, split=by_rows(split), rollouts=8,
        trainer_options={"max_steps": steps, "max_epochs": -1}, lr_scheduler_type="linear",
    )  # fmt: skip
    assert trainer.global_step == steps
    assert len(module.steps) == steps
    assert len(attach.old) == steps // (updates * passes)
    assert module.lr_schedulers().last_epoch == steps
    # Linear to 0 over the run, read before each step.
    assert [figures["learning_rate"] for figures in module.steps] == pytest.approx([1e-2, 7.5e-3, 5e-3, 2.5e-3])


def test_without_max_steps_the_schedule_spans_the_epochs(policy: str, tmp_path: Path) -> None:
    module, trainer, _ = replay(
        policy, tmp_path, updates=2, passes=2, rollouts=2, trainer_options={"max_epochs": 2},
        lr_scheduler_type="constant_with_warmup", warmup_ratio=0.25,
    )  # fmt: skip
    assert trainer.global_step == len(module.steps) == 2 * 2 * 2 * 2
    rates = [figures["learning_rate"] for figures in module.steps]
    assert rates == pytest.approx([0.0, 2.5e-3, 5e-3, 7.5e-3] + [1e-2] * 12)  # a quarter of 16 steps


def test_figures_of_the_rollout_are_logged_once_with_its_first_step(policy: str, tmp_path: Path) -> None:
    module, _, _ = replay(policy, tmp_path, updates=2, passes=2, rollouts=2)
    assert ["rollout/figure" in figures for figures in module.steps] == [True, False, False, False] * 2
