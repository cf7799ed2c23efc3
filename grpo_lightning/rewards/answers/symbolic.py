r"""Algebra for what the quick rules cannot decide. Runs in worker processes only (``isolation``): it may never return.

math-verify reads the LaTeX. Its own comparison rounds to six decimals and its time limit needs SIGALRM, so values are
compared here, exactly, and its limit is switched off; it still judges inequalities and sets of numbers.
"""

from __future__ import annotations

import logging
import re
from fractions import Fraction
from typing import Any

from grpo_lightning.rewards.answers import readable
from grpo_lightning.rewards.answers.equivalence import QuickOracle, compare_texts
from grpo_lightning.rewards.answers.numbers import is_rounding, parse_number, without_units

_DIGITS = 60
"""Decimal digits in which numbers without closed form are compared."""
_TOLERANCE = 40
"""Leading digits that must agree."""
_SAMPLES = ((Fraction(7, 5), Fraction(3, 11)), (Fraction(-13, 7), Fraction(5, 3)), (Fraction(29, 9), Fraction(-2, 13)))
_DECIMAL = re.compile(r"(?<![\w.])(\d*)\.(\d+)(?![\d.])")
_TRIG_DEGREES = re.compile(r"(\d+(?:\.\d+)?)\s*°")
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_CONSTANT = re.compile(r"\+\s*[CcKk](?:_\{?\d\}?)?(?![A-Za-z])")
"""A constant of integration; any name will do."""
_NO_LATEX = re.compile(r"[⟦:;?@#$\"~]")
"""What the parser would skip: it stops at a colon and calls the part before it the whole."""
_INDEXED_NUMBER = re.compile(r"(?<![\^\w.])\d+\s*_")
"""A number in a base, whose base the parser would skip."""
_IMAGINARY = re.compile(r"(?<=\d)i(?![A-Za-z])")


def verdict(gold: str, answer: str) -> bool:
    """Whether the answer is the gold one, algebra allowed."""
    return compare_texts(gold, answer, SymbolicOracle()) is True


def is_readable(gold: str) -> bool:
    """``readable.is_readable`` with the LaTeX parser for what is not common notation."""
    return readable.is_readable(gold, lambda text: _parsed(text) is not None)


