"""From prompts to a scored rollout, with any engine and without a Trainer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from grpo_lightning import ranks
from grpo_lightning.advantages import AdvantageEstimator
from grpo_lightning.engines.base import RolloutEngine, Sampling
from grpo_lightning.errors import RunStopped
from grpo_lightning.functional.reduction import Reduction
from grpo_lightning.rewards.scoring.runner import RewardScorer, Scores
from grpo_lightning.rollout.credit import CreditAssignment
from grpo_lightning.rollout.figures import length_figures, mean_over_ranks, reward_figures, sum_over_ranks
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
        scorer: the reward functions and how they are put together.
        tokenizer: decodes completions for the rewards.
        group_size: completions of each prompt (G).
        sampling: how they are drawn.
        advantages: from rewards ``[P, G]`` to advantages ``[P, G]``.
        normalize_each_reward: advantages of each reward by itself, added up; see ``advantages.decoupled``.
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
        normalize_each_reward: bool = False,
        reduction: Reduction,
        updates: int,
        passes: int,
        micro_batch_tokens: int,
    ) -> None:
        self.scorer = scorer
        self.tokenizer = tokenizer
        self.group_size = group_size
        self.sampling = sampling
        self.credit = CreditAssignment(advantages, normalize_each=normalize_each_reward)
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
        scores_beside_passes: bool = True,
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
            scores_beside_passes: False where the passes change settings of the whole process, which the rewards in the
                other thread would see.
            device: of the policy.
            trainer_state: handed to reward functions.
        """
        clock = _Clock()
        with clock("generate"):
            ids = [prompt.token_ids for prompt in prompts]
            completions = engine.generate(ids, self.sampling, group_size=self.group_size, seeds=seeds)
            decode(self.tokenizer, completions)
        batch = self._batch(prompts, completions)
        scoring = self._score_in_background(prompts, completions, trainer_state, device)
        if not scores_beside_passes:
            scoring.result()
        if drop_zero_advantage:  # what needs no pass is known only after the rewards
            advantages = self.credit.advantages(scoring.result()[0], completions)
            windows = self._cut(batch, keep=(advantages != 0).any(dim=2).flatten())
            with clock("score"):
                self._score(windows, score_old, score_reference, device)
        else:
            windows = self._cut(batch)
            with clock("score"):
                self._score(windows, score_old, score_reference, device)
            advantages = self.credit.advantages(scoring.result()[0], completions)
        _attach(advantages, windows)
        scores, clock.seconds["reward"] = scoring.result()
        with clock("score"):
            gap = self._untrained_gap(batch, windows, score_old, device)
        rewards = torch.tensor(scores.total, dtype=torch.float64)
        terms = {name: torch.tensor(term, dtype=torch.float64) for name, term in scores.terms.items()}
        # Figures of the user's functions first: none of them can take the place of one of ours.
        metrics = mean_over_ranks(scores.metrics) | sum_over_ranks(scores.counts)
        metrics |= reward_figures(rewards, terms) | length_figures(completions) | clock.metrics() | gap
        dropped = (ranks.gather_rows((advantages == 0).all(dim=2).double())).mean() if drop_zero_advantage else 0.0
        metrics["rollout/frac_dropped_sequences"] = float(dropped)
        return Rollout(
            prompts=prompts,
            completions=completions,
            rewards=rewards,
            reward_terms=terms,
            advantages=_mean_over_tokens(advantages, completions),
            windows=windows,
            passes=self.passes,
            temperature=self.sampling.temperature,
            truncated=self.sampling.truncated,
            metrics=metrics,
            logged_columns=scores.columns,
        )

    def _score_in_background(
        self,
        prompts: list[Prompt],
        completions: list[list[Completion]],
        trainer_state: Any,
        device: torch.device | str,
    ) -> Future[tuple[Scores, float]]:
        """The rewards and the seconds they took, while this thread goes on; the thread does not hold up an exit."""
        future: Future[tuple[Scores, float]] = Future()

        def score() -> None:
            start = time.perf_counter()
            try:
                if torch.device(device).type == "cuda":  # of this thread: each begins on the first GPU
                    torch.cuda.set_device(device)
                scores = self.scorer.score(prompts, completions, trainer_state=trainer_state)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result((scores, time.perf_counter() - start))

        threading.Thread(target=score, name="rewards", daemon=True).start()
        return future

    def _cut(self, batch: RolloutBatch, *, keep: Tensor | None = None) -> list[Window[RolloutBatch]]:
        return cut_windows(
            batch,
            updates=self.updates,
            micro_batch_tokens=self.micro_batch_tokens,
            reduction=self.reduction,
            max_completion_length=self.sampling.max_completion_length,
            keep=keep,
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

    def _batch(self, prompts: list[Prompt], completions: list[list[Completion]]) -> RolloutBatch:
        """One row per completion, prompt by prompt, with its advantage still to be known."""
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
            advantages=torch.zeros(len(rows), 1),
            completion_numbers=torch.arange(len(rows)),
            sampling_logprobs=sampling_logprobs,
        )


def decode(tokenizer: PreTrainedTokenizerBase, completions: list[list[Completion]]) -> None:
    """Fill in ``text``: without the token that ended it, but with every other special token (custom tags are such)."""
    for completion in (completion for group in completions for completion in group):
        ids = completion.token_ids[:-1] if completion.finished else completion.token_ids
        completion.text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _attach(advantages: Tensor, windows: list[Window[RolloutBatch]]) -> None:
    """Give every row its advantages, ``[P, G, 1]`` or ``[P, G, T]``."""
    by_completion = advantages.flatten(end_dim=1)
    for micro_batch in (micro_batch for window in windows for micro_batch in window.micro_batches):
        numbers, width = micro_batch.completion_numbers, micro_batch.completion_mask.shape[1]
        assert numbers is not None
        micro_batch.advantages = by_completion.to(numbers.device)[numbers, :width]


def _mean_over_tokens(advantages: Tensor, completions: list[list[Completion]]) -> Tensor:
    """One advantage for each completion, ``[P, G, 1]`` or ``[P, G, T]`` to ``[P, G]``."""
    if advantages.shape[2] == 1:
        return advantages.squeeze(2)
    lengths = torch.tensor([[len(c.token_ids) for c in group] for group in completions])
    counted = torch.arange(advantages.shape[2]) < lengths.unsqueeze(2)
    return (advantages * counted).sum(dim=2) / lengths.clamp(min=1)


class _Clock:
    """Seconds spent in each phase; the slowest rank's, since the others wait for it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start

    def metrics(self) -> dict[str, float]:
        slowest = ranks.all_max(torch.tensor(list(self.seconds.values()), dtype=torch.float64)).tolist()
        return {f"time/{phase}": seconds for phase, seconds in zip(self.seconds, slowest, strict=True)}
