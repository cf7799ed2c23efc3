"""Prompts of the embedded task that show examples."""

from __future__ import annotations

from grpo_lightning.data import PromptTemplate
from grpo_lightning.data.answer_formats import AnswerFormat
from grpo_lightning.data.templates import Style


class BareTemplate(PromptTemplate):
    """``PromptTemplate`` without a word that the embedded task's vocabulary lacks: examples end in ``#### 18``.

    Args:
        style: ``direct``, ``examples`` or ``worked_examples``. Not ``step_by_step``: of its sentence the vocabulary has
            not one word.
        examples: number of examples.
    """

    def __init__(self, *, style: Style = "direct", examples: int = 2) -> None:
        super().__init__(chat=False, answer_format="none", style=style, examples=examples, layout="{question}")
        self.answer_format = AnswerFormat(
            instruction="", answer="#### {answer}", worked="{work}#### {answer}", marker="####"
        )
