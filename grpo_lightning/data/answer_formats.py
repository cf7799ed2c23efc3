"""How an answer is to be laid out: the instruction that asks for it, and examples that show it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

AnswerFormatName = Literal["think_answer", "reasoning_answer", "reasoning_choice", "boxed", "hashes", "chinese", "none"]

_HASHES = re.compile(r"\s*####[^\n]*\s*\Z")


@dataclass(frozen=True, kw_only=True)
class AnswerFormat:
    """One way to lay out an answer; ``{work}`` and ``{answer}`` stand for the two parts."""

    instruction: str
    """What the prompt says."""
    answer: str
    """An answer alone, as an example shows it."""
    worked: str
    """A worked-out answer, as an example shows it."""
    marker: str = ""
    """A solution that already holds this text is laid out already and is shown as it is."""
    in_system: bool = False
    """True if the instruction speaks of the whole reply and belongs in the system message, not after the question."""
    step_by_step: str = "Let's think step by step."
    """What the step-by-step style adds."""

    def show(self, answer: str, solution: str | None = None) -> str:
        """An example's reply: the answer alone, or worked out if ``solution`` is given."""
        if solution is None:
            return _fill(self.answer, answer=answer)
        if self.marker and self.marker in solution:
            return solution
        # GSM8K's and the running totals' solutions end in "#### n", which is itself one of the layouts.
        return _fill(self.worked, answer=answer, work=_HASHES.sub("", solution).strip())


def _fill(layout: str, **parts: str) -> str:
    """Not ``str.format``: the layouts hold LaTeX braces. One pass, so that a part may hold a placeholder's name."""
    return re.sub("|".join(rf"\{{{name}\}}" for name in parts), lambda match: parts[match.group()[1:-1]], layout)


def continuation(prefill: str, reply: str) -> str:
    """The reply as a model would write it where the prompt's template has opened ``<think>`` or ``<reasoning>``."""
    opened = prefill.strip()
    if not opened or "</" in opened:
        return reply
    if reply.startswith(opened):
        return reply.removeprefix(opened).lstrip()
    return f"\n{opened.replace('<', '</')}\n{reply}"


ANSWER_FORMATS: dict[str, AnswerFormat] = {
    "think_answer": AnswerFormat(
        instruction="You solve the user's problem. First work it out in your mind, inside <think> </think> tags; then "
        "give the final answer inside <answer> </answer> tags, like this: <think> your reasoning </think> "
        "<answer> your answer </answer>.",
        answer="<answer>{answer}</answer>",
        worked="<think>\n{work}\n</think>\n<answer>\n{answer}\n</answer>",
        in_system=True,
    ),
    "reasoning_answer": AnswerFormat(
        # The line break at the end belongs to the layout: ``reasoning_format_strict`` wants it, as published.
        instruction="Reply in exactly this layout, with a line break at the end:\n<reasoning>\n...\n</reasoning>\n"
        "<answer>\n...\n</answer>\n",
        answer="<answer>\n{answer}\n</answer>\n",
        worked="<reasoning>\n{work}\n</reasoning>\n<answer>\n{answer}\n</answer>\n",
        in_system=True,
    ),
    "reasoning_choice": AnswerFormat(
        instruction="Choose one of the answers A, B, C and D. Reply in exactly this layout, with the letter of your "
        "choice in the box:\n<reasoning>\n...\n</reasoning>\n<answer>\n\\boxed{letter}\n</answer>",
        answer="<answer>\n\\boxed{{answer}}\n</answer>",
        worked="<reasoning>\n{work}\n</reasoning>\n<answer>\n\\boxed{{answer}}\n</answer>",
        marker="<answer>",
        in_system=True,
    ),
    "boxed": AnswerFormat(
        instruction="Write the final answer inside \\boxed{}.",
        answer="\\boxed{{answer}}",
        worked="{work}\n\\boxed{{answer}}",
        marker="\\boxed",
    ),
    "hashes": AnswerFormat(
        instruction="Write the final answer on a last line of its own, after ####.",
        answer="#### {answer}",
        worked="{work}\n#### {answer}",
        marker="####",
    ),
    "chinese": AnswerFormat(
        instruction="请在最后一行按“### 答案: 结果”的格式写出最终答案。",
        answer="### 答案: {answer}",
        worked="{work}\n### 答案: {answer}",
        marker="### 答案",
        step_by_step="请一步一步地推理。",
    ),
    "none": AnswerFormat(instruction="", answer="{answer}", worked="{work}\n{answer}"),
}
"""By the name that ``--data.template.answer_format`` takes."""
