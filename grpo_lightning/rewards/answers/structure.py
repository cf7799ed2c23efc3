r"""What shape an answer has: one value, a list of roots, a set, a point, an interval, a matrix, an equation.

Shapes are told apart before any algebra, so that ``5`` is not ``x=5 \text{ or } x=7``, ``(1,2)`` not ``(2,1)`` and a
column not a row. The values inside are left as text in ``notation.normal_form``.
"""

from __future__ import annotations

import re

from grpo_lightning.rewards.answers.ranges import FLIPPED, all_but, intersection, interval
from grpo_lightning.rewards.answers.shapes import (
    ALL_REALS,
    NAME,
    Equation,
    Group,
    Matrix,
    Pieces,
    Relation,
    Shape,
    Value,
)
from grpo_lightning.rewards.answers.splitting import RELATION, matching, relation_parts, split, stripped
from grpo_lightning.rewards.answers.words import as_word

DEEPEST = 12
"""Nesting of shapes; what lies deeper is one opaque value."""
MOST_ITEMS = 200

_SEPARATOR_WORDS = re.compile(
    r"\s*,?\s*(?:⟦\s*,?\s*(?:and|or)\s*⟧|\\(?:lor|land|vee)(?![A-Za-z])"
    r"|(?<=[\d\s,}\])])(?:and|or)(?=\s*[\d\\(\[{A-Z-]|\s+[a-z]\s*[=<>\\]))\s*"
)
_MATRIX = re.compile(
    r"\\begin\{(pmatrix|bmatrix|Bmatrix|matrix|smallmatrix|array)\}(?:\{[lcr| ]*\})?(.*)\\end\{\1\}", re.DOTALL
)
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_EMPTY = re.compile(r"\\emptyset|\\\{\s*\\\}")
_REALS = re.compile(r"\\mathbb\s*\{?\s*R\s*\}?")
_EXCLUDED = re.compile(r"\\mathbb\s*\{?\s*R\s*\}?\s*(?:\\setminus|\\backslash|-|\\)\s*\\\{([^{}]*)\\\}")
_UNEQUAL = re.compile(r"[A-Za-z]\s*\\ne(?![a-z])\s*([^=<>\\A-Za-z]+(?:\\frac\{\d+\}\{\d+\})?)")
_UNEQUAL_AGAIN = re.compile(r"\s*(?:,|⟦and⟧|⟦, and⟧|and)\s*[A-Za-z]\s*\\ne(?![a-z])")
_SET_BUILDER = re.compile(r"\\\{\s*[A-Za-z]\s*(?:\\in\s*\\mathbb\{?R\}?\s*)?(?:\\mid(?![a-z])|\||:)(.*)\\\}", re.DOTALL)
_CASES = re.compile(r"(?:\\\{)?\s*\\begin\{(cases|aligned|array)\}(?:\{[lcr| ]*\})?([^&]*)\\end\{\1\}", re.DOTALL)
_PIECES = re.compile(
    r"(?:\\begin\{[dr]?cases\}|\\\{\s*\\begin\{(?:array|aligned)\}(?:\{[lcr| ]*\})?)"
    r"((?:(?!\\begin).)*&(?:(?!\\begin).)*)"
    r"\\end\{(?:[dr]?cases|array|aligned)\}",
    re.DOTALL,
)
_ALIGNED = re.compile(r"\s*&\s*(?==)")
_ROW_END = re.compile(r"\\\\(?:\s*\[[^\[\]]*\])?")
_CONDITION = re.compile(r"^\s*(?:⟦?\s*(?:if|for|when|where|provided(?: that)?)\b\s*⟧?\s*)?")
_IS = re.compile(r"\s*\bis\b(?=\s)|(?<=\s)\s+")
_OTHERWISE = re.compile(r"⟦?\s*(?:otherwise|else|elsewhere)\s*⟧?", re.IGNORECASE)
_OR = re.compile(r"⟦\s*,?\s*or\s*⟧|\\(?:lor|vee)(?![A-Za-z])|(?<=[\d\s])or(?=\s)")
_SIGN = re.compile(r"[<>]|\\[lg]e(?![a-z])")
_AND = re.compile(r"\s*(?:⟦\s*,?\s*and\s*⟧|\\(?:land|wedge)(?![A-Za-z])|(?<=[\d\s,}\])])and(?=\s))\s*")
_VARIABLE = re.compile(r"(?<![\\A-Za-z])[A-Za-z](?![A-Za-z])")
_POINT = re.compile(r"[A-Z]'?\s*(?=\(.*\)$)")


