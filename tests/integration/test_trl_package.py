"""TRL's own reward functions, as its package ships them, called by our scorer; and ours beside them."""

from __future__ import annotations

import pytest

from grpo_lightning.rewards import (
    CosineLength,
    RepetitionPenalty,
    RewardScorer,
    SoftOverlongPunishment,
    math_accuracy,
    think_format,
)
from grpo_lightning.types import Completion, Prompt

pytestmark = pytest.mark.integration
pytest.importorskip("trl", reason="TRL is not installed; the dev extra has it")

TEXTS = {
    r"<think>a third</think> \boxed{\frac{1}{3}}": [1, 2, 3],
    r"<think>a quarter</think> \boxed{\frac{1}{4}}": [5, 6, 5, 6, 5, 6, 5, 6],
    "<think>on and on": list(range(12)),
    r"so it is \boxed{\frac{2}{6}}": [7] * 9,
    "": [],
}
"""Completions and their token ids; right is 1/3."""


def _terms(rewards: list) -> list[list[float]]:
    prompt = Prompt(
        token_ids=[1],
        text="q",
        messages=[{"role": "user", "content": "How much?"}],
        columns={"solution": r"$\frac{1}{3}$", "answer": r"\frac{1}{3}"},
    )
    completions = [
        Completion(token_ids=ids, logprobs=[0.0] * len(ids), finished=True, text=text) for text, ids in TEXTS.items()
    ]
    scorer = RewardScorer(rewards)
    terms = scorer.score([prompt], [completions]).terms
    scorer.close()
    return [groups[0] for groups in terms.values()]


def test_its_functions_run_unedited_and_ours_agree() -> None:
    from trl.rewards import (
        accuracy_reward,
        get_cosine_scaled_reward,
        get_repetition_penalty_reward,
        get_soft_overlong_punishment,
        think_format_reward,
    )

    theirs = _terms(
        [
            accuracy_reward,
            think_format_reward,
            get_cosine_scaled_reward(max_len=20),
            get_repetition_penalty_reward(),
            get_soft_overlong_punishment(max_completion_len=10, soft_punish_cache=5),
        ]
    )
    ours = _terms(
        [
            math_accuracy,
            think_format,
            CosineLength(max_length=20),
            RepetitionPenalty(variant="tokens"),
            SoftOverlongPunishment(max_length=10, cache_length=5),
        ]
    )
    assert theirs[0] == [1.0, 0.0, 0.0, 1.0, 0.0]
    for their_term, our_term in zip(theirs, ours, strict=True):
        assert our_term == pytest.approx(their_term)
