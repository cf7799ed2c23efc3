"""Real vLLM on the CPU, in this process: one engine for the tests of a module, started twice (tied, untied head)."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy
import pytest
import torch

from grpo_lightning.engines.base import ModelSpec, Sampling
from grpo_lightning.engines.failures import ReportedEngine
from grpo_lightning.engines.skeleton import WeightsMismatchError
from grpo_lightning.engines.transformers import TransformersEngine
from grpo_lightning.engines.vllm import VLLMEngine
from grpo_lightning.errors import RunStopped
from tests.unit.engines.tiny_models import force_token, largest_gap, save_model, scramble, token_ids

pytestmark = [pytest.mark.integration, pytest.mark.vllm]

# Longer than a cache block of 32 tokens, so that the prefix cache has something to keep.
PROMPTS = [[3 + (7 * i + j) % 50 for j in range(4 + 30 * i)] for i in range(4)]
SEEDS = [2**40 + 1000 * i for i in range(4)]
SAMPLING = Sampling(max_completion_length=12)
GREEDY = Sampling(max_completion_length=12, temperature=0)


def model_spec(folder, **options) -> ModelSpec:
    return ModelSpec(
        **{"eos_token_ids": (1,), "pad_token_id": 1, "max_length": 192, **options}, name_or_path=str(folder)
    )


def process_state() -> dict[str, Any]:
    """What vLLM must leave as it was."""
    return {
        "torch": torch.get_rng_state().tolist(),
        "random": random.getstate(),
        "numpy": numpy.random.get_state()[1].tolist(),
        "threads": torch.get_num_threads(),
        "set_num_threads": torch.set_num_threads,
        "cores": os.sched_getaffinity(0),
        "environment": {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")},
        "precision": torch.get_float32_matmul_precision(),
        "dtype": torch.get_default_dtype(),
        "grad": torch.is_grad_enabled(),
    }


class Case:
    """A model, its folder, and an engine that was started on it."""

    def __init__(self, family: str, folder) -> None:
        self.folder = folder
        self.model = save_model(family, folder)
        self.engine = VLLMEngine(kv_cache_gib=0.25)
        before = process_state()
        # Tests set several end tokens; 7 is one of them and the padding as well.
        self.engine.start(model_spec(folder, eos_token_ids=(1, 7, 20, 33), pad_token_id=7))
        self.start_left_traces = {name for name, value in process_state().items() if value != before[name]}

    def reset(self) -> None:
        """Put the model back to fixed weights and send them."""
        fresh = save_model("qwen2" if self.model.config.tie_word_embeddings else "qwen2_untied", self.folder)
        self.model.load_state_dict(fresh.state_dict())
        scramble(self.model, seed=1, scale=0.1)
        self.sync()

    def sync(self) -> None:
        self.engine.load_weights((name, p) for name, p in self.model.named_parameters())

    def generate(self, sampling: Sampling = SAMPLING, *, group_size: int = 3):
        return self.engine.generate(PROMPTS, sampling, group_size=group_size, seeds=SEEDS)

    def gap(self, groups, sampling: Sampling = SAMPLING) -> float:
        return largest_gap(self.model, PROMPTS, groups, sampling)


@pytest.fixture(scope="module", params=["qwen2", "qwen2_untied"])
def started(request, tmp_path_factory):
    case = Case(request.param, tmp_path_factory.mktemp(request.param))
    yield case
    before = process_state()
    case.engine.close()
    assert process_state() == before
    assert not torch.distributed.is_initialized()


@pytest.fixture
def case(started):
    started.reset()
    return started


def test_start_leaves_no_trace(started):
    assert started.start_left_traces == set()


def test_new_weights_arrive_whole_and_old_keys_are_forgotten(case):
    # The same prompts each time, with the prefix cache on: keys of the old weights would show.
    assert case.engine.enable_prefix_caching
    for seed in (2, 3, 4):
        before = process_state()
        case.sync()
        groups = case.generate()
        assert process_state() == before
        assert case.gap(groups) < 1e-5
        scramble(case.model, seed=seed, scale=0.05)
        assert case.gap(groups) > 0.1  # the change is large


def test_any_part_of_the_weights_arrives(case):
    generator = torch.Generator().manual_seed(0)
    groups = case.generate(group_size=2)
    for name, parameter in case.model.named_parameters():
        if "layers.0" in name:
            continue  # the second layer stands for both
        old = parameter.detach().clone()
        with torch.no_grad():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
        case.sync()
        assert case.gap(groups) > 1e-3, name
        assert case.gap(case.generate(group_size=2)) < 2e-5, name
        with torch.no_grad():
            parameter.copy_(old)


def test_greedy_text_is_that_of_transformers(case):
    other = TransformersEngine()
    other.start(case.engine._spec)
    other.load_weights(case.model.named_parameters())
    groups = case.generate(GREEDY, group_size=2)
    theirs = other.generate(PROMPTS, GREEDY, group_size=2, seeds=SEEDS)
    assert token_ids(groups) == token_ids(theirs)
    assert case.gap(groups, GREEDY) < 1e-5


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.6},
        {"top_k": 5},
        {"top_p": 0.7},
        {"min_p": 0.2},
        {"temperature": 1.5, "top_k": 20, "top_p": 0.8, "min_p": 0.02},
    ],
)
def test_logprobs_are_of_the_distribution_that_is_sampled(case, options):
    sampling = Sampling(max_completion_length=12, **options)
    assert case.gap(case.generate(sampling, group_size=4), sampling) < 1e-5


def test_a_seed_gives_the_same_samples_in_any_company(case):
    together = token_ids(case.generate())
    assert token_ids(case.generate()) == together
    alone = [
        case.engine.generate([p], SAMPLING, group_size=3, seeds=[s])[0] for p, s in zip(PROMPTS, SEEDS, strict=True)
    ]
    assert token_ids(alone) == together
    shifted = case.engine.generate(PROMPTS, SAMPLING, group_size=3, seeds=[s + 1 for s in SEEDS])
    assert [group[:2] for group in token_ids(shifted)] == [group[1:] for group in together]
    long = [tuple(ids) for group in together for ids in group if len(ids) > 3]
    assert len(set(long)) == len(long) > 6


def test_any_end_token_ends_a_completion_and_pad_may_be_one(case):
    ends = set(case.engine._spec.eos_token_ids)
    hot = Sampling(max_completion_length=20, temperature=2.0)
    prompts = [[7, 5, 7, 7], *PROMPTS[1:]]
    rows = [c for group in case.engine.generate(prompts, hot, group_size=10, seeds=SEEDS) for c in group]
    for row in rows:
        assert type(row.token_ids) is list
        assert type(row.logprobs) is list
        assert len(row.logprobs) == len(row.token_ids)
        assert row.finished == (row.token_ids[-1] in ends)
        assert not set(row.token_ids[:-1]) & ends
        assert row.finished or len(row.token_ids) == 20
    assert {row.token_ids[-1] for row in rows if row.finished} == ends
    assert any(not row.finished for row in rows)


def test_a_forced_token_is_the_next_rollout(case):
    case.generate()
    for token in (42, 17):
        force_token(case.model, token)
        case.sync()
        assert token_ids(case.generate(group_size=2)) == [[[token] * 12] * 2] * 4


def test_wrong_names_are_an_error_and_leave_no_half_synced_sampler(case):
    pairs = list(case.model.named_parameters())
    for sent, message in [(pairs[:-1], "were not sent"), ([*pairs, ("x", pairs[0][1])], "'x' is unknown")]:
        with pytest.raises(WeightsMismatchError, match=message):
            case.engine.load_weights(sent)
        with pytest.raises(RuntimeError, match="before load_weights"):
            case.generate()
    case.sync()
    assert case.gap(case.generate()) < 1e-5


def test_a_prefix_cache_that_stays_full_is_an_error(case, monkeypatch):
    monkeypatch.setattr(case.engine._llm, "reset_prefix_cache", lambda: False)
    with pytest.raises(RuntimeError, match="prefix cache"):
        case.sync()


def test_an_interrupted_generation_leaves_nothing_running(case, monkeypatch):
    expected = token_ids(case.generate())
    core = case.engine._llm.llm_engine
    step, steps = core.step, []

    def interrupted():
        if len(steps) == 3:
            raise KeyboardInterrupt
        steps.append(step())
        return steps[-1]

    monkeypatch.setattr(core, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        case.generate()
    monkeypatch.undo()
    assert core.has_unfinished_requests()
    case.sync()
    assert not core.has_unfinished_requests()
    assert token_ids(case.generate()) == expected


def test_a_crash_is_reported_as_the_samplers(case, monkeypatch):
    def crash(*args, **kwargs):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(case.engine._llm.llm_engine, "step", crash)
    monkeypatch.setattr(case, "engine", ReportedEngine(case.engine))
    with pytest.raises(RunStopped, match=r"the sampler \(VLLMEngine\) failed to generate: RuntimeError: no kernel"):
        case.generate()
    monkeypatch.undo()
    case.sync()
    assert case.gap(case.generate()) < 1e-5


def test_sleep_does_nothing_on_cpus(case):
    expected = token_ids(case.generate())
    for _ in range(3):
        case.engine.sleep()
        case.engine.wake()
        assert token_ids(case.generate()) == expected
    case.engine.sleep_level = 2
    assert not case.engine.weights_lost_in_sleep
    case.engine.sleep()
    case.engine.wake()
    assert token_ids(case.generate()) == expected
    case.engine.sleep_level = 0


def test_no_prompts_no_completions(case):
    assert case.engine.generate([], SAMPLING, group_size=2, seeds=[]) == []
