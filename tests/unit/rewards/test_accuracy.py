r"""Whole verdicts: completion and gold in, score out. The table holds one block per kind of mistake."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from grpo_lightning.rewards import accuracy, gold_is_parsable, gsm8k_accuracy, math_accuracy
from grpo_lightning.rewards.accuracy import GSM8KAccuracy, MathAccuracy, golds_are_parsable, gsm8k_gold
from grpo_lightning.rewards.answers.equivalence import quick_verdict
from grpo_lightning.rewards.isolation.pool import Outcome

SHARED = Path(__file__).resolve().parents[3].parent / "shared"

# gold: answers that are right | answers that are wrong
TABLE = {
    "2340": [[r"2{,}340", "2,340", r"2\,340", r"2.34\times10^3", "2340.00"], ["2,34", "23,40", "234", "2340.5"]],
    "45000": [[r"4.5\times10^4", "4.5E4", r"45\text{ thousand}"], [r"4.5\times 10^{-4}", r"45", r"4.5\times 10^5"]],
    "52": [[r"\$52.00", "$52", r"52\text{ dollars}", r"\text{USD }52"], [r"\$5.20", "520"]],
    "30": [
        [r"30\ \text{m}^2", "30 hours", r"30~\mathrm{kg}", "30 cm", r"30 \text{ miles per hour}", "30 m/s"],
        ["30x", "300", "30 or 31", r"30\pi"],
    ],
    r"8\text{ feet}": [["8", r"8\text{ ft}"], ["64", r"\text{feet}"]],
    "40\\%": [["40", r"40\text{ percent}", "0.4"], ["0.4\\%", "400\\%"]],
    "45^\\circ": [["45", "45 degrees", r"45\degree", r"\frac{\pi}{4}"], ["-45", "1", r"\frac{\pi}{3}"]],
    r"\frac{5}{8}": [
        [r"\dfrac58", r"\tfrac{5}{8}", "0.625", ".625", "5/8", r"{5\over 8}", r"\frac{10}{16}", r"5 \div 8"],
        [r"\frac{8}{5}", "58", r"\frac{5}{8}y", "5", "0.63"],
    ],
    r"\frac{11}{4}": [[r"2\frac34", "2 3/4", "2.75"], [r"\frac{23}{4}", r"2\cdot\frac34", "2"]],
    "3": [[r"\sqrt{9}", r"\frac{6}{2}"], ["2 3/4", "3 3/4", "3.0000001"]],
    r"-2\frac34": [["-2.75", r"-\frac{11}{4}"], ["-1.25", "2.75"]],
    r"\frac{1}{7^{60}}": [["7^{-60}"], [r"\frac{1}{7^{61}}", "0"]],
    "3^{90}": [[r"9^{45}"], ["3^{90}+1", "3^{90}-2"]],
    r"\sqrt3": [["3^{1/2}", "1.732051"], ["1.73", "1.732052", "3"]],
    "9": [[r"\boxed{9}", r"\mathbf{9}", r"{9}", r"\color{red}{9}", r"\text{nine}"], [r"\text{ninety}", "-9"]],
    "-8": [["\u22128", "\u20138", "- 8", r"{-}8", r"-\left(8\right)"], ["8", "-(-8)"]],
    "12": [
        ["n=12", r"3\cdot 4=12", r"n = 3\cdot 4 = 12", "P(3)=12", r"\text{Total} = 12", "12=n", "|AB|=12"],
        ["n=13", "n<12", r"n \ge 12", r"n=12 \text{ or } n=3", r"n\neq 12", r"12 \le n \le 13", "13=12", "12=13"],
    ],
    "11": [[r"\theta=11", r"\max=11"], [r"\theta=12"]],
    "7": [[r"\text{7 hours}", r"\left.7\right."], [r"7\ldots", "7..."]],
    r"\text{2 hours}": [["2"], ["3"]],
    "n=12": [["12", "n = 12"], ["n=21", "n=12, m=3"]],
    "3x-4y=7": [["3x-4y-7=0", "6x-8y=14", "4y = 3x - 7"], ["4x-3y=7", "3x-4y=8", "7"]],
    "y=3x-2": [["3x-y=2", "y = -2 + 3x", "3x-2"], ["y=3x+2", "3x+y=2"]],
    r"\text{(D)}": [["D", r"\textbf{(D)}", r"\text{Option D}", r"\text{(D) } 15"],
        ["(E)", "C, D", "CD", r"\text{C and D}"]],
    "B,D": [["B,D", "B, D", r"\text{D and B}"], ["B", "B,C,D"]],
    r"\{2,4,6\}": [[r"\{6,2,4\}", "2,4,6"], [r"\{2,4\}", r"\{2,4,6,8\}", r"\{2,4,7\}"]],
    "-3,4": [["4,-3", r"x=-3 \text{ or } x=4", "x=-3,4", "-3 or 4"], ["-3", "3,-4", "-3,-3,4"]],
    r"2 \pm \sqrt{3}": [[r"2-\sqrt3, 2+\sqrt3"], [r"2+\sqrt3", r"2\pm\sqrt{5}"]],
    "(4,-1)": [
        [r"\left(4,\,-1\right)", "(x,y)=(4,-1)", "(4.0,-1)", r"\begin{pmatrix}4\\-1\end{pmatrix}", "x=4, y=-1"],
        ["(-1,4)", "(4,-1,0)", "(4,1)", r"\{4,-1\}", "4"],
    ],
    "(0,1]": [[r"\left(0,1\right]", r"0<x\le 1", r"x \in (0,1]"], ["(0,1)", "[0,1)", r"0\le x\le 1"]],
    r"(-\infty,2)\cup(2,\infty)": [[r"x\ne 2", r"(2,\infty)\cup(-\infty,2)", r"x<2 \text{ or } x>2"],
        [r"x\ne 3", r"x>2"]],
    r"\begin{pmatrix}1&2\\3&4\end{pmatrix}": [
        [r"\begin{bmatrix}1&2\\3&4\end{bmatrix}", r"\left[\begin{array}{cc}1&2\\3&\frac82\end{array}\right]"],
        [r"\begin{pmatrix}1&3\\2&4\end{pmatrix}", r"\begin{pmatrix}1&2\end{pmatrix}", "1,2,3,4"],
    ],
    r"\begin{pmatrix}1\\2\end{pmatrix}": [
        [r"\frac12\begin{pmatrix}2\\4\end{pmatrix}"],
        [r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}2\\1\end{pmatrix}"],
    ],
    r"5\sqrt{3}": [[r"\sqrt{75}", r"5\sqrt3", "5*sqrt(3)", r"\frac{15}{\sqrt3}"], ["5", "53", r"5\sqrt[3]{3}"]],
    "x^2-4": [["(x-2)(x+2)", "-4+x^2"], ["(x-2)^2", "x^2", "x^2+4"]],
    r"\frac{x+1}{2}": [["0.5x+0.5", r"\frac12(x+1)"], [r"\frac{x}{2}+1", "x+1"]],
    r"\frac{1}{\sqrt{3m}}": [[r"\sqrt{1/(3m)}"], [r"\sqrt{3m}"]],
    "x": [["x"], [r"\sqrt{x^2}", "|x|", "y"]],
    "4-i": [["4-1i", "-i+4"], ["4+i", "4"]],
    r"\binom{6}{2}": [["15"], ["16"]],
    r"\sin 30^\circ": [["0.5", r"\cos 60^\circ"], ["30"]],
    "0": [["0.00", "-0"], [r"\emptyset", r"\text{none}", r"\text{undefined}"]],
    r"\emptyset": [[r"\varnothing", r"\text{no solution}"], [r"\{0\}", "0"]],
    r"\text{Evelyn}": [["Evelyn", r"\text{evelyn}"], [r"\text{Navin}", "E", "5"]],
    "52_8": [["52_{8}", "52"], ["53_8", "52_9", "42"]],
    "3:4": [["3:4"], ["4:3"]],
}  # fmt: skip
CASES = [
    (gold, answer, float(right))
    for gold, (good, bad) in TABLE.items()
    for right, answers in ((1, good), (0, bad))
    for answer in answers
]


@pytest.fixture(scope="module")
def verdicts():
    """All verdicts of the table in one call, as a rollout would ask for them."""
    scores = math_accuracy(
        completions=[f"The result is $\\boxed{{{answer}}}$." for _, answer, _ in CASES],
        answer=[gold for gold, _, _ in CASES],
    )
    return {(gold, answer): score for (gold, answer, _), score in zip(CASES, scores, strict=True)}


@pytest.mark.parametrize(("gold", "answer", "expected"), CASES)
def test_math_accuracy(verdicts, gold, answer, expected):
    assert verdicts[gold, answer] == expected


def test_plain_answers_need_no_algebra():
    for gold, answer in (("18", "18.00"), ("3/4", r"\frac{3}{4}"), (r"\sqrt{2}", r"\sqrt2"), ("x^2+1", "x^2 + 1")):
        assert quick_verdict(gold, answer) is True
    for gold, answer in (("18", "81"), ("A", "ABCD"), ("5", "x>5"), ("(1,2)", "(2,1)"), (r"\text{even}", "odd")):
        assert quick_verdict(gold, answer) is False
    assert quick_verdict("3", r"\sqrt{9}") is None


@pytest.mark.parametrize(
    "gold", ["5", r"\frac{1}{2}", r"\text{(C)}", "A", r"\text{east}", "2,3", "x=5", r"(3,4]", "y=-2x"]
)
def test_readable_golds(gold):
    assert gold_is_parsable(gold)


@pytest.mark.parametrize("gold", ["", "  ", r"\frac{1}{", "x^2+", "((", r"\text{a} + \frac"])
def test_an_unreadable_gold_is_missing_and_never_pays(gold):
    assert not gold_is_parsable(gold)
    assert math_accuracy(completions=[f"\\boxed{{{gold}}}", "\\boxed{5}"], answer=[gold, "5"]) == [None, 1.0]


@pytest.mark.parametrize(
    ("completion", "gold", "expected"),
    [
        ("#### 18", "18", 1.0),
        ("####18", "18", 1.0),
        ("#### 18.00", "18", 1.0),
        ("#### $18 per day", "18", 1.0),
        ("#### **18** dollars", "18", 1.0),
        ("#### 180", "18", 0.0),
        ("#### 12 + 6 = 18", "18", 1.0),
        ("#### 18 (eighteen)", "18", 1.0),
        ("#### \u22123", "-3", 1.0),
        ("#### 1,234", "She has <<1000+234=1234>>1234.\n#### 1,234", 1.0),
        ("#### 23\n#### 24", "24", 1.0),
        ("#### 23\n#### 24", "23", 0.0),
        (r"so \boxed{18}", "18", 1.0),
        ("The answer is 18.", "18", 1.0),
        ("It costs 18.", "18", 1.0),
        ("It costs 18 for 3 days.", "18", 0.0),
        ("<think>#### 18</think>", "18", 0.0),
        ("", "18", 0.0),
        ("", "0", 0.0),
        ("#### 18", "eighteen", None),
        ("#### 18", "", None),
    ],
)
def test_gsm8k_accuracy(completion, gold, expected):
    assert gsm8k_accuracy(completions=[completion], answer=[gold]) == [expected]
    assert gsm8k_accuracy(completions=[[{"role": "assistant", "content": completion}]], answer=[gold]) == [expected]


def _rows(path):
    if not path.exists():
        pytest.skip(f"{path.name} is not here")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_strict_cases():
    rows = [row for row in _rows(SHARED / "cases" / "answers.jsonl") if row["kind"] == "strict"]
    scores = math_accuracy(completions=[row["completion"] for row in rows], answer=[row["gold"] for row in rows])
    assert [row["id"] for row, score in zip(rows, scores, strict=True) if score != row["verdict"]] == []


def test_gsm8k_golds_accept_themselves_and_refuse_the_next_number():
    golds = [row["answer"] for row in _rows(SHARED / "data" / "gsm8k_test.jsonl")]
    assert gsm8k_accuracy(completions=golds, answer=golds) == [1.0] * len(golds)
    for offset, expected in ((0, 1.0), (1, 0.0)):
        said = [f"#### {int(gsm8k_gold(gold)) + offset}" for gold in golds]
        assert gsm8k_accuracy(completions=said, answer=golds) == [expected] * len(golds)


def test_math500_golds_accept_themselves_and_refuse_their_neighbours():
    golds = [row["answer"] for row in _rows(SHARED / "data" / "math500.jsonl")]
    said = [f"so $\\boxed{{{gold}}}$" for gold in golds]
    assert math_accuracy(completions=said, answer=golds) == [1.0] * len(golds)
    shifted = math_accuracy(completions=said[-1:] + said[:-1], answer=golds)
    paid = [(golds[i], golds[i - 1]) for i, score in enumerate(shifted) if score]
    assert paid == [("x=5", "5"), ("7", "7"), ("3", "3")]


def _near_misses(gold):
    """Answers close to a gold one that are wrong: one more, the other sign, swapped, cut."""
    if re.fullmatch(r"-?\d+", gold):
        yield str(int(gold) + 1)
        yield str(int(gold) - 1)
        if int(gold):
            yield gold[1:] if gold.startswith("-") else f"-{gold}"
            yield f"{gold}0"
    fraction = re.fullmatch(r"\\d?frac\{(\d+)\}\{(\d+)\}", gold)
    if fraction and fraction[1] != fraction[2]:
        yield rf"\frac{{{fraction[2]}}}{{{fraction[1]}}}"
        yield rf"\frac{{{int(fraction[1]) + 1}}}{{{fraction[2]}}}"
        yield f"-{gold}"
    pair = re.fullmatch(r"(?:\\left)?\( *(-?[^(),]+), *(-?[^(),]+?) *(?:\\right)?\)", gold)
    if pair and pair[1] != pair[2]:
        yield f"({pair[2]},{pair[1]})"
        yield f"({pair[1]},{pair[2]},0)"
        yield pair[1]
    if re.search(r"\\sqrt|\\pi|[a-z]\^", gold) and "=" not in gold and "," not in gold:
        yield f"{gold}+1"
        yield f"2({gold})"
    if re.fullmatch(r"[^,]+(?:,[^,]+)+", gold) and "(" not in gold and not re.fullmatch(r"[\d,\\!]+", gold):
        yield gold.rpartition(",")[0]


def test_math500_refuses_near_misses():
    golds = [row["answer"] for row in _rows(SHARED / "data" / "math500.jsonl")]
    assert all(golds_are_parsable(golds))
    pairs = [(gold, miss) for gold in golds for miss in _near_misses(gold)]
    assert len(pairs) >= 500
    scores = math_accuracy([f"\\boxed{{{miss}}}" for _, miss in pairs], [gold for gold, _ in pairs])
    assert [pair for pair, score in zip(pairs, scores, strict=True) if score != 0.0] == []


@pytest.mark.parametrize(
    ("gold", "answer", "expected"),
    [
        ("64", "64", 1.0),
        ("64", "64.0", 1.0),
        ("64", "64 dollars", 1.0),
        ("64", "x = 64", 1.0),
        ("64", "48+16=64", 1.0),
        ("64", "sixty-four", 1.0),
        ("64", r"6.4\times 10^1", 1.0),
        ("64", "48+16", 0.0),
        ("64", "2^6", 0.0),
        ("64", r"8\cdot 8", 0.0),
        ("64", r"\sqrt{4096}", 0.0),
        ("64", r"\frac{128}{2}", 0.0),
        ("64", "128/2", 0.0),
        ("24", "4!", 0.0),
        (r"\frac{3}{4}", "0.75", 1.0),
        (r"\frac{3}{4}", "3/4", 1.0),
        (r"\frac{7}{3}", r"2\frac{1}{3}", 1.0),
        (r"\frac{3}{4}", r"\frac{1}{2}+\frac{1}{4}", 0.0),
        (r"\sqrt{12}", r"2\sqrt{3}", 1.0),
        ("x+1", "1+x", 1.0),
    ],
)
def test_unevaluated_restatements_are_refused_on_request(gold, answer, expected):
    assert MathAccuracy(evaluated_only=True)([f"\\boxed{{{answer}}}"], [gold]) == [expected]
    assert MathAccuracy()([f"\\boxed{{{answer}}}"], [gold]) == [1.0]


@pytest.mark.parametrize(
    ("completion", "strict", "flexible"),
    [
        ("6*3 is 18\n#### 18", 1.0, 1.0),
        ("#### 1,8", 1.0, 1.0),
        ("#### $18.00", 1.0, 1.0),
        ("so 18", 0.0, 1.0),
        ("so 18 of 20", 0.0, 0.0),
        ("#### 18\nThat is 9 each.", 1.0, 0.0),
        ("####18", 0.0, 1.0),
        ("#### 18." + " " * 400, 0.0, 0.0),
        ("no number .", 0.0, 0.0),
    ],
)
def test_the_published_forms_of_gsm8k(completion, strict, flexible):
    gold = "6*3=<<6*3=18>>18\n#### 18"
    assert GSM8KAccuracy()([completion], [gold]) == [strict]
    assert GSM8KAccuracy(flexible=True)([completion], [gold]) == [flexible]
    assert GSM8KAccuracy()([completion], ["none"]) == [None]


def test_what_was_late_or_unreadable_is_counted(monkeypatch):
    class Late:
        def run(self, function, rows, **_):
            return [Outcome(failure="timeout") for _ in rows]

    monkeypatch.setattr(accuracy, "SHARED_POOL", Late())
    counts = {}
    said = ["\\boxed{9^{9^{9}}}", "\\boxed{9^{9^{9}}}", "\\boxed{5}", "\\boxed{5}"]
    scores = math_accuracy(said, ["7", "7", "5", r"\frac{2}{"], log_count=counts.__setitem__)
    assert scores == [0.0, 0.0, 1.0, None]
    assert counts == {"timeouts": 2, "unreadable_golds": 1}


@pytest.mark.parametrize("reward", [gsm8k_accuracy, GSM8KAccuracy(), GSM8KAccuracy(flexible=True)])
def test_golds_of_gsm8k_are_read_and_the_unreadable_counted(reward):
    counts = {}
    golds = ["Half of 144.\n#### 72", "1,234", "many"]
    scores = reward(completions=["#### 72", "#### 5", "#### 5"], answer=golds, log_count=counts.__setitem__)
    assert (scores, counts) == ([1.0, 0.0, None], {"unreadable_golds": 1})
    assert [reward.gold_reader(gold) for gold in golds] == ["72", "1234", "many"]


def test_correctness_rewards_say_what_a_right_answer_earns():
    for reward in (math_accuracy, gsm8k_accuracy, MathAccuracy(), GSM8KAccuracy()):
        assert (reward.best, reward.inline) == (1.0, True)
