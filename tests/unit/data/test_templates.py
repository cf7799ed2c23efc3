from __future__ import annotations

from typing import Any

import pytest

from grpo_lightning.data.answer_formats import ANSWER_FORMATS
from grpo_lightning.data.templates import PromptTemplate, encode_plain
from grpo_lightning.errors import UserError
from grpo_lightning.rewards import (
    choice_format_soft,
    choice_format_strict,
    reasoning_format_soft,
    reasoning_format_strict,
    tag_count,
    think_answer_format,
    think_answer_format_strict,
    xml_count,
    xml_count_three_tags,
)
from tests.unit.data.character_tokenizer import CHAT, letters

ROW = {"question": "2+2?", "answer": "4"}
SHOWN = [{"question": "1+1?", "answer": "2", "solution": "1 and 1\n#### 2"}]
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + CHAT
)


def _text(tokenizer: Any = None, *, examples: Any = (), row: dict[str, Any] = ROW, **arguments: Any) -> str:
    return PromptTemplate(**arguments).prompt(row, tokenizer=tokenizer or letters(), examples=examples).text


# --- plain text ---------------------------------------------------------------------------------------------------


def test_raw_layout_is_the_question_alone() -> None:
    prompt = PromptTemplate(layout="{question}", answer_format="none").prompt(ROW, tokenizer=letters(), number=7)
    assert (prompt.text, prompt.messages, prompt.prefill, prompt.row) == ("2+2?", None, "", 7)
    assert letters().decode(prompt.token_ids) == "2+2?"
    assert prompt.columns == ROW


def test_plain_text_with_everything() -> None:
    text = _text(
        examples=SHOWN, system="Be brief.", answer_format="hashes", style="worked_examples", layout="Q: {question}\nA:"
    )
    assert text == (
        "Be brief.\n\nWrite the final answer on a last line of its own, after ####.\n\n"
        "Q: 1+1?\nA: 1 and 1\n#### 2\n\nQ: 2+2?\nA:"
    )


def test_step_by_step_opens_the_answer() -> None:
    assert _text(style="step_by_step", answer_format="none") == "Question: 2+2?\nAnswer: Let's think step by step."


def test_braces_in_question_and_layout_are_left_alone() -> None:
    row = {"question": r"Find \frac{1}{2}{question}", "answer": "1"}
    assert _text(row=row, answer_format="none", layout=r"{question} \boxed{}") == r"Find \frac{1}{2}{question} \boxed{}"


def test_messages_without_chat_become_paragraphs() -> None:
    row = {"question": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}], "answer": "1"}
    assert _text(row=row, answer_format="none", layout="{question}") == "S\n\nU"


# --- chat ---------------------------------------------------------------------------------------------------------


def test_chat_follows_the_tokenizer_unless_told() -> None:
    chat = letters(chat=CHAT)
    assert _text(chat, answer_format="none") == "<|user|>2+2?<|end|><|assistant|>"
    assert _text(chat, answer_format="none", chat=False, layout="{question}") == "2+2?"
    with pytest.raises(UserError, match=r"--data\.template\.chat is true, but .* has no chat template"):
        _text(letters(), chat=True)


def test_tag_formats_go_into_the_system_text_and_the_others_after_the_question() -> None:
    chat = letters(chat=CHAT)
    prompt = PromptTemplate(system="Be brief.", answer_format="think_answer").prompt(ROW, tokenizer=chat)
    assert prompt.messages == [
        {"role": "system", "content": "Be brief.\n\n" + ANSWER_FORMATS["think_answer"].instruction},
        {"role": "user", "content": "2+2?"},
    ]
    prompt = PromptTemplate(answer_format="boxed", style="step_by_step").prompt(ROW, tokenizer=chat)
    assert prompt.messages == [
        {"role": "user", "content": "2+2?\n\nLet's think step by step. Write the final answer inside \\boxed{}."}
    ]


def test_examples_are_earlier_turns() -> None:
    template = PromptTemplate(answer_format="none", style="examples", system="S")
    prompt = template.prompt(ROW, tokenizer=letters(chat=CHAT), examples=SHOWN)
    assert prompt.text == "<|system|>S<|end|><|user|>1+1?<|end|><|assistant|>2<|end|><|user|>2+2?<|end|><|assistant|>"


def test_a_systems_own_text_is_kept_in_front() -> None:
    row = {"question": [{"role": "system", "content": "Own."}, {"role": "user", "content": "U"}], "answer": "1"}
    assert _text(letters(chat=CHAT), row=row, answer_format="none", system="Ours.").startswith(
        "<|system|>Own.\n\nOurs.<|end|><|user|>U<|end|>"
    )
    assert row["question"][1]["content"] == "U", "the data row must not change"


def test_template_without_system_role_gets_it_in_the_first_user_message() -> None:
    template = PromptTemplate(answer_format="none", system="S", style="examples")
    prompt = template.prompt(ROW, tokenizer=letters(chat=NO_SYSTEM), examples=SHOWN)
    assert prompt.text.startswith("<|user|>S\n\n1+1?<|end|><|assistant|>2<|end|>")
    assert prompt.messages is not None
    assert [message["role"] for message in prompt.messages] == ["user", "assistant", "user"]


