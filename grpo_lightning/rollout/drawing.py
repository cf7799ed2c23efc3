"""Groups of completions from the sampler, decoded and scored."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from grpo_lightning import ranks
from grpo_lightning.engines.base import RolloutEngine, Sampling
from grpo_lightning.rewards.scoring.runner import RewardScorer, Scores
from grpo_lightning.rollout.dynamic_sampling import GroupPool
from grpo_lightning.rollout.figures import Clock
from grpo_lightning.types import Completion, Prompt, ScoredPrompts


@dataclass(kw_only=True)
class Drawn:
    """This rank's groups of a rollout."""

    prompts: list[Prompt]
    positions: Sequence[int]
    completions: list[list[Completion]]
    scoring: Future[tuple[Scores, float]] = field(default_factory=Future)
    """The scores and the seconds they took."""
    figures: dict[str, float] = field(default_factory=dict)
    """Of the tries that it took."""
    tried: ScoredPrompts | None = None
    """What this rank sampled, where that is more than these groups."""

    def wait(self, clock: Clock) -> Scores:
        """The scores, once they are there."""
        with clock("reward_wait"):
            return self.scoring.result()[0]


class GroupDrawer:
    """Has groups sampled and scored.

    Args:
        scorer: the reward functions.
        tokenizer: decodes completions for them.
        group_size: completions of each prompt (G).
        tries: most tries at getting groups that teach something; 1 takes every group as it is.
        teaches: says of scores and completions which groups do, bool ``[P]``.
    """

    def __init__(
        self,
        scorer: RewardScorer,
        *,
        tokenizer: PreTrainedTokenizerBase,
        group_size: int,
        tries: int,
        teaches: Callable[[Scores, list[list[Completion]]], Tensor],
    ) -> None:
        self.scorer = scorer
        self.tokenizer = tokenizer
        self.group_size = group_size
        self.tries = tries
        self.teaches = teaches

    def draw(
        self,
        prompts: list[Prompt],
        positions: Sequence[int],
        seeds: Sequence[int],
        *,
        engine: RolloutEngine,
        sampling: Sampling,
        clock: Clock,
        device: torch.device | str,
        trainer_state: Any,
    ) -> Drawn:
        """This rank's groups.

        Args:
            prompts: this rank's, those of all tries, try by try.
            positions: number of each prompt in the global batch.
            seeds: one per prompt.
            engine: with the current weights loaded.
            sampling: how completions are drawn.
            clock: for the time it takes.
            device: of the policy; for rewards that compute there.
            trainer_state: handed to reward functions.
        """

        def sample(part: slice) -> Drawn:
            with clock("generate"):
                ids = [prompt.token_ids for prompt in prompts[part]]
                completions = engine.generate(ids, sampling, group_size=self.group_size, seeds=list(seeds[part]))
                decode(self.tokenizer, completions)
            return Drawn(prompts=prompts[part], positions=positions[part], completions=completions)

        if self.tries > 1:
            return self._until_enough(sample, len(prompts) // self.tries, clock, trainer_state)
        drawn = sample(slice(None))
        drawn.scoring = self._score_in_background(drawn, trainer_state, device)
        return drawn

    def _until_enough(self, sample: Callable[[slice], Drawn], each: int, clock: Clock, trainer_state: Any) -> Drawn:
        """Try after try of ``each`` prompts, until enough groups teach something (``dynamic_sampling``)."""
        pool, tries = GroupPool(each * ranks.world_size()), 0
        while tries < self.tries and not (tries and pool.full):
            drawn = sample(slice(tries * each, (tries + 1) * each))
            with clock("reward_wait"):
                scores = self.scorer.score(drawn.prompts, drawn.completions, trainer_state=trainer_state)
            teaches = self.teaches(scores, drawn.completions)
            pool.add(drawn.positions, drawn.prompts, drawn.completions, scores, teaches=teaches)
            tries += 1
        groups = pool.share()
        drawn = Drawn(
            prompts=[group.prompt for group in groups],
            positions=[group.position for group in groups],
            completions=[group.completions for group in groups],
        )
        drawn.scoring.set_result((pool.scores_of(groups), clock.seconds["reward_wait"]))
        of_all = reward_tensors(pool.scores_of(pool.groups))
        drawn.tried = ScoredPrompts([g.prompt for g in pool.groups], [g.completions for g in pool.groups], *of_all)
        drawn.figures = {
            "rollout/tries": float(tries),
            "rollout/unused_prompts": float((self.tries - tries) * each * ranks.world_size()),
        }
        return drawn

    def _score_in_background(
        self, drawn: Drawn, trainer_state: Any, device: torch.device | str
    ) -> Future[tuple[Scores, float]]:
        """The rewards and the seconds they took, while this thread goes on; the thread does not hold up an exit."""
        future: Future[tuple[Scores, float]] = Future()

        def score() -> None:
            start = time.perf_counter()
            try:
                if torch.device(device).type == "cuda":  # of this thread: each begins on the first GPU
                    torch.cuda.set_device(device)
                scores = self.scorer.score(drawn.prompts, drawn.completions, trainer_state=trainer_state)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result((scores, time.perf_counter() - start))

        threading.Thread(target=score, name="rewards", daemon=True).start()
        return future


def reward_tensors(scores: Scores) -> tuple[Tensor, dict[str, Tensor]]:
    """Total rewards and those of each function, float64 ``[P, G]``."""
    terms = {name: torch.tensor(term, dtype=torch.float64) for name, term in scores.terms.items()}
    return torch.tensor(scores.total, dtype=torch.float64), terms


def decode(tokenizer: PreTrainedTokenizerBase, completions: list[list[Completion]]) -> None:
    """Fill in ``text``: without the token that ended it, but with every other special token (custom tags are such)."""
    for completion in (completion for group in completions for completion in group):
        ids = completion.token_ids[:-1] if completion.finished else completion.token_ids
        completion.text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