def warm_up() -> None:
    """Import the libraries and fill the parser's tables once, before workers are forked."""
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    for gold, answer in ((r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}"), ("x^2+2x+1", "(x+1)^2"), ("(0,1]", r"x\ne 2")):
        verdict(gold, answer)


class SymbolicOracle(QuickOracle):
    """Decides by algebra what is not plain."""

    def same_value(self, gold: str, answer: str) -> bool | None:
        quick = super().same_value(gold, answer)
        if quick is not None:
            return quick
        answer = _CONSTANT.sub("+ C", answer) if "C" not in answer and _CONSTANT.search(gold) else answer
        degrees = [text.rstrip().endswith("°") for text in (gold, answer)]
        left, right = _parsed(_radians(gold, degrees[0], answer)), _parsed(_radians(answer, degrees[1], gold))
        if left is None or right is None:
            return False
        if not hasattr(left, "free_symbols") or not hasattr(right, "free_symbols"):
            return False
        return _equal(left, right) or _is_rounding_of(left, answer)

    def same_equation(self, gold: tuple[str, str], answer: tuple[str, str], *, directed: bool = False) -> bool | None:
        sides = [_parsed(side) for side in (*gold, *answer)]
        if any(side is None for side in sides):
            return False
        first, second = sides[0] - sides[1], sides[2] - sides[3]
        if not first.free_symbols or first.free_symbols != second.free_symbols:
            return False
        import sympy

        ratio = sympy.simplify(first / second)
        return bool(
            not ratio.free_symbols and ratio.is_finite and (ratio.is_positive if directed else not ratio.is_zero)
        )

    def same_relation(self, gold: str, answer: str) -> bool | None:
        from math_verify import verify

        left, right = _parsed(gold), _parsed(answer)
        if left is None or right is None:
            return False
        return bool(verify(left, right, timeout_seconds=None, allow_set_relation_comp=True))


def _parsed(text: str) -> Any:
    """The sympy object that a text in normal form denotes, decimals as exact fractions; None if it is unreadable."""
    from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig
    from sympy import I

    if _TRIGONOMETRY.search(text):
        text = _TRIG_DEGREES.sub(r"{(\\frac{\1\\pi}{180})}", text)
    text = without_units(text).replace("°", "").replace("%", r"\cdot \frac{1}{100}")
    if not text or _NO_LATEX.search(text) or _INDEXED_NUMBER.search(text):
        return None
    text = _DECIMAL.sub(lambda match: rf"\frac{{{int(match[1] + match[2])}}}{{{10 ** len(match[2])}}}", text)
    text = _IMAGINARY.sub(" i", text)
    spelling = NormalizationConfig(basic_latex=True, malformed_operators=True, nits=True, boxed="none")
    text = normalize_latex(text, spelling)
    try:
        is_complex = re.search(r"\\mathbb\{?C|(?<![A-Za-z\\])i(?![A-Za-z])", text) is not None
        expression = latex2sympy(
            text,
            is_real=not is_complex,
            normalization_config=None,
            conversion_config=ConversionConfig(lowercase_symbols=False),
        )
    except MemoryError:
        raise
    except Exception:  # it raises whatever it happens to meet in a text that is not LaTeX
        return None
    imaginary = [symbol for symbol in getattr(expression, "free_symbols", ()) if symbol.name == "i"]
    return expression.xreplace(dict.fromkeys(imaginary, I)) if imaginary else expression


def _radians(text: str, degrees: bool, other: str) -> str:
    """Degrees as radians if the other side is written with pi."""
    if not degrees or r"\pi" not in other or "°" in other or _TRIGONOMETRY.search(text):
        return text
    return rf"({text.replace('°', '')}) \cdot \frac{{\pi}}{{180}}"


def _equal(left: Any, right: Any) -> bool:
    """Exact equality of two expressions; matrices cell by cell."""
    import sympy

    left, right = (side.doit() if isinstance(side, sympy.MatrixExpr) else side for side in (left, right))
    if isinstance(left, sympy.MatrixBase) or isinstance(right, sympy.MatrixBase):
        if not isinstance(left, sympy.MatrixBase) or not isinstance(right, sympy.MatrixBase):
            return False
        return left.shape == right.shape and all(_equal(a, b) for a, b in zip(left.flat(), right.flat(), strict=True))
    if not isinstance(left, sympy.Expr) or not isinstance(right, sympy.Expr):
        return bool(left == right)
    if left == right:
        return True
    left, right = left.doit(), right.doit()
    if left.is_Rational and right.is_Rational:
        return bool(left == right)
    symbols = sorted(left.free_symbols | right.free_symbols, key=str)
    if not symbols:
        return _agree(left, right)
    # Sampling refuses cheaply and surely; only what agrees at every point is worth simplifying.
    is_complex = left.has(sympy.I) or right.has(sympy.I)
    agreed = 0
    for start, step in _SAMPLES:
        point = {symbol: sympy.Rational(start + step * index) for index, symbol in enumerate(symbols)}
        at_point = left.subs(point), right.subs(point)
        if any(value.has(sympy.nan, sympy.zoo, sympy.oo) for value in at_point):
            continue
        if not is_complex and not all(value.is_real for value in at_point):
            continue  # outside the domain of a root or logarithm both sides are only formally defined
        if not _agree(*at_point):
            return False
        agreed += 1
    return agreed > 1 or sympy.simplify(left - right) == 0


def _agree(left: Any, right: Any) -> bool:
    """Whether two numbers agree, exactly if rational and in ``_TOLERANCE`` leading digits otherwise."""
    import sympy

    if left.is_Rational and right.is_Rational:
        return bool(left == right)
    values = [value.evalf(_DIGITS, maxn=400) for value in (left, right)]
    if not all(value.is_number and value.is_finite for value in values):
        return bool(sympy.simplify(left - right) == 0)
    size = max(abs(value) for value in values)
    return bool(abs(values[0] - values[1]) <= size * sympy.Rational(1, 10**_TOLERANCE))


def _is_rounding_of(exact: Any, answer: str) -> bool:
    number = parse_number(answer)
    if number is None or getattr(exact, "free_symbols", True) or not exact.is_real or exact.is_Rational:
        return False
    return is_rounding(Fraction(str(exact.evalf(_DIGITS))), number)
