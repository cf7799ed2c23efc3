from __future__ import annotations

import json
import random
import shutil

import numpy
import pytest
import torch

from grpo_lightning.engines.base import ModelSpec, Sampling
from grpo_lightning.engines.skeleton import WeightsMismatchError
from grpo_lightning.engines.transformers import TransformersEngine
from grpo_lightning.errors import UserError
from tests.unit.engines.tiny_models import (
    FAMILIES,
    expected_logprobs,
    force_token,
    largest_gap,
    save_model,
    scramble,
    token_ids,
)

PROMPTS = [[3 + (7 * i + j) % 50 for j in range(4 + 5 * i)] for i in range(5)]
SEEDS = [2**40 + 1000 * i for i in range(5)]
SAMPLING = Sampling(max_completion_length=12)


def model_spec(folder, **options) -> ModelSpec:
    return ModelSpec(
        **{"eos_token_ids": (1,), "pad_token_id": 1, "max_length": 128, **options}, name_or_path=str(folder)
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen2")
    save_model("qwen2", folder)
    return folder


@pytest.fixture
def model(folder):
    model = save_model("qwen2", folder)
    scramble(model, seed=1)
    return model


@pytest.fixture
def engine(folder, model):
    engine = TransformersEngine()
    engine.start(model_spec(folder))
    engine.load_weights(model.named_parameters())
    return engine


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_are_those_of_a_plain_forward_after_a_large_change(family, tmp_path):
    model = save_model(family, tmp_path)
    engine = TransformersEngine()
    engine.start(model_spec(tmp_path))
    for seed in (1, 2):
        scramble(model, seed=seed)
        # As other processes send them: tensors that the sampler cannot share.
        engine.load_weights((name, p.detach().clone()) for name, p in model.named_parameters())
        groups = engine.generate(PROMPTS, SAMPLING, group_size=3, seeds=SEEDS)
        assert largest_gap(model, PROMPTS, groups, SAMPLING) < 3e-5


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
def test_logprobs_are_of_the_distribution_that_is_sampled(engine, model, options):
    sampling = Sampling(max_completion_length=12, **options)
    groups = engine.generate(PROMPTS, sampling, group_size=4, seeds=SEEDS)
    assert largest_gap(model, PROMPTS, groups, sampling) < 3e-5


def test_samples_follow_the_distribution(engine, model):
    sampling = Sampling(max_completion_length=1, temperature=0.7)
    (group,) = engine.generate([PROMPTS[1]], sampling, group_size=4000, seeds=[0])
    counts = torch.bincount(torch.tensor([c.token_ids[0] for c in group]), minlength=61) / 4000
    probs = torch.stack([expected_logprobs(model, PROMPTS[1], [t], sampling) for t in range(61)]).exp().squeeze(1)
    assert (counts - probs).abs().sum() / 2 < 0.06  # total variation; the distribution at temperature 1 is 0.24 away


def test_greedy_is_the_likeliest_token_with_logprobs_at_temperature_one(engine, model):
    greedy = Sampling(max_completion_length=12, temperature=0)
    groups = engine.generate(PROMPTS, greedy, group_size=2, seeds=SEEDS)
    assert largest_gap(model, PROMPTS, groups, greedy) < 3e-5
    for prompt, (first, second) in zip(PROMPTS, groups, strict=True):
        assert first.token_ids == second.token_ids
        assert first is not second
        assert first.token_ids is not second.token_ids
        logits = model(input_ids=torch.tensor([prompt + first.token_ids])).logits[0, len(prompt) - 1 : -1]
        assert first.token_ids == logits.argmax(dim=-1).tolist()


def test_a_seed_gives_the_same_samples_in_any_company(folder, engine, model):
    together = token_ids(engine.generate(PROMPTS, SAMPLING, group_size=3, seeds=SEEDS))
    alone = [engine.generate([p], SAMPLING, group_size=3, seeds=[s])[0] for p, s in zip(PROMPTS, SEEDS, strict=True)]
    assert token_ids(alone) == together
    small = TransformersEngine(batch_size=4)
    small.start(model_spec(folder))
    small.load_weights(model.named_parameters())
    assert token_ids(small.generate(PROMPTS, SAMPLING, group_size=3, seeds=SEEDS)) == together
    # Child i draws with seed + i, so a larger group and a shifted seed continue the same children.
    shifted = token_ids(engine.generate(PROMPTS, SAMPLING, group_size=3, seeds=[s + 1 for s in SEEDS]))
    assert [group[:2] for group in shifted] == [group[1:] for group in together]
    distinct = {tuple(ids) for group in together for ids in group}
    assert len(distinct) == 15


def test_any_end_token_ends_a_completion_and_pad_may_be_one(folder, model):
    ends = (1, 7, 20, 33)
    engine = TransformersEngine()
    engine.start(model_spec(folder, eos_token_ids=ends, pad_token_id=7))
    engine.load_weights(model.named_parameters())
    hot = Sampling(max_completion_length=20, temperature=2.0)
    groups = engine.generate([*PROMPTS, [7, 5, 7, 7]], hot, group_size=8, seeds=[*SEEDS, 5])
    rows = [c for group in groups for c in group]
    for row in rows:
        assert len(row.logprobs) == len(row.token_ids)
        assert row.finished == (row.token_ids[-1] in ends)
        assert not set(row.token_ids[:-1]) & set(ends)
        assert row.finished or len(row.token_ids) == 20
    assert {row.token_ids[-1] for row in rows if row.finished} == set(ends)
    assert any(not row.finished for row in rows)
    assert largest_gap(model, [*PROMPTS, [7, 5, 7, 7]], groups, hot) < 3e-5


def test_a_prompt_near_the_end_of_the_model_gets_what_room_is_left(tmp_path):
    model = save_model("gpt2", tmp_path)  # 256 learned positions: one more is an index error
    engine = TransformersEngine()
    engine.start(model_spec(tmp_path, max_length=256))
    engine.load_weights(model.named_parameters())
    prompts = [[5] * 255, [6] * 250, [9] * 10]
    groups = engine.generate(prompts, Sampling(max_completion_length=20), group_size=2, seeds=[0, 50, 100])
    assert [[len(ids) for ids in group] for group in token_ids(groups)] == [[1, 1], [6, 6], [20, 20]]


def test_the_head_gets_states_that_stand_close_together(engine):
    """A slice of the last of many positions would be multiplied row by row."""
    seen = []
    head = engine._model.get_output_embeddings()
    head.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0].shape[:2], inputs[0].is_contiguous())))
    engine.generate(PROMPTS, SAMPLING, group_size=2, seeds=SEEDS)
    assert set(seen) == {((10, 1), True)}


