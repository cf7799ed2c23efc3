r"""Whether the left side of an equation names a value: ``x``, ``f(2)``, ``\angle A``, ``AB``, ``a+b``; not ``2x``.

``2x=7`` says that x is 3.5, so it is no answer where 7 is asked for; ``f(2)=7`` is one. A term in several letters is
taken for what the question asks for (``m+n``), unless the unknowns x, y and z are among them: then it is an equation
that is still to be solved.
"""

from __future__ import annotations

import re

from grpo_lightning.rewards.answers.shapes import NAME
from grpo_lightning.rewards.answers.splitting import matching
from grpo_lightning.rewards.answers.words import changes_number, spelled_number

LONGEST_NAME = 200
"""Characters; a longer side is no name."""

_CONSTANTS = frozenset(("e", "i", r"\pi", r"\infty", r"\emptyset"))
_OPERATOR = re.compile(r"\\(?:lim|sum|prod|int|iint|oint|max|min|sup|inf|det|deg|dim|gcd|lcm|Pr|arg)(?![a-z])")
"""What such a sign stands before is a value, whatever its letters mean."""
_ANGLE = re.compile(
    r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])\s*(?:\^\s*\{?\d\}?)?\s*[({]?\s*\d*\s*"
    r"(?:[A-Z]+|\\(?:measured)?angle\s*\{?[A-Za-z]+\}?|\\(?:theta|alpha|beta|gamma|phi|varphi|delta|omega))\s*[)}]?"
)
"""A function of an angle, ``\\tan\\theta``."""
_UNKNOWN = re.compile(r"(?<![\\A-Za-z])[xyz](?![A-Za-z_])")
_UNKNOWNS = re.compile(r"[a-z]?[xyz]{1,3}")
"""A product of unknowns, ``xy``, or with a letter before it, ``ax``."""
_NORM = re.compile(
    r"\\lvert(.+?)\\rvert|\\l?Vert(.+?)\\r?Vert|\\\|(.+?)\\\||\|([^|]+)\||\\lfloor(.+?)\\rfloor|\\lceil(.+?)\\rceil"
)
_ONE = re.compile(
    r"\[[A-Z]{3,}\]|m?\s*\\(?:measured)?angle\s*\{?[A-Za-z]+\}?|[A-Za-z]\s*\^\s*\{?\s*\\(?:cdot|ast|star)\s*\}?|[A-Z]{2,}\s*\^\s*\{?\d\}?"
    r"|[A-Za-z]\^\{\(\w+\)\}\s*\(.*\)|\([A-Za-z]\s*\\circ\s*[A-Za-z]\)\s*\(.*\)"
    r"|z\s*\\(?:bar|overline)\s*\{?z\}?|\\(?:bar|overline)\s*\{?z\}?\s*z|\\angle\s*\d|⟦.*⟧[\sA-Z\\a-z()]*"
)
"""Names with signs of their own: an area, an angle's measure, an optimum, a squared length, a derivative, a norm."""
_CALLED = re.compile(
    r"(\\?[A-Za-z]+|\\math[a-z]+\{[A-Z]\})\s*'*(?:_\s*(?:\w|\{[^{}]*\}))?(?:\^\s*\{\s*-1\s*\})?\s*([(\[])(.*)[)\]]"
)
_ATOM = re.compile(
    r"⟦[^⟦⟧]*⟧|(?:m\s*)?\\(?:measured)?angle\s*\{?[A-Za-z]+\}?"
    r"|\\(?:triangle|overline|overrightarrow|vec|bar|hat|widehat|mathbf|mathbb|mathcal)\s*\{?\s*[A-Za-z]+\s*\}?"
    r"|\\[A-Za-z]+|[A-Z]{2,}|[A-Za-z]"
)
_INDEX = re.compile(r"\s*'*_\s*(?:\w|\{[^{}]*\})")
_ARGUMENTS = re.compile(r"\s*[(\[][^()\[\]]*(?:\([^()]*\)[^()\[\]]*)*[)\]]")
_ARITHMETIC = frozenset(
    "\\" + name
    for names in ("frac binom cdot times sqrt div cap cup circ mid pm", "sin cos tan cot sec csc log ln exp")
    for name in names.split()
)


def names_value(side: str) -> bool:
    """Whether a side of an equation, in normal form, is a name for a value."""
    text = side.strip()
    if not text or len(text) > LONGEST_NAME or text in _CONSTANTS:
        return False
    if _OPERATOR.match(text):
        return True
    for words in re.finditer(r"⟦[^⟦⟧]*⟧", text):
        if _is_number(words.group()) or (words.start() and changes_number(words.group())):
            return False
    norm = _NORM.fullmatch(text)
    if norm:
        inside = next(group for group in norm.groups() if group)
        return re.search(r"[A-Za-z]", inside) is not None and not re.search(r"(?<![\\A-Za-z])[xy](?![A-Za-z_])", inside)
    called = _CALLED.fullmatch(text)
    if called and matching(text, called.start(2)) == len(text) - 1 and called[1] not in _ARITHMETIC:
        return _is_call(called[1], called[3])
    if NAME.fullmatch(text) and not called:
        return len(text) == 1 or not _UNKNOWNS.fullmatch(text)
    return _ONE.fullmatch(text) is not None or _ANGLE.fullmatch(text) is not None or _is_term(text)


def _is_call(function: str, argument: str) -> bool:
    """``f(2)``, ``E[X]``; ``n(n+1)`` and ``x(y+1)`` are products."""
    again = re.search(rf"(?<![A-Za-z\\]){re.escape(function)}(?!\s*[A-Za-z(])", argument)
    return not again and function not in _CONSTANTS and not (function in ("x", "y", "z") and _UNKNOWN.search(argument))


def _is_number(words: str) -> bool:
    """Words that spell a number, or make one of another, are no name: "eight", "half of"."""
    bare = words.strip("⟦ ⟧")
    return spelled_number(bare) is not None or re.match(r"(?:half|twice|double|not)\b", bare) is not None


def _is_term(text: str) -> bool:
    """A term in two names or more, none of them an unknown."""
    names: set[str] = set()
    position = 0
    while position < len(text):
        match = _ATOM.match(text, position)
        if match is None:
            if not re.match(r"[\d\s+\-*/^_!(){}\[\]|.,'°⟦⟧]", text[position]):
                return False
            position += 1
            continue
        atom, position = match.group(), match.end()
        if atom in _ARITHMETIC or atom in _CONSTANTS:
            continue
        index = _INDEX.match(text, position)
        position = index.end() if index else position
        if index is None and atom in ("x", "y", "z"):
            return False
        arguments = _ARGUMENTS.match(text, position)
        if arguments and (len(atom) > 1 or atom in "fghFGPEn"):
            position = arguments.end()
        names.add(text[match.start() : position])
    return len(names) > 1
