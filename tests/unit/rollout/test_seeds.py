"""Seeds of requests: distinct, far apart, and the same for ever."""

from __future__ import annotations

import itertools

from grpo_lightning.rollout.seeds import request_seed

PINNED = 4040249434090309646


def test_a_seed_is_pinned_so_that_runs_can_be_repeated_by_later_versions() -> None:
    assert request_seed(0, "train", 0, 0, 0) == PINNED
    assert 0 <= PINNED < 2**62


def test_every_part_of_a_request_changes_its_seed() -> None:
    requests = itertools.product((0, 1), ("train", "eval"), range(10), range(3), range(64))
    seeds = [request_seed(*request) for request in requests]
    assert len(set(seeds)) == len(seeds) == 2 * 2 * 10 * 3 * 64
    assert all(0 <= seed < 2**62 for seed in seeds)


def test_neighbours_are_far_apart_so_that_children_share_no_sample() -> None:
    # Child i of a request draws with seed + i: groups of any size must not overlap.
    seeds = sorted(request_seed(0, "train", 0, 0, position) for position in range(4096))
    assert min(b - a for a, b in itertools.pairwise(seeds)) > 2**30


def test_numbers_are_not_run_together() -> None:
    assert request_seed(1, "train", 11, 0, 0) != request_seed(1, "train", 1, 10, 0)
    assert request_seed(0, "train", 1, 1, 2) != request_seed(0, "train", 1, 12, 0)
