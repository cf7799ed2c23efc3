r"""Whether an answer says the same as the gold one.

``compare`` walks the two shapes (``structure``) and asks an *oracle* about the values in them. Its verdict is True,
False or None for "cannot tell": the cheap oracle here knows numbers and words and never does algebra; the one in
``symbolic`` decides the rest in a worker process.

What counts as the same, where there is a choice:

- values are exact; see ``numbers.same_number`` for the two allowances (percent, long decimals of endless fractions);
- units, currency and a name (``x =``) may be missing on either side; degrees may be radians if written with ``\pi``;
- bare lists and sets are unordered and count repeats; a point may be written as a bare list or a vector, not as a set;
- ``x > 5`` is ``(5,\infty)``; an equation equals its multiples; choice letters equal only themselves.

Every decision, with an example and its reason, is in ``experiments/answer_checking/README.md``.
"""

from __future__ import annotations

import re
from fractions import Fraction

from grpo_lightning.rewards.answers.comparison import Oracle, compare
from grpo_lightning.rewards.answers.doubts import is_taken_back
from grpo_lightning.rewards.answers.notation import normal_form
from grpo_lightning.rewards.answers.numbers import read_number, same_number, without_units
from grpo_lightning.rewards.answers.readings import read, read_answer, same_reading
from grpo_lightning.rewards.answers.structure import parse_shape
from grpo_lightning.rewards.answers.units import Unit, parse_unit
from grpo_lightning.rewards.answers.words import as_word

LONGEST_ANSWER = 2_000
"""Characters; a longer answer is right only if its normal form is the gold one."""

_CHOICE = re.compile(r"[(\[]?⟦?[(\[]?(?:(?:[Oo]ption|[Cc]hoice|[Aa]nswer)\s+)?[(\[]?([A-Z])[)\].]?⟧?[)\].]?")
_LOWER_CHOICE = re.compile(r"⟦?\(?([a-j])\)?⟧?")
_CHOICE_WITH_TEXT = re.compile(
    r"(?:\(?⟦?[(\[]?([A-Z])[)\]]⟧?\)?[\s:.]*|⟦([A-Z])[.:)]\s*(?:⟧\s*)?|([A-Z])[.:]\s+)"
    r"((?!(?:or|and|nor|but)\b|[(\[]⟦?[A-Z]⟧?[)\]])\S.*)",
    re.DOTALL,
)
_MORE_CHOICES = re.compile(r"[\W_]*(?:(?:and|or|[A-J])\b[\W_]*)+|.*(?<![A-Za-z}])[(\[]⟦?[A-J]⟧?[)\]].*", re.DOTALL)
"""The text beside a letter that names further letters: ``(A) or (B)``, ``(A) 12 (B) 13``."""
_DEGREE = Unit(Fraction(1), (("degrees", 1),))
_GAP = re.compile(r"(?<!\d)\s+|\s+(?!\d)")
BARE_NUMBER = re.compile(r"-?\d{1,15}(?:\.\d{1,15})?")


class QuickOracle:
    """Numbers, words and identical texts; never any algebra."""

    def same_value(self, gold: str, answer: str) -> bool | None:
        if gold == answer:
            return True
        gold_number, number = read_number(gold), read_number(answer)
        if gold_number is not None and number is not None:
            return same_number(gold_number, number) and _units_agree(gold, answer)
        choice = _same_choice(gold, answer)
        if choice is not None:
            return choice
        gold_word, word = as_word(gold), as_word(answer)
        if gold_word and word:
            if gold_word == word:
                return True
            return False if "⟦" in gold + answer or min(len(gold_word), len(word)) > 3 else None
        if gold_number is not None and ("⟦" in without_units(answer) or word):
            return False
        if not _units_agree(gold, answer):
            return False
        return True if _closed_up(without_units(gold)) == _closed_up(without_units(answer)) else None

    def same_equation(self, gold: tuple[str, str], answer: tuple[str, str], *, directed: bool = False) -> bool | None:
        return True if gold == answer else None

    def same_relation(self, gold: str, answer: str) -> bool | None:
        return True if _closed_up(gold) == _closed_up(answer) else None