def parse_shape(text: str, depth: int = 0) -> Shape:
    """The shape of an answer in normal form."""
    text = stripped(text.strip())
    if depth > DEEPEST or _THOUSANDS.fullmatch(text):
        return Value(text)
    special = _special(text, depth)
    if special is not None:
        return special
    parts = split(_SEPARATOR_WORDS.sub(" , ", text), ",;")
    if 1 < len(parts) <= MOST_ITEMS:
        several = len(_bounded(parts)) > 1  # in "x > 2, y < 3" it matters which is which
        items = tuple(map(_inequality, parts)) if several and _all_bounds(parts) else _items(_named_once(parts), depth)
        # "x < 1 or x > 3" is one set of numbers; "x > 1, x < 3" may be meant together and stays a list.
        together = _OR.search(text) and len(items) == len(parts) and all(_SIGN.search(part) for part in parts)
        return Group("union" if together and all(isinstance(item, Group) for item in items) else "list", items)
    matrix = _MATRIX.fullmatch(text) or _MATRIX.fullmatch(text[1:-1].strip())  # \\left( \\begin{array} ... \\right)
    if matrix:
        return _matrix(matrix.group(2), depth)
    sides, signs = relation_parts(text)
    if signs:
        return _related(text, sides, signs, depth)
    pieces = split(text, [r"\cup"])
    if len(pieces) > 1:
        return Group("union", _items(pieces, depth))
    return (
        _signed_point(text, depth)
        or _bracketed(text, depth)
        or _signs_expanded(text)
        or in_components(text)
        or Value(text)
    )


_WORDS: dict[str | None, Shape] = {
    "no solution": Group("set", ()),
    "all real numbers": ALL_REALS,
    "nonnegative": Group("[)", (Value("0"), Value(r"\infty"))),
    "positive": Group("tuple", (Value("0"), Value(r"\infty"))),
    "negative": Group("tuple", (Value(r"-\infty"), Value("0"))),
    "infinity": Value(r"\infty"),
    "negative infinity": Value(r"-\infty"),
}


def _special(text: str, depth: int) -> Shape | None:
    """Empty set, all real numbers, infinity in words, ``\\{x \\mid ...\\}``, systems, two bounds joined by "and"."""
    word = as_word(text)
    if word in _WORDS:
        return _WORDS[word]
    if _EMPTY.fullmatch(text):
        return Group("set", ())
    if _REALS.fullmatch(text):
        return ALL_REALS
    excluded = _EXCLUDED.fullmatch(text) or _UNEQUAL.fullmatch(_UNEQUAL_AGAIN.sub(",", text))
    if excluded:
        return all_but(excluded[1])
    condition = _SET_BUILDER.fullmatch(text)
    if condition and matching(text, 1) == len(text) - 1:
        return parse_shape(condition[1], depth + 1)
    system = _CASES.fullmatch(_ALIGNED.sub("", text))
    if system:
        rows = [row for row in system[2].split(r"\\") if row.strip(" ,")]
        return parse_shape(" , ".join(row.strip(" ,") for row in rows), depth + 1) if 1 < len(rows) < 9 else None
    pieces = _PIECES.fullmatch(text)
    if pieces:
        return _pieces(pieces[1], depth)
    bounds = _AND.split(text)
    return _both([parse_shape(bound, depth + 1) for bound in bounds], text) if len(bounds) == 2 else None


