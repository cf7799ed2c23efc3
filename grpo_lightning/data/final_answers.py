"""Final answers in a normal form, so that a majority vote can count equal answers as equal strings."""

from __future__ import annotations

import re

from grpo_lightning.rewards.extraction import final_answer
from grpo_lightning.rewards.notation import normal_form

_NUMBER = re.compile(r"-?(?:\d[\d,]*)?\.?\d+")
_DECIMAL = re.compile(r"(-?)0*(\d*)(?:\.(\d*?)0*)?")


def formula_answer(completion: str) -> str | None:
    r"""The final answer with one spelling for each notation: ``\dfrac34`` and ``{3 \over 4}`` give ``\frac{3}{4}``.

    Numbers lose needless zeros and thousands marks; nothing else is evaluated, so ``1/2`` and ``0.5`` stay two answers.
    """
    answer = final_answer(completion)
    normal = normal_form(answer) if answer else ""
    return (_bare_number(normal) or normal) or None


def number_answer(completion: str) -> str | None:
    """The first number of the final answer, bare: ``#### $1,234.00 in all`` gives ``1234``."""
    answer = final_answer(completion)
    found = _NUMBER.search(normal_form(answer)) if answer else None
    return _bare_number(found.group()) if found else None


def _bare_number(text: str) -> str | None:
    match = _DECIMAL.fullmatch(text.replace(",", "") if re.fullmatch(r"-?\d{1,3}(,\d{3})+(\.\d+)?", text) else text)
    if match is None or not re.search(r"\d", text):
        return None
    sign, whole, part = match.group(1), match.group(2) or "0", match.group(3)
    number = f"{whole}.{part}" if part else whole
    return number if number == "0" else sign + number
