"""What a supervised run learns from a row."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_lightning.data import PromptDataModule, PromptTemplate
from grpo_lightning.data.curriculum import ByPassRate, Curriculum
from grpo_lightning.data.gsm8k import split_answer
from grpo_lightning.errors import UserError
from grpo_lightning.rewards import exact_answer, reasoning_format_strict
from grpo_lightning.rewards.accuracy import math_accuracy
from grpo_lightning.sft import SFTModule
from grpo_lightning.types import Layout
from tests.unit.data.character_tokenizer import letters
from tests.unit.models.tiny import saved_policy

ROWS = [
    {"question": "2+3?", "answer": "5", "solution": "2+3 = 5\n#### 5", "chain": "<think>\nfive\n</think>\n5"},
    {"question": "4+4?", "answer": "8", "solution": "4+4 = 8\n#### 8", "chain": None},
    {"question": "9-2?", "answer": "7", "solution": "9-2 = 7, which is what is left\n#### 7", "chain": "7"},
]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved_policy(tmp_path_factory.mktemp("policy"), "Llama", max_position_embeddings=512)


Make = Callable[..., SFTModule]


@pytest.fixture
def make(policy: str) -> Make:
    """A module that is set up with ``ROWS``, or with others, and a tokenizer of one token a character."""

    def made(
        *,
        template: dict[str, Any] | None = None,
        rows: list[dict[str, Any]] = ROWS,
        curriculum: Curriculum | None = None,
        **arguments: Any,
    ) -> SFTModule:
        tokenizer = letters()
        template = {"chat": False, "layout": "{question}", "answer_format": "none"} | (template or {})
        source = SimpleNamespace(name="sums", rows=lambda: rows, correctness=math_accuracy)
        held_out = SimpleNamespace(name="held out", rows=lambda: ROWS[:2], correctness=math_accuracy)
        data = PromptDataModule(
            source,
            eval_sources=[held_out] if rows is not ROWS else [],
            template=PromptTemplate(**template),
            prompts_per_step=1,
            max_prompt_length=1000,
            curriculum=curriculum,
        )
        data.tokenizer = tokenizer
        data.setup("fit")
        module = SFTModule(policy, **{"target_column": "solution"} | arguments)
        module.tokenizer = tokenizer
        module._trainer = SimpleNamespace(datamodule=data, is_global_zero=True)
        module.setup("fit")
        return module

    return made


def learned(module: SFTModule, row: int) -> str:
    *ids, end = module.targets[row]
    assert end == module.tokenizer.eos_token_id
    return module.tokenizer.decode(ids)


def test_a_text_is_learned_as_it_is(make: Make) -> None:
    assert learned(make(), 0) == "2+3 = 5\n#### 5"


def test_a_laid_out_solution_is_what_the_prompt_asks_for_and_its_rewards_pay(make: Make) -> None:
    module = make(template={"answer_format": "reasoning_answer"}, lay_out=True)
    text = learned(module, 0)
    assert text == "<reasoning>\n2+3 = 5\n</reasoning>\n<answer>\n5\n</answer>\n"
    assert reasoning_format_strict(completions=[text]) == [0.5]
    assert exact_answer(completions=[text], answer=["5"]) == [2.0]
    assert "<reasoning>" in module.trainer.datamodule.train_prompts[0].text


def test_a_laid_out_gsm8k_row_has_its_number_once(make: Make) -> None:
    number, solution = split_answer("He has 48/2 = <<48/2=24>>24 left.\n#### 24")
    row = {"question": "q", "answer": number, "solution": solution}
    module = make(template={"answer_format": "boxed"}, lay_out=True, rows=[row])
    assert learned(module, 0) == "He has 48/2 = 24 left.\n\\boxed{24}"


def test_a_layout_that_the_template_has_opened_is_gone_on_with(make: Make) -> None:
    opened = {"layout": "{question}<think>\n", "answer_format": "think_answer"}
    text = learned(make(template=opened, lay_out=True), 0)
    assert text == "2+3 = 5\n</think>\n<answer>\n5\n</answer>"


def test_no_layout_to_lay_out(make: Make) -> None:
    with pytest.raises(UserError, match=r"--model.lay_out true: --data.template.answer_format none"):
        make(lay_out=True)


def test_a_curriculum_by_rewards_has_none_to_go_by(make: Make) -> None:
    with pytest.raises(UserError, match="ByPassRate: goes by rewards, of which"):
        make(curriculum=ByPassRate())


def test_rows_beyond_the_length_are_left_out_and_counted(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    # 4 + 14 + 1 tokens, and 4 + 37 + 1 in the third row.
    with caplog.at_level(logging.WARNING, logger="grpo_lightning"):
        module = make(max_length=19)
    assert sorted(module.targets) == [0, 1]
    assert [prompt.row for prompt in module.trainer.datamodule.train_prompts] == [0, 1]
    assert caplog.messages == ["1 of 3 rows have more tokens than --model.max_length 19 and are left out"]
    assert sorted(make(max_length=42).targets) == [0, 1, 2]


def test_without_a_length_rows_that_the_model_cannot_hold_are_refused(make: Make) -> None:
    long = [ROWS[0], {"question": "q", "answer": "1", "solution": "1" * 511}]
    with pytest.raises(UserError, match=r"row 1 of sums has 1 \+ 512 tokens, beyond the 512 .* --model.max_length"):
        make(rows=long)


def test_a_length_that_no_row_can_have(make: Make) -> None:
    with pytest.raises(UserError, match=r"--model.max_length 513: must be between 1 and the 512"):
        make(max_length=513)


def test_a_missing_target_is_refused_in_training_and_passed_over_in_evaluation(make: Make) -> None:
    with pytest.raises(UserError, match=r"--model.target_column chain: row 1 of sums has no such text"):
        make(target_column="chain")
    module = make(target_column="chain", rows=[{"question": "1+1?", "answer": "2", "chain": "2"}])
    assert [sorted(targets) for targets in module._eval_targets] == [[0]]


@pytest.mark.parametrize("layout", ["padded", "packed", "shared"])
def test_copies_that_fill_a_batch_do_not_count(make: Make, layout: Layout) -> None:
    module = make()
    module.layout = layout
    first, second = module.trainer.datamodule.train_prompts[:2]
    second.valid = False
    window = module._window([first, second], module.targets)
    assert window.tokens == 15
    assert sum(int(micro_batch.counted.sum()) for micro_batch in window.micro_batches) == 15


def test_packed_rows_are_bounded_by_their_own_tokens(make: Make) -> None:
    """19 + 42 tokens fit into 61 packed, and not padded."""
    for layout, sizes in (("packed", [2]), ("padded", [1, 1])):
        module = make(micro_batch_tokens=61)
        module.layout = layout
        prompts = [module.trainer.datamodule.train_prompts[row] for row in (0, 2)]
        assert [len(m) for m in module._window(prompts, module.targets).micro_batches] == sizes
