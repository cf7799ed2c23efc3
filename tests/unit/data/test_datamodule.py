from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grpo_lightning.data import ByColumn, ByPassRate, JsonLines
from grpo_lightning.data.datamodule import PromptDataModule
from grpo_lightning.data.templates import PromptTemplate
from grpo_lightning.errors import UserError
from tests.unit.data.character_tokenizer import letters
from tests.unit.data.test_loading import Listed

QUESTIONS = [f"q{i}" for i in range(10)]


def _module(
    *questions: str, stage: str = "fit", rank: int = 0, world_size: int = 1, **arguments: Any
) -> PromptDataModule:
    arguments = {"template": PromptTemplate(layout="{question}", answer_format="none"), **arguments}
    module = PromptDataModule(Listed(*(questions or QUESTIONS), solution="s"), **arguments)
    module.tokenizer = letters()
    if world_size > 1:
        module.trainer = SimpleNamespace(global_rank=rank, world_size=world_size)  # type: ignore[assignment]
    module.setup(stage)
    return module


def _questions(loader: Any) -> list[list[str]]:
    return [[prompt.text for prompt in batch.prompts] for batch in loader]


# --- training -----------------------------------------------------------------------------------------------------


def test_ten_prompts_four_per_step(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        loader = _module(prompts_per_step=4).train_dataloader()
    first = _questions(loader)
    assert len(loader) == len(first) == 2
    assert len({question for batch in first for question in batch}) == 8
    assert "2 of 10 prompts do not fill a batch of --data.prompts_per_step 4" in caplog.text
    loader.sampler.set_epoch(1)
    assert _questions(loader) != first


def test_two_ranks_share_each_batch_in_the_same_order() -> None:
    whole = list(_module(prompts_per_step=4).train_dataloader())
    shares = [list(_module(prompts_per_step=4, rank=r, world_size=2).train_dataloader()) for r in range(2)]
    for number, batch in enumerate(whole):
        placed = {}
        for share in shares:
            placed |= dict(zip(share[number].positions, share[number].prompts, strict=True))
        assert [placed[i].text for i in range(4)] == [prompt.text for prompt in batch.prompts]
        assert batch.positions == [0, 1, 2, 3]


def test_three_prompts_and_batch_four_is_an_error() -> None:
    with pytest.raises(UserError, match=r"has 3 prompts to train on, fewer than --data.prompts_per_step 4"):
        _module("a", "b", "c", prompts_per_step=4)
    with pytest.raises(UserError, match="has 3 prompts to train on"):  # enough rows, too few that are short enough
        _module("a", "b", "c", "long", prompts_per_step=4, max_prompt_length=3)


def test_shuffle_off_keeps_the_order_and_names_the_tail(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        loader = _module(prompts_per_step=4, shuffle=False).train_dataloader()
    assert _questions(loader) == [QUESTIONS[:4], QUESTIONS[4:8]]
    assert "always the last ones" in caplog.text


def test_more_prompts_a_rollout_where_it_may_draw_again(caplog: pytest.LogCaptureFixture) -> None:
    whole, *shares = (_module(prompts_per_step=2, rank=r, world_size=w) for r, w in ((0, 1), (0, 2), (1, 2)))
    for module in (whole, *shares):
        module.tries = 2
    with caplog.at_level(logging.WARNING):
        loader = whole.train_dataloader()
    batches = list(loader)
    assert len(loader) == len(batches) == 2
    assert [batch.positions for batch in batches] == [[0, 1, 2, 3]] * 2
    flags = "--data.prompts_per_step 2 x --rollout.dynamic_sampling_tries 2"
    assert f"2 of 10 prompts do not fill a batch of {flags}" in caplog.text
    # The first try's prompts, 0 and 1, are one on each rank, and so are the second's.
    for rank, module in enumerate(shares):
        share = list(module.train_dataloader())
        assert [batch.positions for batch in share] == [[rank, rank + 2]] * 2
        assert _questions(share) == [[q[rank], q[rank + 2]] for q in _questions(batches)]
    whole.tries = 6
    with pytest.raises(UserError, match=r"10 prompts to train on, fewer than .*_per_step 2 x .*_tries 6; lower one of"):
        whole.train_dataloader()


def test_a_curriculum_looks_at_the_prompts_and_learns_from_rewards() -> None:
    module = _module(prompts_per_step=2, curriculum=ByPassRate(revisit=1e-9))
    module.tries = 2
    (batch, _) = module.train_dataloader()
    assert len(batch.prompts) == 4
    figures = module.record(batch.prompts[:1], torch.tensor([[1.0, 0.0]]), {})
    assert figures["curriculum/asked"] == 0.1
    # Resumed, it goes on with that; without training, and without a curriculum, there is nothing to go on with.
    state = module.state_dict()
    assert state["learned"] == {"pass_rates": {batch.prompts[0].row: 0.5}}
    resumed = _module(prompts_per_step=2, curriculum=ByPassRate())
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    evaluated = _module(prompts_per_step=2, curriculum=ByPassRate(), eval_sources=[Listed("e")], stage="validate")
    plain = _module(prompts_per_step=2)
    for other in (evaluated, plain):
        other.load_state_dict(state)
        assert other.state_dict()["learned"] == {"pass_rates": {}} if other is evaluated else not other.state_dict()
    assert plain.record(batch.prompts, torch.ones(4, 2), {}) == {}


def test_what_is_wrong_with_a_curriculum_shows_before_training() -> None:
    with pytest.raises(UserError, match=r"--data\.curriculum\.column level: --data\.source listed, row 0 has no such"):
        _module(prompts_per_step=2, curriculum=ByColumn())
    with pytest.raises(UserError, match=r"--data\.shuffle false does not go with --data\.curriculum"):
        _module(prompts_per_step=2, shuffle=False, curriculum=ByPassRate())


def test_same_question_twice_is_two_groups() -> None:
    (batch,) = _module("same", "same", prompts_per_step=2).train_dataloader()
    assert sorted(prompt.row for prompt in batch.prompts) == [0, 1]


@pytest.mark.parametrize(("prompts", "ranks", "nearest"), [(6, 4, "4 or 8"), (3, 4, "are 4$"), (10, 8, "8 or 16")])
def test_prompts_that_cannot_be_dealt_name_the_nearest_numbers(prompts: int, ranks: int, nearest: str) -> None:
    with pytest.raises(UserError, match=rf"--data\.prompts_per_step {prompts} cannot .* {ranks} ranks.*{nearest}"):
        _module(prompts_per_step=prompts, world_size=ranks)


def test_a_second_distributed_sampler_is_refused() -> None:
    module = PromptDataModule(Listed(*QUESTIONS), prompts_per_step=4)
    module.tokenizer = letters()
    connector = SimpleNamespace(use_distributed_sampler=True)
    module.trainer = SimpleNamespace(global_rank=0, world_size=2, _accelerator_connector=connector)  # type: ignore[assignment]
    with pytest.raises(UserError, match=r"--trainer\.use_distributed_sampler"):
        module.setup("fit")


def test_loaders_leave_the_global_random_stream_alone() -> None:
    module = _module(prompts_per_step=4, eval_sources=[Listed("e")])
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    list(module.train_dataloader())
    list(module.val_dataloader()[0])
    assert torch.equal(torch.rand(1), expected)


def test_each_pass_makes_fresh_batches() -> None:
    module = _module(prompts_per_step=10, shuffle=False, eval_sources=[Listed("e")])
    for loader in (module.train_dataloader(), module.val_dataloader()[0]):
        (first,), (second,) = list(loader), list(loader)
        first.rollout = object()  # type: ignore[assignment]
        assert second is not first
        assert second.rollout is None


# --- evaluation ---------------------------------------------------------------------------------------------------


def test_questions_of_an_evaluation_source_leave_training(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        module = _module(prompts_per_step=4, eval_sources=[Listed("q3", "x", name="a"), Listed(" q5", name="b")])
    assert module.train_prompts is not None
    assert [prompt.text for prompt in module.train_prompts] == [q for q in QUESTIONS if q not in ("q3", "q5")]
    assert "2 of 10 training questions are also in an evaluation source" in caplog.text
    assert module.eval_names == ["a", "b"]
    assert [_questions(loader) for loader in module.val_dataloader()] == [[["q3", "x"]], [[" q5"]]]


def test_training_on_nothing_but_the_evaluation_is_an_error() -> None:
    with pytest.raises(UserError, match=r"every question of --data.source"):
        _module("a", "b", prompts_per_step=1, eval_sources=[Listed("b", "a", name="e")])


def test_limit_spreads_over_the_source() -> None:
    source = Listed(*(f"e{i}" for i in range(100)))
    module = _module(prompts_per_step=4, eval_sources=[source], eval_limit=4, stage="validate")
    assert _questions(module.val_dataloader()[0]) == [["e0", "e25", "e50", "e75"]]
    assert module.train_prompts is None, "evaluation alone needs no training data"


def test_evaluation_on_ranks_pads_with_prompts_that_do_not_count() -> None:
    source = Listed(*(f"e{i}" for i in range(5)))
    modules = [
        _module(prompts_per_step=4, eval_sources=[source], eval_batch_size=4, rank=r, world_size=2) for r in range(2)
    ]
    loaders = [module.val_dataloader()[0] for module in modules]
    assert [len(loader) for loader in loaders] == [2, 2]
    assert [[[(p.text, p.valid) for p in batch.prompts] for batch in loader] for loader in loaders] == [
        [[("e0", True), ("e2", True)], [("e4", True)]],
        [[("e1", True), ("e3", True)], [("e4", False)]],
    ]
    assert [batch.positions for batch in loaders[0]] == [[0, 2], [4]]
    assert modules[1].eval_prompts is not None
    assert all(prompt.valid for prompt in modules[1].eval_prompts[0])


def test_nothing_to_evaluate() -> None:
    module = _module(prompts_per_step=4)
    assert module.val_dataloader() == []
    with pytest.raises(UserError, match=r"`test` has nothing to ask; name --data.eval_sources"):
        module.test_dataloader()
    with pytest.raises(UserError, match="`predict` has nothing to ask"):
        module.predict_dataloader()


def test_names_must_differ() -> None:
    with pytest.raises(UserError, match=r"two of --data.eval_sources are named 'listed'"):
        _module(prompts_per_step=1, eval_sources=[Listed("a"), Listed("b")])


# --- examples and the one question --------------------------------------------------------------------------------


def test_examples_come_from_training_rows_that_are_not_evaluated_and_leave_training() -> None:
    template = PromptTemplate(style="examples", examples=2, answer_format="none", layout="{question}")
    module = _module(prompts_per_step=4, template=template, eval_sources=[Listed("q0")])
    assert module.train_prompts is not None
    assert [prompt.row for prompt in module.train_prompts] == [3, 4, 5, 6, 7, 8, 9]
    assert module.train_prompts[0].text == "q1 1\n\nq2 1\n\nq3"
    assert _questions(module.val_dataloader()[0]) == [["q1 1\n\nq2 1\n\nq0"]]
    only_eval = _module(prompts_per_step=4, template=template, eval_sources=[Listed("q0")], stage="validate")
    assert _questions(only_eval.val_dataloader()[0]) == [["q1 1\n\nq2 1\n\nq0"]]
    only_eval.setup("fit")
    assert only_eval.train_prompts == module.train_prompts


def test_more_examples_than_rows_is_an_error() -> None:
    template = PromptTemplate(style="examples", examples=3)
    with pytest.raises(UserError, match=r"--data\.template\.examples is 3, but .* has only 2 rows"):
        _module("a", "b", prompts_per_step=1, template=template, stage="validate")


def test_predict_asks_the_one_question() -> None:
    module = _module(prompts_per_step=4, eval_sources=[Listed("e")], stage="validate")
    module.question = "why?"
    (loader,) = module.predict_dataloader()
    assert _questions(loader) == [["why?"]]
    module.question = "why" * 400
    with pytest.raises(UserError, match=r"the question has 1200 tokens; --data\.max_prompt_length allows 1 to 512"):
        module.predict_dataloader()


def test_predicting_one_question_reads_no_data() -> None:
    source = JsonLines("does/not/exist.jsonl")
    module = PromptDataModule(source, eval_sources=[source], prompts_per_step=4)
    module.tokenizer = letters()
    module.question = "why?"
    module.setup("predict")
    assert _questions(module.predict_dataloader()[0])[0][0].endswith("Question: why?\nAnswer:")
    with pytest.raises(UserError, match="no such file"):
        module.setup("validate")


# --- arguments ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["prompts_per_step", "eval_batch_size", "max_prompt_length", "eval_limit"])
def test_numbers_below_one_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"--data.{name} is 0"):
        PromptDataModule(Listed("a"), **{"prompts_per_step": 1, name: 0})


def test_a_tokenizer_is_needed() -> None:
    with pytest.raises(UserError, match="has no tokenizer"):
        PromptDataModule(Listed("a"), prompts_per_step=1).setup("fit")
