"""Final answers in a normal form, so that a majority vote can count equal answers as equal strings."""

from __future__ import annotations

from grpo_lightning.rewards.accuracy import number_of
from grpo_lightning.rewards.answers.extraction import final_answer
from grpo_lightning.rewards.answers.notation import normal_form
from grpo_lightning.rewards.answers.numbers import Number, parse_number


def formula_answer(completion: str) -> str | None:
    r"""The final answer in one spelling: numbers as exact fractions, formulas with one spelling for each notation.

    ``\dfrac34``, ``{3 \over 4}`` and ``0.75`` give ``3/4``. No algebra is done: ``x+1`` and ``1+x`` stay two answers.
    """
    answer = final_answer(completion)
    if not answer:
        return None
    normal = normal_form(answer)
    number = parse_number(normal)
    return ("".join(normal.split()) if number is None else _written(number)) or None


def number_answer(completion: str) -> str | None:
    """The number of the final answer, bare: ``#### $1,234.00 in all`` gives ``1234``."""
    number = number_of(final_answer(completion))
    return None if number is None else _written(number)


def _written(number: Number) -> str:
    return f"{number.value}%" if number.percent else str(number.value)