def test_the_weights_are_shared_not_copied(engine, model):
    greedy = Sampling(max_completion_length=6, temperature=0)
    ours = dict(engine._model.named_parameters())
    assert all(ours[name].data_ptr() == p.data_ptr() for name, p in model.named_parameters())
    assert engine._model.lm_head.weight is engine._model.model.embed_tokens.weight
    force_token(model, 42)
    assert token_ids(engine.generate([[5, 6]], greedy, group_size=1, seeds=[0])) == [[[42] * 6]]


def test_other_dtype_is_a_copy(folder, model):
    engine = TransformersEngine()
    engine.start(model_spec(folder, dtype=torch.bfloat16))
    engine.load_weights(model.named_parameters())
    assert {p.dtype for p in engine._model.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    groups = engine.generate(PROMPTS, SAMPLING, group_size=2, seeds=SEEDS)
    assert largest_gap(model.to(torch.bfloat16), PROMPTS, groups, SAMPLING) < 0.3


def test_trainer_and_global_generators_are_left_alone(folder, model):
    model.train()
    flags = [(p.requires_grad, p.is_leaf) for p in model.parameters()]
    before = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist()
    engine = TransformersEngine()
    engine.start(model_spec(folder))
    engine.load_weights(model.named_parameters())
    groups = engine.generate(PROMPTS, SAMPLING, group_size=2, seeds=SEEDS)
    engine.close()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), numpy.random.get_state()[1].tolist()) == before[1:]
    assert all(module.training for module in model.modules())
    assert [(p.requires_grad, p.is_leaf) for p in model.parameters()] == flags
    assert all(p.grad is None for p in model.parameters())
    assert torch.is_grad_enabled()
    assert len(groups) == 5


def test_dropout_is_off_while_the_trainer_has_it_on(tmp_path):
    model = save_model("gpt2", tmp_path)  # GPT-2's default dropout is 0.1
    engine = TransformersEngine()
    engine.start(model_spec(tmp_path))
    engine.load_weights(model.train().named_parameters())
    groups = engine.generate(PROMPTS, SAMPLING, group_size=2, seeds=SEEDS)
    assert largest_gap(model.eval(), PROMPTS, groups, SAMPLING) < 3e-5


def test_each_token_after_the_prompts_is_computed_alone(folder, model, tmp_path):
    """From the cache: also of a policy whose folder turns it off, and that computes its activations twice."""
    shutil.copytree(folder, tmp_path / "policy")
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "policy" / "config.json").write_text(json.dumps(config | {"use_cache": False}))
    model.gradient_checkpointing_enable()
    model.config.use_cache = False
    engine = TransformersEngine()
    engine.start(model_spec(tmp_path / "policy"))
    engine.load_weights(model.train().named_parameters())
    widths = []
    engine._model.register_forward_pre_hook(
        lambda _, inputs, options: widths.append(options["input_ids"].shape[1]), with_kwargs=True
    )
    engine.generate(PROMPTS, SAMPLING, group_size=2, seeds=SEEDS)
    assert widths[0] == max(map(len, PROMPTS))
    assert len(widths) > 2
    assert set(widths[1:]) == {1}


def test_wrong_names_are_an_error_and_leave_no_half_synced_sampler(engine, model):
    pairs = list(model.named_parameters())
    for sent, message in [
        (pairs[:-1], "not sent: model.norm.weight"),
        ([*pairs, ("x", pairs[0][1])], "'x' is unknown"),
    ]:
        with pytest.raises(WeightsMismatchError, match=message):
            engine.load_weights(sent)
        with pytest.raises(RuntimeError, match="before load_weights"):
            engine.generate(PROMPTS, SAMPLING, group_size=1, seeds=SEEDS)
    engine.load_weights(pairs)
    assert len(engine.generate(PROMPTS, SAMPLING, group_size=1, seeds=SEEDS)) == 5


def test_life_out_of_order():
    engine = TransformersEngine()
    with pytest.raises(RuntimeError, match="not started"):
        engine.generate(PROMPTS, SAMPLING, group_size=1, seeds=SEEDS)
    engine.close()
    with pytest.raises(UserError, match=r"--rollout\.engine\.batch_size is 0"):
        TransformersEngine(batch_size=0)


def test_no_prompts_no_completions(engine):
    assert engine.generate([], SAMPLING, group_size=2, seeds=[]) == []
