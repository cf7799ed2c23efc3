"""A part of the table of answers, and what must hold for any answer at all."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_lightning.rewards.answers.equivalence import quick_verdict
from grpo_lightning.rewards.answers.extraction import final_answer
from grpo_lightning.rewards.answers.readable import is_readable
from grpo_lightning.rewards.answers.symbolic import is_readable as is_readable_with_parser

sys.path.append(str(Path(__file__).parent))

from table import table_cases, wrong_verdicts

MARKUP = r"\boxed{ \frac \sqrt \text{ } { ( ) [ ] , ; : = < > \le \pm ^ _ \\ & $ % ° #### <answer> </answer> </think>"
WORDS = (
    r"\begin{pmatrix} \end{pmatrix} \cup \in \infty x i j 1 2.5 -3 1/2 and or hours cm p.m. \pmod seven − ² ½ √ 答案"
)
PIECES = st.sampled_from([*MARKUP.split(), *WORDS.split()])
TEXTS = st.one_of(st.text(max_size=60), st.lists(PIECES, max_size=25).map("".join), st.lists(PIECES).map(" ".join))
NUMBERS = st.one_of(
    st.integers(-10_000, 10_000).map(str),
    st.decimals(-100, 100, places=3).map(str),
    st.tuples(st.integers(-50, 50), st.integers(1, 50)).map(lambda pair: rf"\frac{{{pair[0]}}}{{{pair[1]}}}"),
    st.tuples(st.integers(0, 50), st.integers(1, 50)).map(lambda pair: f"{pair[0]}/{pair[1]}"),
)
GROUPS = st.lists(NUMBERS, min_size=2, max_size=4).flatmap(
    lambda items: st.sampled_from([",".join(items), rf"\{{{','.join(items)}\}}", f"({','.join(items)})"])
)


def test_part_of_the_table():
    assert wrong_verdicts(table_cases()[::20]) == []


@given(TEXTS, TEXTS)
@settings(max_examples=200, deadline=None)
def test_any_texts_have_a_verdict(gold, text):
    answer = final_answer(text)
    assert answer is None or answer
    assert quick_verdict(gold, text) in (True, False, None)
    assert is_readable(gold, lambda _: False) in (True, False)


@given(st.one_of(NUMBERS, GROUPS), st.one_of(NUMBERS, GROUPS))
@settings(max_examples=200, deadline=None)
def test_numbers_sets_and_points_are_symmetric(left, right):
    assert quick_verdict(left, right) == quick_verdict(right, left)
    assert quick_verdict(left, left) is True


@given(st.one_of(NUMBERS, GROUPS), st.sampled_from([" ", r"\,", r"\ ", "  ", "~"]))
@settings(max_examples=100, deadline=None)
def test_spaces_and_prose_around_change_nothing(answer, space):
    assert quick_verdict(answer, f"{space}{answer}{space}") is True
    assert quick_verdict(answer, answer.replace(",", f",{space}")) is True or "," not in answer
    for text in (
        f"We count. So $\\boxed{{{answer}}}$ it is, of 17.",
        f"Some 12 words.\n<answer>{answer}</answer>",
        f"#### {answer}",
        f"The answer is ${answer}$.",
    ):
        found = final_answer(text)
        assert found is not None
        assert quick_verdict(answer, found) is True


@pytest.mark.parametrize(
    "piece",
    [
        "m/s ",
        "⟦a⟧",
        "hundred ",
        "2 hours ",
        r"\text{a}",
        r"x\ne1,",
        "_{",
        r"\, ",
        "½",
        "1:1",
        "(1,2),",
        "a, ",
        "answer ",
    ],
)
def test_time_grows_with_length_only(piece):
    for length in (200, 1_900, 100_000):
        text = (piece * (length // len(piece) + 1))[:length]
        for answer in (text, f"1{text}", f"({text})", f"x={text}1"):
            start = time.perf_counter()
            quick_verdict("7", answer)
            quick_verdict("(1,2)", answer)
            is_readable(answer[:2_000], lambda _: False)
            assert time.perf_counter() - start < 2.0


def test_what_is_found_readable_the_parser_reads():
    for gold in (
        r"\frac{1}{2}+x",
        r"2\sqrt{3}\text{ cm}",
        r"\sin^2 x",
        r"\binom{5}{2}",
        "x_1+x_2",
        "|x|",
        "5!",
        "n^{2}",
    ):
        assert is_readable(gold, lambda _: False)
        assert is_readable_with_parser(gold)
    for gold in (r"\frac{1}{", "x^2+", "((", "3 +", r"\sqrt{"):
        assert not is_readable(gold, lambda _: False)
