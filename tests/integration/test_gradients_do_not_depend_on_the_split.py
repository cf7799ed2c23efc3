"""One recorded rollout, learned from in pieces of any size: the same gradients and the same weights.

The rollout is made once from fixed completions; a small callback attaches it to the batch as the rollout callback does,
and ``GRPOModule.training_step`` runs under a real Trainer.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from grpo_lightning import GRPOModule
from grpo_lightning.functional.reduction import constant_length, sequence_mean, token_mean
from grpo_lightning.objectives import ClippedObjective
from grpo_lightning.rollout.windows import cut_windows, pad_rows
from grpo_lightning.types import PromptBatch, Rollout, RolloutBatch, Window
from tests.unit.models.tiny import VOCABULARY, tiny_model, tiny_tokenizer

pytestmark = pytest.mark.integration

ROWS, GROUP = 16, 4
LENGTHS = [1, 9, 4, 4, 2, 12, 3, 7, 5, 5, 5, 5, 11, 1, 2, 6]
ADVANTAGES = [1.5, -0.5, -0.5, -0.5, 0.0, 0.0, 0.0, 0.0, 0.87, 0.87, -0.87, -0.87, 0.5, 0.5, 0.5, -1.5]
"""The second prompt's group is flat, so its rows are left out where the objective allows it."""


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("policy")
    tiny_model("Llama").save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)


