"""From prompts to a scored rollout, with any engine and without a Trainer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from grpo_lightning import ranks
from grpo_lightning.advantages import AdvantageEstimator, group_std, zero_spread
from grpo_lightning.engines.base import RolloutEngine, Sampling
from grpo_lightning.errors import RunStopped
from grpo_lightning.functional.reduction import Reduction
from grpo_lightning.rewards.runner import RewardScorer
from grpo_lightning.rollout.sampler_gap import gap_figures
from grpo_lightning.rollout.windows import balance, cut_windows, pad_rows
from grpo_lightning.types import Completion, Prompt, Rollout, RolloutBatch, SequenceBatch, Window

TokenScorer = Callable[[SequenceBatch], Tensor]
"""Log-probabilities of a batch's trained tokens without gradient, ``[B, T]``."""

PROBE_ROWS = 8
"""Completions on which sampler and trainer are compared where none is trained on."""


class RolloutCollector:
    """Generates groups, scores them and prepares the optimizer steps.

    Args:
        scorer: the reward functions and their weights.
        tokenizer: decodes completions for the rewards.
        group_size: completions of each prompt (G).
        sampling: how they are drawn.
        advantages: from rewards ``[P, G]`` to advantages ``[P, G]``.
        reduction: what each token counts in the loss.
        updates: optimizer steps that the prompts are cut into (U).
        passes: times that the completions are gone through (mu).
        micro_batch_tokens: most padded tokens in one forward and backward.
    """

    def __init__(
        self,
        scorer: RewardScorer,
        *,
        tokenizer: PreTrainedTokenizerBase,
        group_size: int,
        sampling: Sampling,
        advantages: AdvantageEstimator,
        reduction: Reduction,
        updates: int,
        passes: int,
        micro_batch_tokens: int,
    ) -> None:
        self.scorer = scorer
        self.tokenizer = tokenizer
        self.group_size = group_size
        self.sampling = sampling
        self.advantages = advantages
        self.reduction = reduction
        self.updates = updates
        self.passes = passes
        self.micro_batch_tokens = micro_batch_tokens

    def collect(
        self,
        prompts: list[Prompt],
        *,
        engine: RolloutEngine,
        seeds: list[int],
        score_old: TokenScorer,
        score_reference: TokenScorer | None,
        drop_zero_advantage: bool,
        device: torch.device | str = "cpu",
        trainer_state: Any = None,
    ) -> Rollout:
        """One rollout of this rank's prompts.

        Args:
            prompts: this rank's, ``[P]``.
            engine: with the current weights loaded.
            seeds: one per prompt.
            score_old: the current policy; called only if a step of this rollout is off policy.
            score_reference: the reference policy; None if the objective needs none.
            drop_zero_advantage: leave sequences with advantage 0 out of the backward.
            device: of the policy.
            trainer_state: handed to reward functions.
        """
        clock = _Clock()
        with clock("generate"):
            ids = [prompt.token_ids for prompt in prompts]
            completions = engine.generate(ids, self.sampling, group_size=self.group_size, seeds=seeds)
            decode(self.tokenizer, completions)
        with clock("reward"):
            scores = self.scorer.score(prompts, completions, trainer_state=trainer_state)
            rewards = torch.tensor(scores.total, dtype=torch.float64)
            terms = {name: torch.tensor(term, dtype=torch.float64) for name, term in scores.terms.items()}
        advantages = self._advantages(rewards, completions)
        batch = self._batch(prompts, completions, advantages)
        windows = cut_windows(
            batch,
            updates=self.updates,
            micro_batch_tokens=self.micro_batch_tokens,
            reduction=self.reduction,
            max_completion_length=self.sampling.max_completion_length,
            keep=(advantages.flatten() != 0) if drop_zero_advantage else None,
        )
        with clock("score"):
            self._score(windows, score_old, score_reference, device)
            gap = self._untrained_gap(batch, windows, score_old, device)
        metrics = _reward_metrics(rewards, terms) | _length_metrics(completions)
        metrics |= _mean_over_ranks(scores.metrics) | clock.metrics() | gap
        dropped = (ranks.gather_rows(advantages) == 0).double().mean() if drop_zero_advantage else 0.0
        metrics["rollout/frac_dropped_sequences"] = float(dropped)
        return Rollout(
            prompts=prompts,
            completions=completions,
            rewards=rewards,
            reward_terms=terms,
            advantages=advantages,
            windows=windows,
            passes=self.passes,
            temperature=self.sampling.temperature,
            truncated=self.sampling.truncated,
            metrics=metrics,
            logged_columns=scores.columns,
        )

    def _score(
        self,
        windows: list[Window[RolloutBatch]],
        score_old: TokenScorer,
        score_reference: TokenScorer | None,
        device: torch.device | str,
    ) -> None:
        """Old and reference log-probabilities, where they are needed, in the very micro-batches that are trained: so
        rounding is the same and the first ratio is 1."""
        for window in windows:
            window.micro_batches = [micro_batch.to(device) for micro_batch in window.micro_batches]
            for micro_batch in window.micro_batches:
                if self.updates > 1 or self.passes > 1:
                    micro_batch.old_logprobs = score_old(micro_batch)
                if score_reference is not None:
                    micro_batch.ref_logprobs = score_reference(micro_batch)

    def _untrained_gap(
        self,
        batch: RolloutBatch,
        windows: list[Window[RolloutBatch]],
        score_old: TokenScorer,
        device: torch.device | str,
    ) -> dict[str, float]:
        """Sampler against trainer where nothing will be trained on, perhaps because the sampler writes rubbish."""
        if windows[0].micro_batches or not windows[0].tokens:
            return {}
        longest = balance(batch.sequence_lengths.tolist(), self.micro_batch_tokens)[0][:PROBE_ROWS]
        probe = batch.rows(torch.tensor(longest)).to(device)
        return gap_figures(score_old(probe), probe)

    def _advantages(self, rewards: Tensor, completions: list[list[Completion]]) -> Tensor:
        """On the groups of all ranks; this rank's rows of it, float32 ``[P, G]``."""
        # A completion without a token can learn nothing, so it must not shift its siblings either.
        empty = torch.tensor([[not c.token_ids for c in group] for group in completions])
        everyone = ranks.gather_rows(rewards.masked_fill(empty, torch.nan))
        mine = slice(ranks.rank() * len(rewards), (ranks.rank() + 1) * len(rewards))
        return self.advantages(everyone)[mine].float()

    def _batch(self, prompts: list[Prompt], completions: list[list[Completion]], advantages: Tensor) -> RolloutBatch:
        """One row per completion, prompt by prompt."""
        groups = zip(prompts, completions, strict=True)
        rows = [(prompt, completion) for prompt, group in groups for completion in group]
        padded = pad_rows(
            [prompt.token_ids for prompt, _ in rows],
            [completion.token_ids for _, completion in rows],
            pad_token_id=int(self.tokenizer.pad_token_id),
        )
        sampling_logprobs = torch.zeros_like(padded.completion_mask)
        for row, (_, completion) in zip(sampling_logprobs, rows, strict=True):
            row[: len(completion.logprobs)] = torch.tensor(completion.logprobs)
        if not sampling_logprobs.isfinite().all():
            raise RunStopped("the sampler returned NaN or infinite log-probabilities: it has broken weights")
        return RolloutBatch(
            input_ids=padded.input_ids,
            sequence_lengths=padded.sequence_lengths,
            prompt_lengths=padded.prompt_lengths,
            completion_mask=padded.completion_mask,
            advantages=advantages.reshape(-1, 1),
            sampling_logprobs=sampling_logprobs,
        )


