"""From a question to what the model reads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from grpo_lightning.data.answer_formats import ANSWER_FORMATS, AnswerFormatName
from grpo_lightning.errors import UserError
from grpo_lightning.types import Message, Prompt

Style = Literal["direct", "examples", "worked_examples", "step_by_step"]

_OPENED = re.compile(r"<(think|reasoning)>\s*(?:</\1>\s*)?\Z")


class PromptTemplate:
    """Renders a question, as chat or as plain text, and encodes it with exactly the special tokens the model expects.

    Chat: an optional system message, the examples as earlier turns, the question; rendered by the tokenizer's own chat
    template, which brings its own special tokens, so that nothing is added when the text is encoded. Plain text: the
    system text, the instruction and the examples as paragraphs in front of the question; a beginning-of-sequence token
    is added if the tokenizer itself would add one. A template without system role gets the system text in front of the
    first user message.

    Args:
        chat: render as chat; None does so if the tokenizer has a chat template.
        system: system text; the answer format's instruction may follow it.
        answer_format: how the answer is to be laid out; its instruction is written into the prompt. ``think_answer``,
            ``reasoning_answer`` and ``reasoning_choice`` (one of A to D) put it into the system text, the others after
            the question, ``none`` writes none.
        style: ``direct`` asks the question alone; ``examples`` shows questions with answers first, ``worked_examples``
            with solutions; ``step_by_step`` adds "Let's think step by step."
        examples: number of examples in the two example styles: the first rows of the training source, which are
            then left out of training.
        layout: plain text of one question; ``{question}`` alone asks the bare question.
        chat_options: further variables of the chat template, ``{"enable_thinking": false}``.

    Raises:
        UserError: if an argument makes no sense.
    """

    def __init__(
        self,
        *,
        chat: bool | None = None,
        system: str | None = None,
        answer_format: AnswerFormatName = "boxed",
        style: Style = "direct",
        examples: int = 4,
        layout: str = "Question: {question}\nAnswer:",
        chat_options: dict[str, Any] | None = None,
    ) -> None:
        if answer_format not in ANSWER_FORMATS:
            raise UserError(
                f"--data.template.answer_format {answer_format!r} is unknown; choose one of {', '.join(ANSWER_FORMATS)}"
            )
        if style not in Style.__args__:  # type: ignore[attr-defined]
            raise UserError(
                f"--data.template.style {style!r} is unknown; choose one of {', '.join(Style.__args__)}"  # type: ignore[attr-defined]
            )
        if style.endswith("examples") and examples < 1:
            raise UserError(
                f"--data.template.examples is {examples}, but --data.template.style {style} shows examples; "
                "give at least 1, or choose the style direct"
            )
        if "{question}" not in layout:
            raise UserError(
                f"--data.template.layout {layout!r} has no place for the question; write {{question}} where it goes"
            )
        self.chat = chat
        self.system = system
        self.answer_format = ANSWER_FORMATS[answer_format]
        self.style = style
        self.examples = examples if style.endswith("examples") else 0
        self.layout = layout
        self.chat_options = chat_options or {}

    def prompt(
        self,
        row: dict[str, Any],
        *,
        tokenizer: Any,
        examples: Sequence[dict[str, Any]] = (),
        source: str = "",
        number: int = 0,
    ) -> Prompt:
        """The row's question, rendered and encoded.

        Args:
            row: data row; ``question`` is rendered, all columns are kept for the rewards.
            tokenizer: the policy's.
            examples: rows with ``question``, ``answer`` and, for ``worked_examples``, ``solution``.
            source: name of the data source.
            number: row number in the source.

        Raises:
            UserError: if ``chat`` is true and the tokenizer has no chat template, or an example has no solution.
        """
        question = row["question"]
        if self._is_chat(tokenizer):
            messages, text = self._render_chat(self._messages(question, examples), tokenizer)
            token_ids = tokenizer.encode(text, add_special_tokens=False)
        else:
            messages, text = None, self._plain_text(question, examples)
            token_ids = encode_plain(text, tokenizer)
        opened = _OPENED.search(text)
        return Prompt(
            token_ids=token_ids,
            text=text,
            messages=messages,
            columns=row,
            prefill=opened.group() if opened else "",
            source=source,
            row=number,
        )

    def _is_chat(self, tokenizer: Any) -> bool:
        has_template = bool(getattr(tokenizer, "chat_template", None))
        if self.chat and not has_template:
            raise UserError(
                "--data.template.chat is true, but the tokenizer of --model.policy has no chat template; set "
                "--data.template.chat false for plain text, or choose a chat model"
            )
        return has_template if self.chat is None else self.chat

    def _reply(self, example: dict[str, Any]) -> str:
        if self.style == "examples":
            return self.answer_format.show(example["answer"])
        if not example.get("solution"):
            raise UserError(
                "--data.template.style worked_examples needs worked-out solutions, but the first rows of --data.source "
                "have no 'solution'; name its column by --data.source.solution_column, or choose the style examples"
            )
        return self.answer_format.show(example["answer"], example["solution"])

    def _system_text(self, *, with_instruction: bool) -> str:
        parts = [self.system or "", self.answer_format.instruction if with_instruction else ""]
        return "\n\n".join(part for part in parts if part)

    def _after_question(self, *, with_instruction: bool) -> str:
        parts = [
            self.answer_format.step_by_step if self.style == "step_by_step" else "",
            self.answer_format.instruction if with_instruction else "",
        ]
        return " ".join(part for part in parts if part)

    def _messages(self, question: str | list[Message], examples: Sequence[dict[str, Any]]) -> list[Message]:
        in_system = self.answer_format.in_system
        after = self._after_question(with_instruction=not in_system)
        asked = _as_messages(question)
        system = self._system_text(with_instruction=in_system)
        if asked[0]["role"] == "system":
            system = "\n\n".join(part for part in (asked[0]["content"], system) if part)
            asked = asked[1:]
        messages = [{"role": "system", "content": system}] if system else []
        for example in examples:
            shown = [message for message in _as_messages(example["question"]) if message["role"] != "system"]
            messages += [*_append(shown, after), {"role": "assistant", "content": self._reply(example)}]
        return messages + _append(asked, after)

    def _render_chat(self, messages: list[Message], tokenizer: Any) -> tuple[list[Message], str]:
        from jinja2.exceptions import TemplateError

        def render(turns: list[Message]) -> str:
            return tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False, **self.chat_options)

        try:
            return messages, render(messages)
        except TemplateError:
            if messages[0]["role"] != "system" or len(messages) == 1:
                raise
        first = messages[1]
        merged = {**first, "content": f"{messages[0]['content']}\n\n{first['content']}"}
        messages = [merged, *messages[2:]]
        return messages, render(messages)

    def _plain_text(self, question: str | list[Message], examples: Sequence[dict[str, Any]]) -> str:
        step = self._after_question(with_instruction=False)
        paragraphs = [self._system_text(with_instruction=True)]
        for example in examples:
            asked = self._lay_out(example["question"])
            # A layout that ends in white space has placed the reply already.
            paragraphs.append(asked + ("" if asked[-1:].isspace() else " ") + self._reply(example))
        last = self._lay_out(question)
        if step:
            last += ("" if last[-1:].isspace() else " ") + step
        return "\n\n".join([paragraph for paragraph in paragraphs if paragraph] + [last])

    def _lay_out(self, question: str | list[Message]) -> str:
        text = question if isinstance(question, str) else "\n\n".join(message["content"] for message in question)
        return self.layout.replace("{question}", text)


def encode_plain(text: str, tokenizer: Any) -> list[int]:
    """Token ids of a text that the model is to continue, with special tokens in front as the tokenizer adds them.

    A tokenizer may also add an end-of-sequence token, after which no model goes on; and a layout may itself begin with
    the beginning-of-sequence token, which must not come twice.
    """
    bare = tokenizer.encode(text, add_special_tokens=False)
    full = tokenizer.encode(text, add_special_tokens=True)
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            front = full[:start]
            return bare if front and bare[: len(front)] == front else front + bare
    return full


def _as_messages(question: str | list[Message]) -> list[Message]:
    return [{"role": "user", "content": question}] if isinstance(question, str) else list(question)


def _append(messages: list[Message], text: str) -> list[Message]:
    if not text:
        return messages
    *earlier, last = messages
    return [*earlier, {**last, "content": f"{last['content']}\n\n{text}"}]