def _all_bounds(parts: list[str]) -> bool:
    """Whether every part is an inequality and nothing else."""
    return all(signs and all(sign in FLIPPED for sign in signs) for _, signs in map(relation_parts, parts))


def _inequality(text: str) -> Relation:
    """An inequality with the name of its variable, which a range of numbers forgets."""
    return _upwards(text, *relation_parts(text))


def _both(bounds: list[Shape], text: str) -> Shape | None:
    """Two bounds that hold together; ``x < 1`` and ``x > 3`` are no list of two, for nothing is both."""
    are_bounds = all(isinstance(bound, Group) and bound.kind in ("tuple", "[)", "(]", "[]") for bound in bounds)
    names = _bounded(_AND.split(text))
    return (intersection(bounds) or (Relation(text) if are_bounds else None)) if len(names) == 1 else None


def _bounded(parts: list[str]) -> set[str]:
    """The variables that inequalities are about."""
    return {name for part in parts if _SIGN.search(part) for name in _VARIABLE.findall(part)}


def parse_list(text: str) -> Group:
    """``1,250`` read as two items rather than as one number."""
    return Group("list", tuple(Value(part) for part in split(text, ",")))


def _items(parts: list[str], depth: int) -> tuple[Shape, ...]:
    """Shapes of the parts; a ``1 \\pm 2`` among them counts as two."""
    items: list[Shape] = []
    for part in parts:
        shape = parse_shape(part, depth + 1)
        if isinstance(shape, Group) and shape.kind == "list":
            items.extend(shape.items)
        else:
            items.append(shape)
    return tuple(items)


def _named_once(parts: list[str]) -> list[str]:
    """``k=3,5,8`` names the whole list once; the name is dropped."""
    name, sign, first = parts[0].partition("=")
    if sign and NAME.fullmatch(name.strip()) and not any(RELATION.search(part) for part in [first, *parts[1:]]):
        return [first, *parts[1:]]
    return parts


def _related(text: str, sides: list[str], signs: list[str], depth: int) -> Shape:
    if not all(sides):
        return Relation(text)
    if all(sign in ("=", r"\approx") for sign in signs):
        if NAME.fullmatch(sides[-1]) and not NAME.fullmatch(sides[0]):
            sides = sides[::-1]  # 5 = x
        return Equation(tuple(sides), parse_shape(sides[-1], depth + 1))
    if signs == [r"\in"] and NAME.fullmatch(sides[0]):
        return parse_shape(sides[1], depth + 1)
    found = interval(sides, signs)
    if signs == [r"\ne"] and NAME.fullmatch(sides[0]):
        found = all_but(sides[1])
    return _upwards(text, sides, signs) if found is None else found


def _upwards(text: str, sides: list[str], signs: list[str]) -> Relation:
    """A chain of relations with its smallest side first."""
    if all(sign in (">", r"\ge") for sign in signs):
        sides, signs = sides[::-1], [FLIPPED[sign] for sign in reversed(signs)]
        text = "".join(
            side + sign
            for side, sign in zip(sides, [s.ljust(len(s) + (len(s) > 1)) for s in [*signs, ""]], strict=True)
        )
    return Relation(text, tuple(sides), tuple(signs))


def _bracketed(text: str, depth: int) -> Shape | None:
    """``\\{...\\}``, ``(..., ...)``, ``[..., ...]`` and mixed brackets round the whole text."""
    if text.startswith(r"\{") and text.endswith(r"\}") and matching(text, 1) == len(text) - 1:
        parts = split(_SEPARATOR_WORDS.sub(" , ", text[2:-2]), ",;")
        return Group("set", _items(parts, depth)) if len(parts) <= MOST_ITEMS else None
    text = _POINT.sub("", text, count=1)
    if not (text[:1] in ("(", "[") and text[-1:] in (")", "]") and matching(text, 0) == len(text) - 1):
        return None
    parts = split(text[1:-1], ",;")
    if not 1 < len(parts) <= MOST_ITEMS:
        return None
    ends = text[0] + text[-1]
    kind = "tuple" if ends == "()" or (len(parts) > 2 and ends == "[]") else ends
    return Group(kind, _items(parts, depth))


