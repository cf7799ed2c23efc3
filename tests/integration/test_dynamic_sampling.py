"""Dynamic sampling and masked completions in real runs: one process and two ranks do the same, and nobody waits."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_lightning.rewards import inline
from tests.integration.command_line import fit, grpo, records, rows, totals, untimed
from tests.integration.test_two_ranks import as_numbers, on_two, untimed_numbers

pytestmark = pytest.mark.integration

ROLLOUTS = 200


@inline
def erratic(prompts: list[str], completions: list[str], trainer_state: SimpleNamespace, **_: Any) -> list[float | None]:
    """Two groups in ten are all alike, some do not apply at all; the others are heads or tails."""

    def number(*parts: Any) -> int:
        return hashlib.blake2b(repr(parts).encode(), digest_size=2).digest()[0]

    scores: list[float | None] = []
    for prompt, completion in zip(prompts, completions, strict=True):
        kind = number(prompt, trainer_state.global_step) % 10
        scores.append(None if kind == 0 else 1.0 if kind < 3 else float(number(completion) % 2))
    return scores


def test_two_hundred_rollouts_of_random_outcomes(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = Path(shutil.copytree(tiny, tmp_path / "policy"))
    ends = {"eos_token_id": list(range(1, 49, 4))}  # so that many of four tokens are finished, and many are cut
    (policy / "generation_config.json").write_text(json.dumps(ends), "utf-8")
    changes = {
        "data__source": totals("train", 64),
        "model__init_args__lr": 0.0,  # so that rounding cannot add up to other samples
        "model__init_args__max_grad_norm": None,
        "rollout__rewards": ["tests.integration.test_dynamic_sampling.erratic"],
        "rollout__group_size": 2,
        "rollout__max_completion_length": 4,
        "rollout__micro_batch_tokens": 100,
        "rollout__dynamic_sampling_tries": 4,
        "rollout__mask_truncated": True,
        "rollout__updates_per_rollout": 2,
        "trainer__max_steps": 2 * ROLLOUTS,
        "trainer__max_epochs": -1,
        "trainer__enable_checkpointing": False,
        "samples__every_n_rollouts": 20,
    }
    one, two = tmp_path / "one", tmp_path / "two"
    fit(capsys, grpo(policy, one, **changes))
    on_two(grpo(policy, two, **changes, trainer__strategy="fsdp2"))

    table = [row for row in rows(two) if row["rollout/tries"]]
    assert len(table) == ROLLOUTS
    tries = [float(row["rollout/tries"]) for row in table]
    assert {2.0, 3.0, 4.0} <= set(tries)
    assert 0.1 < sum(float(row["completions/clipped_ratio"]) for row in table) / ROLLOUTS < 0.9
    assert [float(row["rollout/unused_prompts"]) for row in table] == [4 * (4 - n) for n in tries]
    assert sum(float(row["skipped_steps"]) for row in rows(two)) > 5  # windows in which nothing taught
    assert len(rows(one)) == len(rows(two)) == 2 * ROLLOUTS
    for found, expected in zip(as_numbers(untimed(two)), untimed_numbers(one), strict=True):
        assert found == expected  # one at a time: pytest takes minutes to tell two long lists apart
    for number in range(1, ROLLOUTS + 1, 20):
        name = f"samples/rollout_{number:06d}.parquet"
        assert [r["completion"] for r in records(two / name)] == [r["completion"] for r in records(one / name)]
