"""What the model is asked, shown."""

from __future__ import annotations

from typing import Any

import pytest

from grpo_lightning.check.prompts import histogram, lost_text, remarks, rendered
from grpo_lightning.data.templates import PromptTemplate
from grpo_lightning.types import Prompt
from tests.unit.data.character_tokenizer import CHAT, letters


def asked(tokenizer: Any, **arguments: Any) -> Prompt:
    template = PromptTemplate(answer_format="none", **arguments)
    return template.prompt({"question": "why?"}, tokenizer=tokenizer, source="mine", number=3)


def said(prompt: Prompt, tokenizer: Any) -> list[str]:
    return [f"{mark} {text}".strip() for mark, text in remarks(prompt, tokenizer)]


def test_special_tokens_are_shown_and_one_beginning_is_right() -> None:
    tokenizer = letters(bos=True)
    prompt = asked(tokenizer, layout="Q: {question}")
    assert rendered(prompt, tokenizer) == "| <s>Q: why?"
    assert said(prompt, tokenizer) == [
        "Row 3 of mine, 8 tokens, begins '<s>' 'Q' ':' ' ' 'w' 'h' and ends ':' ' ' 'w' 'h' 'y' '?'.",
        "Written as plain text.",
        "It begins with one <s>, as it should.",
    ]


def test_a_chat_template_without_the_beginning_and_with_an_open_tag() -> None:
    tokenizer = letters(bos=True, chat=CHAT + "<think>\n")
    found = said(asked(tokenizer), tokenizer)
    assert "Written as chat turns." in found
    assert "! It does not begin with <s>, which the tokenizer puts before a text." in found
    assert "The prompt ends with <think>: completions begin inside it, and are scored with it in front." in found


def test_text_that_the_tokenizer_does_not_know() -> None:
    tokenizer = letters()
    prompts = [asked(tokenizer, layout="{question}"), asked(tokenizer, layout="{question} caf\u00e9 na\u00efve")]
    assert lost_text(prompts, tokenizer) == (
        "Row 3: the tokenizer drops or changes 2 of the prompt's 15 characters: in 'caf\u00e9', 'na\u00efve'. "
        "The model does not see them as they are written."
    )


class Words:
    """Splits at white space and knows a few words; the others vanish without a token."""

    unk_token = None

    def __init__(self, *known: str) -> None:
        self.known = known

    def decode(self, ids: list[int], **_: Any) -> str:
        return "<s>" + " ".join(self.known[i] for i in ids)


def test_text_that_vanishes_is_told_and_white_space_is_not() -> None:
    tokenizer = Words("Ann", "has", "3", "e\u0301")
    whole = Prompt(token_ids=[0, 1, 2, 3], text="Ann  has\n3 \u00e9", row=1)
    assert lost_text([whole], tokenizer) == ""
    cut = Prompt(token_ids=[0, 1, 2], text="Anna has 3 pears", row=2)
    assert "Row 2: the tokenizer drops or changes 6 of the prompt's 16 characters: in 'Anna', 'pears'." in lost_text(
        [whole, cut], tokenizer
    )


def test_a_long_prompt_is_shown_in_part() -> None:
    tokenizer = letters()
    text = rendered(asked(tokenizer, layout="{question}" + "x" * 3000), tokenizer)
    assert len(text) < 1600
    assert "[... 1504 characters ...]" in text


@pytest.mark.parametrize(
    ("lengths", "limit", "lines"),
    [
        (
            [3, 3, 4],
            8,
            [
                "     3                 2 " + "#" * 40,
                "     4                 1 " + "#" * 20,
                "tokens of a prompt: shortest 3, half 3, 95% 3, longest 4; limit --data.max_prompt_length 8",
            ],
        ),
        (
            [10] * 4 + [29] * 2,
            25,  # bins of two tokens from 10 on; the limit ends one
            [
                "    10 to 11           4 " + "#" * 40,
                *(f"    {n} to {n + 1}           0" for n in range(12, 24, 2)),
                "    24 to 25           0",
                "    26 to 27           0",
                "    28 to 29           2 " + "#" * 20 + "  left out",
                "tokens of a prompt: shortest 10, half 10, 95% 29, longest 29; limit --data.max_prompt_length 25",
            ],
        ),
    ],
)
def test_a_histogram(lengths: list[int], limit: int, lines: list[str]) -> None:
    assert histogram(lengths, limit=limit).splitlines() == lines


def test_the_limit_ends_a_bin() -> None:
    rows = histogram(list(range(100)), limit=44).splitlines()[:-1]
    assert [row.split()[:3] for row in rows if "left out" not in row][-1] == ["40", "to", "44"]
    assert sum(int(row.split()[3]) for row in rows) == 100
    assert sum(int(row.split()[3]) for row in rows if "left out" in row) == 55
