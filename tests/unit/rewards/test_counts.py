"""Tags counted by hand."""

from __future__ import annotations

from grpo_lightning.rewards import tag_count, xml_count, xml_count_as_published, xml_count_three_tags
from tests.unit.rewards.trl_form import check

GOOD = "<reasoning>\na\n</reasoning>\n<answer>\n4\n</answer>\n"  # 48 characters


def test_four_tags():
    check(
        xml_count,
        {
            GOOD: 0.5,
            GOOD.rstrip(): 0.5,
            GOOD + "tail": 0.492,  # 4 after "</answer>⏎", and 5 - 1 after "</answer>"
            GOOD.rstrip() + "tail": 0.497,  # no "⏎</answer>⏎"; 4 - 1
            "<reasoning>\n" + GOOD: 0.375,
            GOOD.replace("\n</reasoning>", "</reasoning>"): 0.375,
            "<answer>\n4\n</answer>": 0.125,  # the opening tag has no line break in front
            GOOD + "x" * 500: 0.5 - 0.5 - 0.5,  # 500 after the one, 501 - 1 after the other
            GOOD + GOOD: 0.0,
            "": 0.0,
        },
    )


def test_four_tags_as_published():
    assert len(GOOD) == 48
    check(
        xml_count_as_published,
        {
            GOOD: 0.5,
            GOOD + "tail": 0.492,
            GOOD.rstrip(): 0.5 - 0.047 + 0.001,  # split() finds no "⏎</answer>⏎" and returns the whole text
            "<reasoning>\na\n</reasoning>\n<answer>\n4": 0.375 - 0.037,
            GOOD + GOOD: 0.0,
            "": 0.0,
        },
    )


def test_three_tags():
    check(
        xml_count_three_tags,
        {
            GOOD: 0.375,
            GOOD.rstrip(): 0.375,
            GOOD + "tail": 0.371,
            GOOD + "x" * 500: 0.0,
            "<reasoning>\na\n</reasoning>\n": 0.25,
            GOOD + GOOD: 0.0,
            "<reasoning>\n\n</answer>\n</answer>\n12": 0.125 - 0.002,  # twice: no credit, still a tail
            "": 0.0,
        },
    )


def test_think_tags():
    good = "<think>\na\n</think>\n<answer>\n4\n</answer>"
    check(
        tag_count,
        {
            good: 1.0,
            good + " and more": 1.0,
            good.replace("<think>\n", "<think>"): 0.75,
            good.replace("</think>\n", "</think>"): 0.5,  # the answer's opening tag loses its line break, too
            good + good: 0.0,
            "<think>\na": 0.25,
            "": 0.0,
        },
    )
