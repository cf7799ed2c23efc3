r"""What shape an answer has: one value, a list of roots, a set, a point, an interval, a matrix, an equation.

Shapes are told apart before any algebra, so that ``5`` is not ``x=5 \text{ or } x=7``, ``(1,2)`` not ``(2,1)`` and a
column not a row. The values inside are left as text in ``notation.normal_form``.
"""

from __future__ import annotations

import re

from grpo_lightning.rewards.answers.ranges import FLIPPED, all_but, intersection, interval
from grpo_lightning.rewards.answers.shapes import ALL_REALS, NAME, Equation, Group, Matrix, Relation, Shape, Value
from grpo_lightning.rewards.answers.words import as_word

DEEPEST = 12
"""Nesting of shapes; what lies deeper is one opaque value."""
MOST_ITEMS = 200

_OPEN, _CLOSE = "([{⟦", ")]}⟧"
_SEPARATOR_WORDS = re.compile(
    r"\s*,?\s*(?:⟦\s*,?\s*(?:and|or)\s*⟧|\\(?:lor|land|vee)(?![A-Za-z])"
    r"|(?<=[\d\s,}\])])(?:and|or)(?=\s*[\d\\(\[{A-Z-]|\s+[a-z]\s*[=<>\\]))\s*"
)
_RELATION = re.compile(r"\\(?:le|ge|ne|approx|in|equiv|sim|to|mapsto|Rightarrow|implies|mid)(?![A-Za-z])|[=<>]")
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
_OR = re.compile(r"⟦\s*,?\s*or\s*⟧|\\(?:lor|vee)(?![A-Za-z])|(?<=[\d\s])or(?=\s)")
_SIGN = re.compile(r"[<>]|\\[lg]e(?![a-z])")
_AND = re.compile(r"\s*(?:⟦\s*,?\s*and\s*⟧|\\(?:land|wedge)(?![A-Za-z])|(?<=[\d\s,}\])])and(?=\s))\s*")
_POINT = re.compile(r"[A-Z]'?\s*(?=\(.*\)$)")


def parse_shape(text: str, depth: int = 0) -> Shape:
    """The shape of an answer in normal form."""
    text = _stripped(text.strip())
    if depth > DEEPEST or _THOUSANDS.fullmatch(text):
        return Value(text)
    special = _special(text, depth)
    if special is not None:
        return special
    parts = _split(_SEPARATOR_WORDS.sub(" , ", text), ",;")
    if 1 < len(parts) <= MOST_ITEMS:
        items = _items(_named_once(parts), depth)
        # "x < 1 or x > 3" is one set of numbers; "x > 1, x < 3" may be meant together and stays a list.
        together = _OR.search(text) and len(items) == len(parts) and all(_SIGN.search(part) for part in parts)
        return Group("union" if together and all(isinstance(item, Group) for item in items) else "list", items)
    matrix = _MATRIX.fullmatch(text) or _MATRIX.fullmatch(text[1:-1].strip())  # \\left( \\begin{array} ... \\right)
    if matrix:
        return _matrix(matrix.group(2), depth)
    sides, signs = _relation_parts(text)
    if signs:
        return _related(text, sides, signs, depth)
    pieces = _split(text, [r"\cup"])
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
    if condition and _matching(text, 1) == len(text) - 1:
        return parse_shape(condition[1], depth + 1)
    system = _CASES.fullmatch(text)
    if system:
        rows = [row for row in system[2].split(r"\\") if row.strip(" ,")]
        return parse_shape(" , ".join(row.strip(" ,") for row in rows), depth + 1) if 1 < len(rows) < 9 else None
    bounds = _AND.split(text)
    return intersection([parse_shape(bound, depth + 1) for bound in bounds]) if len(bounds) == 2 else None


def parse_list(text: str) -> Group:
    """``1,250`` read as two items rather than as one number."""
    return Group("list", tuple(Value(part) for part in _split(text, ",")))


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
    if sign and NAME.fullmatch(name.strip()) and not any(_RELATION.search(part) for part in [first, *parts[1:]]):
        return [first, *parts[1:]]
    return parts


def _stripped(text: str) -> str:
    """Without braces round the whole, and without closing punctuation."""
    while text[:1] == "{" and _matching(text, 0) == len(text) - 1:
        text = text[1:-1].strip()
    return text


def _matching(text: str, start: int) -> int:
    """Index of the bracket that closes the one at ``start`` (kinds may differ, as in ``(0,1]``); -1 if none."""
    depth = 0
    for index in range(start, len(text)):
        depth += (text[index] in _OPEN) - (text[index] in _CLOSE)
        if depth == 0:
            return index
    return -1


def _split(text: str, separators: str | list[str]) -> list[str]:
    """Parts between separators that stand outside every bracket and environment."""
    parts, depth, start, index = [], 0, 0, 0
    while index < len(text):
        if text.startswith((r"\begin", r"\end"), index):
            depth += 1 if text.startswith(r"\begin", index) else -1
            index += 4
            continue
        depth += (text[index] in _OPEN) - (text[index] in _CLOSE)
        hit = next((s for s in separators if depth == 0 and text.startswith(s, index)), None)
        if hit:
            parts.append(text[start:index])
            start = index + len(hit)
        index += len(hit) if hit else 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def _relation_parts(text: str) -> tuple[list[str], list[str]]:
    """Sides and signs of the relations that stand outside every bracket."""
    sides, signs, depth, start, position = [], [], 0, 0, 0
    for match in _RELATION.finditer(text):
        between = text[position : match.start()]
        depth += sum((c in _OPEN) - (c in _CLOSE) for c in between)
        position = match.end()
        if depth == 0 and r"\begin" not in text[: match.start()]:
            sides.append(text[start : match.start()].strip())
            signs.append(match.group())
            start = match.end()
    return [*sides, text[start:].strip()], signs


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
    if found is not None:
        return found
    if all(sign in (">", r"\ge") for sign in signs):
        sides, signs = sides[::-1], [FLIPPED[sign] for sign in reversed(signs)]
        text = "".join(
            side + sign
            for side, sign in zip(sides, [s.ljust(len(s) + (len(s) > 1)) for s in [*signs, ""]], strict=True)
        )
    return Relation(text, tuple(sides), tuple(signs))


def _bracketed(text: str, depth: int) -> Shape | None:
    """``\\{...\\}``, ``(..., ...)``, ``[..., ...]`` and mixed brackets round the whole text."""
    if text.startswith(r"\{") and text.endswith(r"\}") and _matching(text, 1) == len(text) - 1:
        parts = _split(_SEPARATOR_WORDS.sub(" , ", text[2:-2]), ",;")
        return Group("set", _items(parts, depth)) if len(parts) <= MOST_ITEMS else None
    text = _POINT.sub("", text, count=1)
    if not (text[:1] in ("(", "[") and text[-1:] in (")", "]") and _matching(text, 0) == len(text) - 1):
        return None
    parts = _split(text[1:-1], ",;")
    if not 1 < len(parts) <= MOST_ITEMS:
        return None
    ends = text[0] + text[-1]
    kind = "tuple" if ends == "()" or (len(parts) > 2 and ends == "[]") else ends
    return Group(kind, _items(parts, depth))


def _signed_point(text: str, depth: int) -> Shape | None:
    """``(\\pm 2,3)`` as the list of its two points."""
    if text[:1] != "(" or text.count(r"\pm") != 1 or _matching(text, 0) != len(text) - 1 or "," not in text:
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