def _closed_up(text: str) -> str:
    """Without the spaces that mean nothing: all but those between two digits."""
    return _GAP.sub("", text)


def _units_agree(gold: str, answer: str) -> bool:
    """False if both name known units and these differ; ``readings`` has already compared quantities as a whole."""
    units = []
    for text in (gold, answer):
        unit = text[len(without_units(text)) :].replace("⟦", " ").replace("⟧", " ").strip()
        units.append(_DEGREE if text.endswith("°") else parse_unit(unit) if unit else None)
    if _DEGREE in units and parse_unit("radian") in units:
        return r"\pi" in gold + answer  # 90 degrees may be given as \pi/2 radians, never as 90
    return None in units or _DEGREE in units or units[0] == units[1]


def _same_choice(gold: str, answer: str) -> bool | None:
    """Whether two choice letters agree, each with or without its text: ``B``, ``(B) 12``; None if it is no choice."""
    asked, text = _CHOICE.fullmatch(gold), _CHOICE_WITH_TEXT.fullmatch(gold)
    if asked is None and text is None:
        return None
    letter = asked[1] if asked else next(group for group in text.groups()[:3] if group)  # type: ignore[union-attr]
    found = _CHOICE.fullmatch(answer)
    if found:
        return found[1] == letter
    found = _CHOICE_WITH_TEXT.fullmatch(answer)
    if found:
        if _MORE_CHOICES.fullmatch(found[4]) or is_taken_back(found[4]):
            return False
        return letter in found.groups()[:3] and (text is None or _closed_up(found[4]) == _closed_up(text[4]))
    lower = _LOWER_CHOICE.fullmatch(answer)
    if lower and letter <= "J":
        return lower[1].upper() == letter
    if asked or text is None:
        return False
    number, other = read_number(text[4]), read_number(answer)
    return _closed_up(text[4]) == _closed_up(answer) or (
        number is not None and other is not None and same_number(number, other)
    )


def quick_verdict(gold: str, answer: str) -> bool | None:
    """The verdict where no algebra is needed; None otherwise."""
    return compare_texts(gold, answer, QuickOracle())


def compare_texts(gold: str, answer: str, oracle: Oracle) -> bool | None:
    """Compare two answers as written; ``compare`` says how."""
    if len(answer) > LONGEST_ANSWER + len(gold):
        return False
    if gold == answer:
        return bool(gold.strip())
    if BARE_NUMBER.fullmatch(gold) and BARE_NUMBER.fullmatch(answer):
        return gold == answer or Fraction(gold) == Fraction(answer)
    gold_text, answer_text = normal_form(gold), normal_form(answer)
    if not gold_text or not answer_text:
        return False
    if max(len(gold_text), len(answer_text)) > LONGEST_ANSWER:
        return gold_text == answer_text
    readings = read_answer(gold, gold_text), read_answer(answer, answer_text)
    if readings != (None, None):
        verdict = same_reading(*readings, gold_text, answer_text)
        if verdict is not None:
            return verdict
    if gold_text == answer_text:
        return True
    gold_number, number = read_number(gold_text), read_number(answer_text)
    if gold_number is not None and number is not None:
        return oracle.same_value(gold_text, answer_text)
    return compare(parse_shape(gold_text), parse_shape(answer_text), oracle)


def is_plain(text: str) -> bool:
    """Whether a value can be judged without algebra: a number, a word, a choice letter."""
    readings = read_number(text), read(text), as_word(text), _CHOICE.fullmatch(text)
    return any(reading is not None for reading in readings)


def is_evaluated(gold: str, answer: str) -> bool:
    """Whether an answer to a gold number is a number itself, with nothing left to work out; True for other golds."""
    if read_number(normal_form(gold).rpartition("=")[2]) is None:
        return True
    text = normal_form(answer).rpartition("=")[2].strip()
    number = read_number(text)
    is_quotient = "/" in without_units(text) or "\\frac" in without_units(text)
    return number is not None and not (is_quotient and number.value.denominator == 1)