def _signed_point(text: str, depth: int) -> Shape | None:
    """``(\\pm 2,3)`` as the list of its two points."""
    if text[:1] != "(" or text.count(r"\pm") != 1 or matching(text, 0) != len(text) - 1 or "," not in text:
        return None
    both = [parse_shape(re.sub(r"\\pm\s*", sign, text), depth + 1) for sign in ("", "-")]
    return Group("list", tuple(both)) if r"+\pm" not in text else None


def _signs_expanded(text: str) -> Group | None:
    """``1 \\pm \\sqrt{19}`` as the list of its two values."""
    if not re.search(r"\\(?:pm|mp)(?![A-Za-z])", text):
        return None
    plus = re.sub(r"\\mp\s*", "-", re.sub(r"\\pm\s*", "+", text))
    minus = re.sub(r"\\mp\s*", "+", re.sub(r"\\pm\s*", "-", text))
    return Group("list", (Value(plus.removeprefix("+")), Value(minus.removeprefix("+"))))


_VECTOR_END = re.compile(r"(?:\\([ijk])hat|([ijk]))\s*$")


def in_components(text: str) -> Group | None:
    """``3i - 4j`` or with hats as ``(3,-4)``; needs a ``j``, for ``i`` alone is the imaginary unit."""
    if len(text) > 200 or not ("j" in text and ("i" in text or "k" in text)):
        return None
    found: dict[str, str] = {}
    for term in re.findall(r"[-+]?\s*(?:[^-+{(]|\{[^{}]*\}|\([^()]*\))+", text):
        end = _VECTOR_END.search(term)
        coefficient = term[: end.start()].strip() if end else ""
        axis = (end[1] or end[2]) if end else ""
        if not end or axis in found or re.search(r"(?<!\\)\b[ijk]\b|hat", re.sub(r"\\[a-z]+", " ", coefficient)):
            return None
        found[axis] = {"": "1", "+": "1", "-": "-1"}.get(coefficient, coefficient.removeprefix("+").strip())
    axes = "ijk" if "k" in found else "ij"
    return Group("tuple", tuple(Value(found.get(axis, "0")) for axis in axes)) if len(found) > 1 else None


def _matrix(body: str, depth: int) -> Shape:
    rows = [row for row in re.split(r"\\\\|\\cr(?![a-z])", body.replace(r"\hline", "")) if row.strip()]
    if len(rows) > MOST_ITEMS:
        return Value(body)
    return Matrix(tuple(tuple(parse_shape(cell, depth + 1) for cell in row.split("&")) for row in rows))


def _pieces(body: str, depth: int) -> Pieces | None:
    """The rows ``value & condition`` of a function given piece by piece; None if any row has another form."""
    pieces: list[tuple[Shape, Shape | None]] = []
    for row in _ROW_END.split(body):
        cells = [cell.strip(" ,.;") for cell in row.split("&") if cell.strip(" ,.;")]
        if not cells:
            continue
        condition = _CONDITION.sub("", " ".join(cells[1:]), count=1).strip()
        if not RELATION.search(condition):  # n ⟦is odd⟧
            condition = f"⟦{_IS.sub('', re.sub('[⟦⟧]', ' ', condition)).strip()}⟧"
        if len(cells) < 2 or not condition or len(pieces) >= MOST_ITEMS:
            return None
        known = None if _OTHERWISE.fullmatch(condition) else parse_shape(condition, depth + 1)
        pieces.append((parse_shape(cells[0], depth + 1), known))
    return Pieces(tuple(pieces)) if pieces else None