def test_chat_options_reach_the_template() -> None:
    tokenizer = letters(chat=CHAT + "{% if not enable_thinking %}<think>\n\n</think>\n\n{% endif %}")
    prompt = PromptTemplate(answer_format="none", chat_options={"enable_thinking": False}).prompt(
        ROW, tokenizer=tokenizer
    )
    assert prompt.prefill == "<think>\n\n</think>\n\n"
    options = PromptTemplate(answer_format="none", chat_options={"enable_thinking": True})
    assert options.prompt(ROW, tokenizer=tokenizer).prefill == ""


@pytest.mark.parametrize("opened", ["<think>\n", "<think>", "<reasoning>\n"])
def test_an_opened_tag_is_the_prefill(opened: str) -> None:
    chat = PromptTemplate(answer_format="think_answer").prompt(
        ROW, tokenizer=letters(chat=CHAT + f"{{{{ {opened!r} }}}}")
    )
    plain = PromptTemplate(layout="{question} " + opened).prompt(ROW, tokenizer=letters())
    assert chat.prefill == plain.prefill == opened
    assert chat.text.endswith(f"<|assistant|>{opened}")
    # The instruction itself names the tags: that opens nothing.
    assert PromptTemplate(answer_format="think_answer").prompt(ROW, tokenizer=letters(chat=CHAT)).prefill == ""


# --- special tokens -----------------------------------------------------------------------------------------------


def test_exactly_one_beginning_of_sequence() -> None:
    for tokenizer in (letters(bos=True), letters(bos=True, chat="{{ bos_token }}" + CHAT)):
        token_ids = PromptTemplate().prompt(ROW, tokenizer=tokenizer).token_ids
        assert token_ids[0] == tokenizer.bos_token_id
        assert token_ids.count(tokenizer.bos_token_id) == 1
    assert letters().bos_token_id is None
    assert PromptTemplate(layout="<s>{question}", answer_format="none").prompt(
        ROW, tokenizer=letters(bos=True)
    ).token_ids == [2, *letters().encode("2+2?")]


def test_no_end_of_sequence_behind_a_prompt() -> None:
    tokenizer = letters(bos=True, eos_added=True)
    assert tokenizer.encode("ab")[-1] == tokenizer.eos_token_id
    assert encode_plain("ab", tokenizer) == [2, *letters().encode("ab")]
    assert encode_plain("ab", letters()) == letters().encode("ab")


# --- answer formats -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "answer", "worked"),
    [
        ("think_answer", "<answer>2</answer>", "<think>\n1 and 1\n</think>\n<answer>\n2\n</answer>"),
        (
            "reasoning_answer",
            "<answer>\n2\n</answer>\n",
            "<reasoning>\n1 and 1\n</reasoning>\n<answer>\n2\n</answer>\n",
        ),
        (
            "reasoning_choice",
            "<answer>\n\\boxed{2}\n</answer>",
            "<reasoning>\n1 and 1\n</reasoning>\n<answer>\n\\boxed{2}\n</answer>",
        ),
        ("boxed", "\\boxed{2}", "1 and 1\n\\boxed{2}"),
        ("hashes", "#### 2", "1 and 1\n#### 2"),
        ("chinese", "### 答案: 2", "1 and 1\n### 答案: 2"),
        ("none", "2", "1 and 1\n2"),
    ],
)
def test_examples_show_the_chosen_layout(name: str, answer: str, worked: str) -> None:
    layout = ANSWER_FORMATS[name]
    assert layout.show("2") == answer
    assert layout.show("2", "1 and 1\n#### 2") == worked


@pytest.mark.parametrize(
    ("name", "answer", "rewards"),
    [
        ("reasoning_answer", "2", {reasoning_format_strict: 0.5, reasoning_format_soft: 0.5, xml_count: 0.5}),
        ("reasoning_choice", "A", {choice_format_strict: 1.0, choice_format_soft: 0.5, xml_count_three_tags: 0.375}),
        ("think_answer", "2", {think_answer_format: 1.0, think_answer_format_strict: 1.0, tag_count: 1.0}),
    ],
)
def test_who_copies_the_example_keeps_the_layout_that_is_paid(
    name: str, answer: str, rewards: dict[Any, float]
) -> None:
    layout = ANSWER_FORMATS[name]
    for shown in (layout.show(answer, "1 and 1"), layout.show(answer, "1 and 1\n#### 2")):
        assert {reward: reward(completions=[shown])[0] for reward in rewards} == pytest.approx(rewards)
    if name == "reasoning_answer":
        said = layout.instruction.partition(":\n")[2]
        assert reasoning_format_strict(completions=[said]) == [0.5]


def test_a_solution_that_is_laid_out_already_stays_as_it_is() -> None:
    assert ANSWER_FORMATS["hashes"].show("2", "1+1=2;#### 2") == "1+1=2;#### 2"
    assert ANSWER_FORMATS["boxed"].show("2", r"so $\boxed{2}$.") == r"so $\boxed{2}$."
    assert ANSWER_FORMATS["none"].show("{work}", "w {answer}") == "w {answer}\n{work}"


# --- wrong arguments ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"answer_format": "box"}, "answer_format 'box' is unknown; choose one of think_answer"),
        ({"style": "cot"}, "style 'cot' is unknown; choose one of direct"),
        ({"style": "examples", "examples": 0}, "--data.template.examples is 0"),
        ({"layout": "Q:"}, "layout 'Q:' has no place for the question"),
    ],
)
def test_wrong_arguments_name_flag_and_remedy(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        PromptTemplate(**arguments)


def test_worked_examples_need_solutions() -> None:
    with pytest.raises(UserError, match=r"--data\.source\.solution_column"):
        _text(examples=[{"question": "1+1?", "answer": "2"}], style="worked_examples")