def _recorded() -> RolloutBatch:
    """Four prompts of four completions each, of ragged lengths."""
    generator = torch.Generator().manual_seed(5)

    def tokens(count: int) -> list[int]:
        return torch.randint(2, VOCABULARY, (count,), generator=generator).tolist()

    prompts = [tokens(3 + 2 * prompt) for prompt in range(ROWS // GROUP)]
    padded = pad_rows(
        [prompts[row // GROUP] for row in range(ROWS)], [[*tokens(n - 1), 1] for n in LENGTHS], pad_token_id=0
    )
    return RolloutBatch(
        **vars(padded),
        advantages=torch.tensor(ADVANTAGES)[:, None],
        sampling_logprobs=torch.zeros_like(padded.completion_mask),
    )


Split = Callable[[RolloutBatch, dict[str, Any]], list[Window[RolloutBatch]]]


def _by_rows(count: int) -> Split:
    """Micro-batches of ``count`` rows."""

    def split(batch: RolloutBatch, options: dict[str, Any]) -> list[Window[RolloutBatch]]:
        windows = cut_windows(batch, micro_batch_tokens=10**9, **options)
        for window in windows:
            for whole in window.micro_batches:  # one, or none where every row was left out
                window.micro_batches = [whole.rows(part) for part in torch.arange(len(whole)).split(count)]
        return windows

    return split


def _by_tokens(bound: int) -> Split:
    """Micro-batches as the product cuts them."""
    return lambda batch, options: cut_windows(batch, micro_batch_tokens=bound, **options)


SPLITS = {"1 row": _by_rows(1), "2 rows": _by_rows(2), "4 rows": _by_rows(4), "40 tokens": _by_tokens(40)}
EVERYTHING = _by_rows(ROWS)


class Attach(L.Callback):
    """Puts the recorded rollout on each batch, scored by the policy as it is then."""

    def __init__(self, batch: RolloutBatch, *, split: Split, options: dict[str, Any], passes: int) -> None:
        self.batch, self.split, self.options, self.passes = batch, split, options, passes
        self.old: list[list[Tensor]] = []

    def setup(self, trainer: L.Trainer, pl_module: GRPOModule, stage: str) -> None:
        pl_module.steps_per_batch = self.passes * self.options["updates"]

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        windows = self.split(copy.deepcopy(self.batch), self.options)
        for micro_batch in (m for window in windows for m in window.micro_batches):
            if self.passes * self.options["updates"] > 1:
                micro_batch.old_logprobs = pl_module.score(micro_batch, temperature=0.9)
            if pl_module.needs_reference:
                micro_batch.ref_logprobs = pl_module.score(micro_batch, temperature=0.9, reference=True)
        batch.rollout = Rollout(
            prompts=[],
            completions=[],
            rewards=torch.zeros(0),
            reward_terms={},
            advantages=torch.zeros(0),
            windows=windows,
            passes=self.passes,
            temperature=0.9,
            metrics={"rollout/figure": 1.0},
        )

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        kept = [m.old_logprobs for window in batch.rollout.windows for m in window.micro_batches]
        self.old.append([old for old in kept if old is not None])


class Recorded(GRPOModule):
    """Remembers what was logged, and every weight after every optimizer step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.steps: list[dict[str, float]] = []
        self.weights: list[list[Tensor]] = []

    def log_figures(self, figures: dict[str, float], **kwargs: Any) -> None:
        self.steps.append(figures)
        self.weights.append([p.detach().clone() for p in self.policy.parameters()])
        super().log_figures(figures, **kwargs)


def _fit(
    policy: str,
    tmp_path: Path,
    *,
    batch: RolloutBatch | None = None,
    split: Split = EVERYTHING,
    updates: int = 1,
    passes: int = 1,
    reduction: Any = token_mean,
    beta: float = 0.0,
    rollouts: int = 1,
    callbacks: tuple[L.Callback, ...] = (),
    trainer_options: dict[str, Any] | None = None,
    **module_options: Any,
) -> tuple[Recorded, L.Trainer, Attach]:
    batch = batch or _recorded()
    objective = ClippedObjective(beta=beta)
    options = {
        "updates": updates,
        "reduction": reduction,
        "max_completion_length": 12,
        "keep": batch.advantages.flatten() != 0 if objective.zero_advantage_means_zero_gradient else None,
    }
    module = Recorded(
        policy,
        objective=objective,
        max_logp_difference=math.inf,  # the record has no sampler
        **{"lr": 1e-2, "max_grad_norm": 1.0} | module_options,
    )
    attach = Attach(batch, split=split, options=options, passes=passes)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        callbacks=[attach, *callbacks],
        **{"max_epochs": 1} | (trainer_options or {}),
    )
    loader = DataLoader([PromptBatch([]) for _ in range(rollouts)], batch_size=None, collate_fn=lambda item: item)
    trainer.fit(module, loader)
    return module, trainer, attach


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
    whole, _, _ = _fit(policy, tmp_path, **shared)
    assert len(whole.steps) == 2 * updates * passes
    assert min(_norms(whole)) > 0.02
    for name, split in SPLITS.items():
        pieces, _, _ = _fit(policy, tmp_path, split=split, **shared)
        assert _norms(pieces) == pytest.approx(_norms(whole), rel=1e-5), name
        for mine, theirs in zip(pieces.weights[-1], whole.weights[-1], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)
        figures = [(m["loss"], m["entropy"], m["clip_ratio/region_mean"], m["ratio"]) for m in pieces.steps]
        expected = [(m["loss"], m["entropy"], m["clip_ratio/region_mean"], m["ratio"]) for m in whole.steps]
        assert [x for row in figures for x in row] == pytest.approx([x for row in expected for x in row], abs=1e-5)


def test_with_a_kl_term_too(policy: str, tmp_path: Path) -> None:
    shared = {"updates": 2, "passes": 2, "beta": 0.5}
    whole, _, _ = _fit(policy, tmp_path, **shared)
    assert whole.steps[0]["kl"] == 0.0  # the policy is still its reference
    assert whole.steps[-1]["kl"] > 1e-3
    pieces, _, _ = _fit(policy, tmp_path, split=_by_rows(2), **shared)
    assert _norms(pieces) == pytest.approx(_norms(whole), rel=1e-4)
    assert pieces.steps[-1]["kl"] == pytest.approx(whole.steps[-1]["kl"], rel=1e-3)


def test_averaging_each_micro_batch_by_its_own_tokens_would_be_told_apart(policy: str, tmp_path: Path) -> None:
    def own_tokens(batch: RolloutBatch, options: dict[str, Any]) -> list[Window[RolloutBatch]]:
        windows = _by_rows(2)(batch, options)
        for window in windows:
            for micro_batch in window.micro_batches:
                mask = micro_batch.completion_mask
                micro_batch.loss_weights = mask / mask.sum() / len(window.micro_batches)
        return windows

    right, wrong = _fit(policy, tmp_path)[0], _fit(policy, tmp_path, split=own_tokens)[0]
    assert _norms(wrong) != pytest.approx(_norms(right), rel=1e-2)


def test_dropping_flat_groups_changes_no_gradient(policy: str, tmp_path: Path) -> None:
    def keep_all(batch: RolloutBatch, options: dict[str, Any]) -> list[Window[RolloutBatch]]:
        return cut_windows(batch, micro_batch_tokens=60, **options | {"keep": None})

    dropped, kept = _fit(policy, tmp_path)[0], _fit(policy, tmp_path, split=keep_all)[0]
    assert _norms(dropped) == pytest.approx(_norms(kept), rel=1e-5)
    assert dropped.steps[0]["loss"] == pytest.approx(kept.steps[0]["loss"], abs=1e-6)


def test_gradient_checkpointing_changes_no_gradient(policy: str, tmp_path: Path) -> None:
    plain = _fit(policy, tmp_path, passes=2)[0]
    again = _fit(policy, tmp_path, passes=2, gradient_checkpointing=True)[0]
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


@pytest.mark.parametrize("split", [EVERYTHING, _by_rows(3)], ids=["at once", "4 micro-batches"])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_the_first_pass_has_ratio_exactly_one_and_the_second_has_not(
    policy: str, tmp_path: Path, split: Split, precision: str
) -> None:
    ratios = Ratios()
    module, _, _ = _fit(
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

    _fit(policy, tmp_path, split=_by_rows(3), passes=2, callbacks=(Watch(),))
    first, second = seen[:4], seen[4:]
    assert len(second) == 4
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_the_second_window_is_off_policy_already_in_the_first_pass(policy: str, tmp_path: Path) -> None:
    ratios = Ratios()
    _fit(policy, tmp_path, updates=2, callbacks=(ratios,))
    assert ratios.gaps[0] == 0.0
    assert ratios.gaps[1] > 1e-3


# --- steps without signal -----------------------------------------------------------------------------------------


def test_a_loss_of_zero_still_learns(policy: str, tmp_path: Path) -> None:
    batch = _recorded()
    batch.advantages = torch.tensor([1.0, -1.0] * (ROWS // 2))[:, None]
    # Pairs of equal length, so that the mean loss cancels.
    batch.completion_mask = (torch.arange(12) < 1).float().expand(ROWS, 12).contiguous()
    before = [p.detach() for p in tiny_model("Llama").parameters()]
    module, _, _ = _fit(policy, tmp_path, batch=batch)
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
    module, trainer, _ = _fit(policy, tmp_path, rollouts=3, callbacks=(FlattenAfterFirst(value),))
    moments = [state["exp_avg"].abs().max() for state in trainer.optimizers[0].state.values()]
    assert max(moments) > 0
    assert [figures["skipped_steps"] for figures in module.steps] == [0.0, 1.0, 1.0]
    for later in module.weights[1:]:
        assert all(torch.equal(a, b) for a, b in zip(later, module.weights[0], strict=True))
    assert trainer.global_step == 3  # a skipped step counts


def test_a_flat_window_beside_one_with_signal_is_skipped_alone(policy: str, tmp_path: Path) -> None:
    batch = _recorded()
    batch.advantages[: ROWS // 2] = 0.0
    module, _, _ = _fit(policy, tmp_path, batch=batch, split=_by_tokens(60), updates=2)
    assert [figures["skipped_steps"] for figures in module.steps] == [1.0, 0.0]
    assert module.steps[0]["grad_norm"] == 0.0


# --- what a step is -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("updates", "passes", "split"), [(1, 1, 4), (2, 1, 2), (1, 2, 4), (2, 2, 1)])
def test_max_steps_counts_optimizer_steps_and_so_does_the_schedule(
    policy: str, tmp_path: Path, updates: int, passes: int, split: int
) -> None:
    steps = 4  # optimizer steps: 4 / (updates x passes) of the eight rollouts
    module, trainer, attach = _fit(
        policy, tmp_path, updates=updates, passes=passes, split=_by_rows(split), rollouts=8,
        trainer_options={"max_steps": steps, "max_epochs": -1}, lr_scheduler_type="linear",
    )  # fmt: skip
    assert trainer.global_step == steps
    assert len(module.steps) == steps
    assert len(attach.old) == steps // (updates * passes)
    assert module.lr_schedulers().last_epoch == steps
    # Linear to 0 over the run, read before each step.
    assert [figures["learning_rate"] for figures in module.steps] == pytest.approx([1e-2, 7.5e-3, 5e-3, 2.5e-3])


def test_without_max_steps_the_schedule_spans_the_epochs(policy: str, tmp_path: Path) -> None:
    module, trainer, _ = _fit(
        policy, tmp_path, updates=2, passes=2, rollouts=2, trainer_options={"max_epochs": 2},
        lr_scheduler_type="constant_with_warmup", warmup_ratio=0.25,
    )  # fmt: skip
    assert trainer.global_step == len(module.steps) == 2 * 2 * 2 * 2
    rates = [figures["learning_rate"] for figures in module.steps]
    assert rates == pytest.approx([0.0, 2.5e-3, 5e-3, 7.5e-3] + [1e-2] * 12)  # a quarter of 16 steps


def test_figures_of_the_rollout_are_logged_once_with_its_first_step(policy: str, tmp_path: Path) -> None:
    module, _, _ = _fit(policy, tmp_path, updates=2, passes=2, rollouts=2)
    assert ["rollout/figure" in figures for figures in module.steps] == [True, False, False, False] * 2
