"""From prompts to a scored rollout, with any engine and without a Trainer.

``RolloutCollector.collect`` in the order of time, and what is filled in when::

    draw      completions; the rewards begin, in a thread beside all that follows
    _batch    a row per completion, its advantages 0 for now
    _prepare  a) wait for the rewards; advantages; windows of the rows that have one; passes
              b) windows of all rows; passes; wait for the rewards; advantages
    _attach   advantages, and returns, to the rows of the windows

a) leaves out rows without a gradient from the passes, too. b) is for advantages that need the passes (a KL term
in the reward, a critic) and where a row has a gradient without an advantage (a KL term in the loss, an entropy
bonus). Dynamic sampling waits for the rewards of each try in ``draw``. Windows bring ``loss_weights``, made of
all rows in either order; passes bring ``old_logprobs``, ``ref_logprobs``, ``values`` and ``entropy_mask``, each
None where nothing needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from grpo_lightning import ranks
from grpo_lightning.advantages import AdvantageEstimator, TokenCredit, TokenEstimator
from grpo_lightning.engines.base import RolloutEngine, Sampling
from grpo_lightning.errors import RunStopped
from grpo_lightning.functional.reduction import Reduction
from grpo_lightning.rewards.scoring.runner import RewardScorer
from grpo_lightning.rollout.credit import CreditAssignment
from grpo_lightning.rollout.drawing import Drawn, GroupDrawer, reward_tensors
from grpo_lightning.rollout.figures import (
    Clock,
    dropped_figures,
    length_figures,
    mean_over_ranks,
    reward_figures,
    sum_over_ranks,
)
from grpo_lightning.rollout.passes import Learner, dense, run_passes, untrained_gap
from grpo_lightning.rollout.windows import cut_windows, pad_rows
from grpo_lightning.types import Completion, Layout, Prompt, Rollout, RolloutBatch, ScoredPrompts, Window


class RolloutCollector:
    """Generates groups, scores them and prepares the optimizer steps.

    Args:
        scorer: the reward functions and how they are put together.
        tokenizer: decodes completions for the rewards.
        group_size: completions of each prompt (G).
        sampling: how they are drawn.
        advantages: from rewards ``[P, G]`` to advantages ``[P, G]``, or a ``TokenEstimator``.
        normalize_each_reward: advantages of each reward by itself, added up; see ``advantages.decoupled``.
        reduction: what each token counts in the loss.
        updates: optimizer steps that the prompts are cut into (U).
        passes: times that the completions are gone through (mu).
        micro_batch_tokens: most tokens in one forward and backward, as the learner's layout counts them.
        tries: of dynamic sampling; 1 takes every group as it is.
        mask_truncated: train on no token of a completion that the length limit cut.
    """

    def __init__(
        self,
        scorer: RewardScorer,
        *,
        tokenizer: PreTrainedTokenizerBase,
        group_size: int,
        sampling: Sampling,
        advantages: AdvantageEstimator | TokenEstimator,
        normalize_each_reward: bool = False,
        reduction: Reduction,
        updates: int,
        passes: int,
        micro_batch_tokens: int,
        tries: int = 1,
        mask_truncated: bool = False,
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
        self.mask_truncated = mask_truncated
        teaches = partial(self.credit.teaches, mask_truncated=mask_truncated)
        self.drawer = GroupDrawer(scorer, tokenizer=tokenizer, group_size=group_size, tries=tries, teaches=teaches)

    def collect(
        self,
        prompts: list[Prompt],
        *,
        positions: Sequence[int],
        engine: RolloutEngine,
        seeds: Sequence[int],
        learner: Learner,
        scores_beside_passes: bool = True,
        clock: Clock | None = None,
        device: torch.device | str = "cpu",
        trainer_state: Any = None,
    ) -> Rollout:
        """One rollout of this rank's prompts.

        Args:
            prompts: this rank's, those of all tries, try by try, ``[P]`` for one try.
            positions: number of each prompt in the global batch.
            engine: with the current weights loaded.
            seeds: one per prompt.
            learner: the module that is to learn from it.
            scores_beside_passes: False where the passes change settings of the whole process, which the rewards in the
                other thread would see.
            clock: for the time it takes: ``time/generate``, ``time/score`` (the passes), ``time/reward`` (the reward
                functions, which go on beside the passes) and ``time/reward_wait`` (what is waited for them).
            device: of the policy.
            trainer_state: handed to reward functions.
        """
        clock = clock or Clock()
        drawn = self.drawer.draw(
            prompts,
            positions,
            seeds,
            engine=engine,
            sampling=self.sampling,
            clock=clock,
            device=device,
            trainer_state=trainer_state,
        )
        batch = self._batch(drawn.prompts, drawn.completions)
        if not scores_beside_passes:
            drawn.wait(clock)
        windows, credit, keep = self._prepare(drawn, batch, learner, clock=clock, device=device)
        _attach(credit, windows)
        scores = drawn.wait(clock)
        clock.seconds["reward"] = drawn.scoring.result()[1]
        with clock("score"):
            gap = untrained_gap(batch, windows, learner, micro_batch_tokens=self.micro_batch_tokens, device=device)
        rewards, terms = reward_tensors(scores)
        # The policy's figures are those of all that it wrote, not of what dynamic sampling picked from it.
        sampled = drawn.tried or ScoredPrompts(drawn.prompts, drawn.completions, rewards, terms)
        # Figures of the user's functions first: none of them can take the place of one of ours.
        metrics = mean_over_ranks(scores.metrics) | sum_over_ranks(scores.counts)
        metrics |= reward_figures(sampled.rewards, sampled.terms) | length_figures(sampled.completions)
        metrics |= drawn.figures | clock.metrics() | gap | dropped_figures(keep)
        return Rollout(
            prompts=drawn.prompts,
            positions=list(drawn.positions),
            completions=drawn.completions,
            rewards=rewards,
            reward_terms=terms,
            sampled=sampled,
            advantages=_mean_over_tokens(credit.advantages, drawn.completions),
            windows=windows,
            passes=self.passes,
            temperature=self.sampling.temperature,
            truncated=self.sampling.truncated,
            metrics=metrics,
            logged_columns=scores.columns,
        )

    def _prepare(
        self,
        drawn: Drawn,
        batch: RolloutBatch,
        learner: Learner,
        *,
        clock: Clock,
        device: torch.device | str,
    ) -> tuple[list[Window[RolloutBatch]], TokenCredit, Tensor | None]:
        """Windows after their passes, advantages, and the rows that were kept, in the order that costs least."""
        keep = None
        off_policy = self.updates > 1 or self.passes > 1
        if learner.drops_zero_advantage and not learner.precedes_advantages:
            # What needs no pass is known only after the rewards.
            credit = self._credit(drawn, batch, None, learner, clock=clock)
            keep = (credit.advantages != 0).any(dim=2).flatten() & batch.completion_mask.any(dim=1)
            windows = self._cut(batch, keep=keep, layout=learner.layout)
            with clock("score"):
                run_passes(windows, learner, off_policy=off_policy, device=device)
        else:
            windows = self._cut(batch, layout=learner.layout)
            with clock("score"):
                run_passes(windows, learner, off_policy=off_policy, device=device)
            credit = self._credit(drawn, batch, windows, learner, clock=clock)
        return windows, credit, keep

    # --- tensors -------------------------------------------------------------------------------------------------

    def _cut(self, batch: RolloutBatch, *, layout: Layout, keep: Tensor | None = None) -> list[Window[RolloutBatch]]:
        return cut_windows(
            batch,
            updates=self.updates,
            micro_batch_tokens=self.micro_batch_tokens,
            reduction=self.reduction,
            max_completion_length=self.sampling.max_completion_length,
            keep=keep,
            layout=layout,
        )

    def _credit(
        self,
        drawn: Drawn,
        batch: RolloutBatch,
        windows: list[Window[RolloutBatch]] | None,
        learner: Learner,
        *,
        clock: Clock,
    ) -> TokenCredit:
        """Advantages, with what the passes said if they came first."""
        mask = batch.completion_mask.reshape(len(drawn.prompts), self.group_size, -1)
        penalty = values = None
        if windows is not None and learner.reward_penalty is not None:
            penalty = _by_completion(windows, mask, partial(_penalty, learner.reward_penalty))
        if windows is not None and learner.score_values is not None:
            values = _by_completion(windows, mask, lambda micro_batch: micro_batch.values)
        return self.credit.assign(drawn.wait(clock), drawn.completions, mask=mask, penalty=penalty, values=values)

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
        if self.mask_truncated:
            padded.completion_mask *= torch.tensor([[float(completion.finished)] for _, completion in rows])
        broken = ranks.all_max(torch.tensor(float(not sampling_logprobs.isfinite().all())))
        if broken:  # on any rank: the others must not wait for it
            raise RunStopped("the sampler returned NaN or infinite log-probabilities: it has broken weights")
        return RolloutBatch(
            input_ids=padded.input_ids,
            sequence_lengths=padded.sequence_lengths,
            prompt_lengths=padded.prompt_lengths,
            completion_mask=padded.completion_mask,
            advantages=torch.zeros(len(rows), 1),
            completion_numbers=torch.arange(len(rows)),
            length_quartile=_length_quartile(torch.tensor([len(completion.token_ids) for _, completion in rows])),
            sampling_logprobs=sampling_logprobs,
        )


def _length_quartile(lengths: Tensor) -> Tensor:
    """The quarter of all ranks' completions that each length belongs to, 0 for the shortest, ``[B]``.

    Equal lengths are never parted and go into the upper quarter: where most completions stop at the length limit, the
    limit is the fourth quarter's.
    """
    quarters = ranks.gather_rows(lengths).double().quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))
    return torch.searchsorted(quarters, lengths.double(), right=True)


def _penalty(reward_penalty: Callable[[Tensor, Tensor], Tensor], micro_batch: RolloutBatch) -> Tensor:
    assert micro_batch.old_logprobs is not None and micro_batch.ref_logprobs is not None
    return reward_penalty(micro_batch.old_logprobs, micro_batch.ref_logprobs)


def _by_completion(windows: list[Window[RolloutBatch]], mask: Tensor, of: Callable[[RolloutBatch], Tensor]) -> Tensor:
    """Figures of tokens, float64 ``[P, G, T]``."""
    rows, length = mask.flatten(end_dim=1).shape
    return dense(windows, rows, length, of).reshape(mask.shape)


def _attach(credit: TokenCredit, windows: list[Window[RolloutBatch]]) -> None:
    """Give every row its advantages, ``[P, G, 1]`` or ``[P, G, T]``, and the critic's targets."""
    for micro_batch in (micro_batch for window in windows for micro_batch in window.micro_batches):
        numbers, width = micro_batch.completion_numbers, micro_batch.completion_mask.shape[1]
        assert numbers is not None
        rows = numbers.cpu()
        micro_batch.advantages = credit.advantages.flatten(end_dim=1)[rows, :width].to(numbers.device)
        if credit.returns is not None:
            micro_batch.returns = credit.returns.flatten(end_dim=1)[rows, :width].to(numbers.device)


def _mean_over_tokens(advantages: Tensor, completions: list[list[Completion]]) -> Tensor:
    """One advantage for each completion, ``[P, G, 1]`` or ``[P, G, T]`` to ``[P, G]``."""
    if advantages.shape[2] == 1:
        return advantages.squeeze(2)
    lengths = torch.tensor([[len(c.token_ids) for c in group] for group in completions])
    counted = torch.arange(advantages.shape[2]) < lengths.unsqueeze(2)
    return (advantages * counted).sum(dim=2) / lengths.clamp(min=1)