def decode(tokenizer: PreTrainedTokenizerBase, completions: list[list[Completion]]) -> None:
    """Fill in ``text``: without the token that ended it, but with every other special token (custom tags are such)."""
    for completion in (completion for group in completions for completion in group):
        ids = completion.token_ids[:-1] if completion.finished else completion.token_ids
        completion.text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _reward_metrics(rewards: Tensor, terms: dict[str, Tensor]) -> dict[str, float]:
    """TRL's names, over the groups of all ranks."""
    everyone = ranks.gather_rows(rewards)
    metrics = {
        "reward": float(everyone.nanmean().nan_to_num()),
        "reward_std": float(group_std(everyone).mean()),
        "frac_reward_zero_std": float(zero_spread(everyone).double().mean()),
    }
    for name, term in terms.items():
        known = ranks.gather_rows(term).flatten()
        known = known[~known.isnan()]
        metrics[f"rewards/{name}/mean"] = float(known.mean()) if len(known) else 0.0
        metrics[f"rewards/{name}/std"] = float(known.std()) if len(known) > 1 else 0.0
    return metrics


def _length_metrics(completions: list[list[Completion]]) -> dict[str, float]:
    """Completion lengths in tokens, TRL's names, over all ranks."""
    rows = torch.tensor([[len(c.token_ids), c.finished] for group in completions for c in group], dtype=torch.float64)
    length, finished = ranks.gather_rows(rows).unbind(dim=1)
    ended = length[finished > 0]
    metrics = {"completions/clipped_ratio": 1 - float(finished.mean())}
    for name, of in (("", length), ("terminated_", ended)):
        for statistic in ("mean", "min", "max"):
            value = float(getattr(of, statistic)()) if len(of) else 0.0
            metrics[f"completions/{statistic}_{name}length"] = value
    return metrics


def _mean_over_ranks(metrics: dict[str, float]) -> dict[str, float]:
    """Figures that reward functions logged; a rank without one of them does not count in its mean."""
    everyone = ranks.gather_objects([metrics])
    names = sorted({name for of_rank in everyone for name in of_rank})
    values = {name: [of_rank[name] for of_rank in everyone if name in of_rank] for name in names}
    return {name: sum(found) / len(found) for name, found in values.items()}


class _Clock:
    """Seconds spent in each phase; the slowest rank's, since the others wait for it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[phase] = time.perf_counter() - start

    def metrics(self) -> dict[str, float]:
        slowest = ranks.all_max(torch.tensor(list(self.seconds.values()), dtype=torch.float64)).tolist()
        return {f"time/{phase}": seconds for phase, seconds in zip(self.seconds, slowest, strict=True)}
