"""TRL's own importance weights, their figures and its off-policy mask beside ours, on the same log-probabilities."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import defaultdict
from types import SimpleNamespace
from typing import Any, Literal
from unittest import mock

import pytest
import torch
from torch import Tensor

from grpo_lightning.rollout.sampler_correction import RATIO, OffPolicyMask, SamplerCorrection
from grpo_lightning.rollout.sampler_gap import MAX, MEAN, add_gap
from grpo_lightning.token_means import TokenMeans
from grpo_lightning.types import RolloutBatch

pytestmark = pytest.mark.integration
pytest.importorskip("trl", reason="TRL is not installed; the dev extra has it")

# TRL imports vLLM with its trainers, which takes seconds and changes the process's settings.
with mock.patch("trl.import_utils.is_vllm_available", return_value=False):
    from trl.trainer import grpo_trainer


def _batch() -> RolloutBatch:
    """Six completions of 9 to 14 tokens, sampled by another policy than the trainer's."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.arange(9, 15)
    mask = (torch.arange(14) < lengths[:, None]).float()
    trainer = -3 * torch.rand(6, 14, generator=generator)
    return RolloutBatch(
        input_ids=torch.zeros(6, 15, dtype=torch.long),
        sequence_lengths=lengths + 1,
        prompt_lengths=torch.ones(6, dtype=torch.long),
        completion_mask=mask,
        loss_weights=mask / mask.sum(),
        advantages=torch.tensor([[1.0], [-1.0], [0.0], [-0.5], [0.5], [-2.0]]),
        old_logprobs=trainer,
        sampling_logprobs=trainer + 0.4 * torch.randn(6, 14, generator=generator),
    )


def _trl(
    batch: RolloutBatch, *, mode: str, lower: float | None, upper: float | None
) -> tuple[Tensor, dict[str, float]]:
    """Runs the two blocks of TRL's generation step that make the weights and log them; its method does all at once."""
    method = ast.parse(textwrap.dedent(inspect.getsource(grpo_trainer.GRPOTrainer._generate_and_score_completions)))
    switch = "self.use_vllm and self.vllm_importance_sampling_correction"
    blocks: list[ast.stmt] = [
        node for node in ast.walk(method) if isinstance(node, ast.If) and ast.unparse(node.test) == switch
    ]
    assert len(blocks) == 3, "TRL's method has changed"
    trainer = SimpleNamespace(
        use_vllm=True,
        vllm_importance_sampling_correction=True,
        vllm_importance_sampling_mode=mode,
        vllm_importance_sampling_clip_min=lower,
        vllm_importance_sampling_clip_max=upper,
        accelerator=SimpleNamespace(gather=lambda values: values),
        _metrics={"train": defaultdict(list)},
    )
    names: dict[str, Any] = {
        "self": trainer,
        "old_per_token_logps": batch.old_logprobs,
        "sampling_per_token_logps": batch.sampling_logprobs,
        "completion_mask": batch.completion_mask,
        "tool_mask": None,
        "device": "cpu",
        "mode": "train",
    }
    blocks.sort(key=lambda block: block.lineno)
    exec(compile(ast.Module(blocks[:2], []), "trl", "exec"), vars(grpo_trainer) | names, names)
    weights = names["vllm_importance_sampling_ratio"].expand(batch.completion_mask.shape)
    return weights, {name: values[0] for name, values in trainer._metrics["train"].items()}


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("action", ["truncate", "mask"])
@pytest.mark.parametrize(("lower", "upper"), [(None, 1.3), (0.8, 1.3), (0.8, None)])
def test_weights_and_figures_are_those_of_trl(
    level: Literal["token", "sequence"],
    action: Literal["truncate", "mask"],
    lower: float | None,
    upper: float | None,
) -> None:
    batch = _batch()
    theirs, their_figures = _trl(batch, mode=f"{level}_{action}", lower=lower, upper=upper)
    correction, figures = SamplerCorrection(level=level, action=action, lower=lower, upper=upper), TokenMeans()
    counts = batch.completion_mask > 0
    logprobs = torch.zeros_like(batch.completion_mask)  # of a policy that has moved on
    torch.testing.assert_close(correction.weights(logprobs, batch)[counts], theirs[counts], rtol=1e-6, atol=1e-6)
    correction.add_figures(figures, logprobs, batch)
    add_gap(figures, logprobs, batch, batch.counted)
    ours = figures.result()
    assert 0 < ours["sampling/out_of_bounds/tokens"] < 1
    for statistic in ("min", "mean", "max"):
        assert ours[f"{RATIO}/{statistic}"] == pytest.approx(their_figures[f"{RATIO}/{statistic}"], rel=1e-5)
    for name, statistic in ((MEAN, "mean"), (MAX, "max")):
        theirs_of_gap = their_figures[f"sampling/sampling_logp_difference/{statistic}"]
        assert ours[name] == pytest.approx(theirs_of_gap, rel=1e-5)


@pytest.mark.parametrize("per_token", [False, True])
def test_the_off_policy_mask_is_that_of_trl(per_token: bool) -> None:
    batch = _batch()
    if per_token:
        batch.advantages = torch.randn(6, 14, generator=torch.Generator().manual_seed(1))
    drift = 0.6 * torch.rand(6, 1, generator=torch.Generator().manual_seed(2))
    logprobs = batch.old_logprobs - drift
    theirs = grpo_trainer.GRPOTrainer.get_off_policy_mask(
        batch.advantages, logprobs, batch.sampling_logprobs, batch.completion_mask, 0.25
    ).expand(6, 14)
    counts = batch.completion_mask > 0
    ours = OffPolicyMask(0.25).weights(logprobs, batch)
    assert 0 < ours[counts].mean() < 1
    assert torch.equal(ours[counts], theirs[counts])
