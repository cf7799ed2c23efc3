from __future__ import annotations

import pytest

from grpo_lightning.rewards.answers.notation import normal_form
from grpo_lightning.rewards.answers.shapes import Equation, Group, Matrix, Pieces, Relation, Value
from grpo_lightning.rewards.answers.structure import parse_shape


def shape(written):
    return parse_shape(normal_form(written))


def group(kind, *texts):
    return Group(kind, tuple(Value(text) for text in texts))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("1,250", Value("1,250")),
        ("3,5,7", group("list", "3", "5", "7")),
        ("3, 5, and 7", group("list", "3", "5", "7")),
        (r"14,27,\text{ and }63", group("list", "14", "27", "63")),
        ("k=3,5,8", group("list", "3", "5", "8")),
        (r"\{1,2\}", group("set", "1", "2")),
        ("(1,2)", group("tuple", "1", "2")),
        (r"\left(1,\,2\right)", group("tuple", "1", "2")),
        (r"\langle 1,2\rangle", group("tuple", "1", "2")),
        ("(0,1]", group("(]", "0", "1")),
        ("[0,1]", group("[]", "0", "1")),
        (r"2 < x \le 5", group("(]", "2", "5")),
        (r"5 \ge x > 2", group("(]", "2", "5")),
        ("x>5", group("tuple", "5", r"\infty")),
        (r"x \in [-2,7]", group("[]", "-2", "7")),
        (r"\pm 3", group("list", "3", "-3")),
        (r"1 \mp x", group("list", "1 -x", "1 +x")),
        (r"\emptyset", group("set")),
        (r"x \ne 5", Group("union", (group("tuple", r"-\infty", "5"), group("tuple", "5", r"\infty")))),
        (r"\mathbb{R}", group("tuple", r"-\infty", r"\infty")),
        (r"\{x \mid x < 2\}", group("tuple", r"-\infty", "2")),
        (r"x \ge 2 \text{ and } x < 5", group("[)", "2", "5")),
        (r"3\hat{i} - \mathbf{j}", group("tuple", "3", "-1")),
        (r"\begin{cases}2\\3\end{cases}", group("list", "2", "3")),
        ("P(2,3)", group("tuple", "2", "3")),
        ("x+y<3+z", Relation("x+y<3+z", ("x+y", "3+z"), ("<",))),
        ("c>b>a", Relation("a<b<c", ("a", "b", "c"), ("<", "<"))),
        (r"y \ge 2x+1", Relation("2x+1\\le y", ("2x+1", "y"), (r"\le",))),
        (r"x<1 \text{ and } x>3", Relation("x<1 ⟦and⟧ x>3")),
        (r"\begin{aligned}x&=1\\y&=2\end{aligned}", shape("x=1,y=2")),
        (r"\frac{1}{2}", Value(r"\frac{1}{2}")),
    ],
)
def test_shapes(written, expected):
    assert shape(written) == expected


def test_equations_know_whether_they_name_a_value():
    for named in ("x=5", "f(2)=5", r"\text{Area}=5", "a_1=5", r"\angle ABC=5", "5=x"):
        found = shape(named)
        assert isinstance(found, Equation)
        assert found.names_its_value
        assert found.value == Value("5")
    assert not shape("2x+3y=6").names_its_value


def test_matrices():
    rows = ((Value("1"), Value("2")), (Value("3"), Value("4")))
    for written in (
        r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
        r"\begin{bmatrix} 1 & 2 \\ 3 & 4 \\ \end{bmatrix}",
        r"\left(\begin{array}{cc}1&2\\3&4\end{array}\right)",
    ):
        assert shape(written) == Matrix(rows)


def test_unions_and_nesting():
    assert shape(r"(0,9) \cup (9,36)") == Group("union", (group("tuple", "0", "9"), group("tuple", "9", "36")))
    assert shape(r"\{1\pm\sqrt{5},-2\}") == group("set", r"1+\sqrt{5}", r"1-\sqrt{5}", "-2")
    assert isinstance(shape("(1," * 100 + "2" + ")" * 100), Group)


def test_pieces():
    pieces = Pieces(((Value("x^2"), group("tuple", r"-\infty", "1")), (Value("5"), group("[)", "1", r"\infty"))))
    for written in (
        r"\begin{cases}x^2&x<1\\5&x\ge1\end{cases}",
        r"\begin{cases} x^2, & \text{if } x < 1, \\[2pt] 5, & \text{if } x \geq 1. \end{cases}",
        r"\left\{\begin{array}{ll}x^2&\text{for }x<1\\5&\text{for }1\le x\end{array}\right.",
    ):
        assert shape(written) == pieces
    assert shape(r"\begin{cases}x&n\text{ is odd}\\0&\text{otherwise}\end{cases}") == Pieces(
        ((Value("x"), Value("⟦n odd⟧")), (Value("0"), None))
    )


def test_bounds_of_several_variables_keep_their_names():
    assert shape("x>2, y<3") == Group(
        "list", (Relation("2<x", ("2", "x"), ("<",)), Relation("y<3", ("y", "3"), ("<",)))
    )
