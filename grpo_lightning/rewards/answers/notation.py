r"""One spelling for each notation: answers are rewritten so that ``\dfrac12``, ``{1 \over 2}`` and ``½`` look the same.

Nothing is evaluated here. Words inside ``\text{...}`` become ``⟦...⟧``, degree signs become ``°``, percent signs ``%``;
currency signs, sizes, fonts, spacing and math delimiters are dropped.
"""

from __future__ import annotations

import functools
import re
import unicodedata

_CHARACTERS = {
    **dict.fromkeys("\u2212\u2013\u2014\u2012\u2015\ufe63\u2010\u2011\uff0d", "-"),
    **dict.fromkeys("\u00d7\u2715", r"\times "),
    **dict.fromkeys("\u00b7\u22c5\u2219", r"\cdot "),
    **dict.fromkeys("\u00a0\u2009\u202f\u2005\u2006~", r"\,"),
    **{
        "÷": "/",
        "⁄": "/",
        "∕": "/",
        "π": r"\pi ",
        "∞": r"\infty ",
        "√": r"\sqrt ",
        "±": r"\pm ",
        "º": "°",
        "¢": r"\text{ cents}",
        "\u2218": "°",
    },
    **{
        "≤": r"\le ",
        "≥": r"\ge ",
        "≠": r"\ne ",
        "≈": r"\approx ",
        "∪": r"\cup ",
        "∈": r"\in ",
        "∅": r"\emptyset ",
        "≡": r"\equiv ",
        "⟨": r"\langle ",
        "⟩": r"\rangle ",
    },
    **{"½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}"},
    **{"θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "ℝ": r"\mathbb{R}", "\u2032": "'", "\u2019": "'"},
    **dict.fromkeys("\u20ac\u00a3\u00a5\u20b9\uffe5", ""),
}
_TABLE = str.maketrans(_CHARACTERS)
_ROOT_SIGN = re.compile(r"([√∛∜])\s*(\d+(?:\.\d+)?)")
_ROOTS = {"√": r"\sqrt", "∛": r"\sqrt[3]", "∜": r"\sqrt[4]"}
_CURRENCY = re.compile(
    r"\\?\$|\\(?:text)?(?:dollar|euro|sterling|yen)(?![A-Za-z])|\\(?:mathdollar|pounds|EUR)(?![A-Za-z])"
)
_SUPERSCRIPTS = re.compile("([\u207b\u207a]?[\u2070\u00b9\u00b2\u00b3\u2074-\u2079]+)")

_WORDS = r"text|mbox|hbox|textrm|textnormal|textsf|texttt|textit|textbf|emph|mathrm|operatorname\*?|mathit|rm|bf|textup"
_WORDS_MACRO = re.compile(rf"\\(?:{_WORDS})\s*\{{([^{{}}]*)\}}")
_FONT_MACRO = re.compile(
    r"\\(?:mathbf|boldsymbol|bm|mathsf|mathtt|boxed|fbox|underline|displaystyle|mathstrut)\s*\{([^{}]*)\}"
)
_DROPPED = re.compile(
    r"\\(?:left|right)\s*\.|\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|limits|large|Large|hfill|null)(?![A-Za-z])|\\(?:mathrm|bf|rm|it)(?![A-Za-z])(?!\s*\{)"
    r"|(?<!\\)\\[()\[\]](?=\s*$)|^\s*\\[()\[\]]|\*\*|`|\\phantom\{[^{}]*\}|\\(?:text)?color\{[^{}]*\}"
)
_GROUP_SPACE = r"(?:\\!)*(?:\{,\}|,\s*\\!|\\,|\\;|\\ )(?:\\!)*\s*"
_GROUPED = re.compile(rf"(?<![\d.,])\d{{1,3}}(?:{_GROUP_SPACE}\d{{3}})+(?!\d)")
_GROUPED_GAP = re.compile(_GROUP_SPACE)
_SPACE = re.compile(r"(?<!\\)\\(?:[,;: >!]|(?:quad|qquad|thinspace|enspace)(?![A-Za-z])|hspace\{[^{}]*\})|\s+")

_ONE = r"(\\pi|\d|[A-Za-z])"
_REWRITES: list[tuple[re.Pattern[str], str]] = [
    (re.compile(r"\\[dtc]frac(?![a-z])"), r"\\frac"),
    (re.compile(r"\\[dt]binom(?![a-z])"), r"\\binom"),
    (re.compile(rf"\\(frac|binom)\s*{_ONE}\s*{_ONE}"), r"\\\1{\2}{\3}"),
    (re.compile(rf"\\(frac|binom)\s*{_ONE}\s*\{{"), r"\\\1{\2}{"),
    (re.compile(rf"(\\(?:frac|binom)\s*\{{[^{{}}]*\}})\s*{_ONE}"), r"\1{\2}"),
    (re.compile(r"\\mathbb\s+([A-Z])"), r"\\mathbb{\1}"),
    (re.compile(r"⟦\s*(gcd|lcm|max|min)\s*⟧\s*(?=[({])"), r"\\\1 "),
    (re.compile(r"\{([^{}]*?)\\over(?![A-Za-z])([^{}]*)\}"), r"\\frac{\1}{\2}"),
    (re.compile(r"\{([^{}]*?)\\choose(?![A-Za-z])([^{}]*)\}"), r"\\binom{\1}{\2}"),
    (re.compile(r"\\colon(?![A-Za-z])|\{:\}"), ":"),
    (re.compile(r"(?<=\d)\s*(?:\^\s*)?\{?\s*(?:⟦\s*(?:st|nd|rd|th)\s*⟧|(?:st|nd|rd|th)(?![A-Za-z]))\s*\}?"), ""),
    (re.compile(r"\\lg(?![A-Za-z])"), r"\\log_{10}"),
    (re.compile(r"\\log\s*_\s*\{?e\}?(?![A-Za-z])"), r"\\ln"),
    (re.compile(r"^([^{}]*?)\\over(?![A-Za-z])([^{}]*)$"), r"\\frac{\1}{\2}"),
    (re.compile(r"(?<![\\A-Za-z])sqrt\s*(?=[({\d])"), r"\\sqrt"),
    (re.compile(r"\\sqrt\s*\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"\\sqrt\s*(\\[a-zA-Z]+|\d|[A-Za-z])"), r"\\sqrt{\1}"),
    (re.compile(r"(?<![\\A-Za-z])pi(?![A-Za-z])"), r"\\pi "),
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"\*"), r"\\cdot "),
    (
        re.compile(
            r"\^\s*\{?\s*(?:\\circ|\\degree|°|(?<=\d\^)o|(?<=\d\^\{)o)\s*\}?|\\degree(?![A-Za-z])|\\textdegree(?![A-Za-z])"
        ),
        "°",
    ),
    (re.compile(r"⟦\s*degrees?\s*⟧|(?<=[\d\s}])degrees?(?![A-Za-z])", re.IGNORECASE), "°"),
    (re.compile(r"\\%|⟦\s*(?:%|percent|per cent|percentage)\s*⟧|(?<=[\d\s}])percent(?![A-Za-z])", re.IGNORECASE), "%"),
    (re.compile(r"\\(?:leq|leqslant|le)(?![A-Za-z])|<="), r"\\le "),
    (re.compile(r"\\(?:geq|geqslant|ge)(?![A-Za-z])|>="), r"\\ge "),
    (re.compile(r"\\(?:neq|ne|not\s*=)(?![A-Za-z])|!="), r"\\ne "),
    (re.compile(r"\\lt(?![A-Za-z])"), "<"),
    (re.compile(r"\\gt(?![A-Za-z])"), ">"),
    (re.compile(r"\\(?:varnothing|O)(?![A-Za-z])"), r"\\emptyset "),
    (re.compile(r"\\langle(?![A-Za-z])"), "("),
    (re.compile(r"\\rangle(?![A-Za-z])"), ")"),
    (re.compile(r"^\s*⟦?\s*(?:USD|US|EUR|GBP|Rs\.?)\s*⟧?\s*(?=\d)"), ""),
    (re.compile(r"\\lbrace(?![A-Za-z])"), r"\\{"),
    (re.compile(r"\\rbrace(?![A-Za-z])"), r"\\}"),
    (re.compile(r"\\(?:dots|ldots|cdots)(?![A-Za-z])"), "..."),
    (re.compile(r"\s*⟦\s*"), " ⟦"),
    (re.compile(r"\s*⟧\s*"), "⟧ "),
    (re.compile(r"([-+])\s+(?=[\d\\(])"), r"\1"),
    (re.compile(r"([({\[,])\s+|\s+(?=[)}\],])"), r"\1"),
]
_LEADING = re.compile(
    r"^(?:⟦?\s*there\s+(?:are|is|were|will be)\s+⟧?\s*(?=\d)"
    r"|⟦?\s*(?:the\s+)?(?:final\s+|correct\s+)?(?:answer|result|value|total)\s*(?:(?:is|equals)\b|[:=])\s*⟧?\s*"
    r"|(?:\\approx(?![a-z])|⟦?\s*(?:approximately|approx\.?|about|around|roughly)\s*⟧?(?=[\s⟦\d]))\s*|\\?\#(?=\d)|=\s*(?!=))+",
    re.IGNORECASE,
)
_NEGATIVE = re.compile(r"^⟦?\s*(?:negative|minus)\s*⟧?\s*(?=[\d\\.])", re.IGNORECASE)
_UNIT_VECTOR = re.compile(
    r"\\(?:mathbf|boldsymbol|bm|hat|vec|overrightarrow)\s*\{?\s*(?:\\(?:hat|mathbf|vec)\s*\{?\s*)?\\?([ijk])(?:math)?\s*\}{0,2}(?![A-Za-z])"
)
_CHOICES = re.compile(r"\([A-Z]\)|\(?[A-Z](?:\s*,\s*[A-Z])+\)?")
_NUMBERS = re.compile(r"\s*-?[\d./]+(?:(?:,|,?\s+(?:and|or))\s+-?[\d./]+){1,20}\s*")
_NAMES = re.compile(r"\s*[A-Z][a-z]+(?:\s*,\s*(?:and\s+)?[A-Z][a-z]+){1,20}\s*")
_ORDINAL = re.compile(r"\s*\d+(?:st|nd|rd|th)\s*")
_BRACED_SIGN = re.compile(r"\{\s*([-+])\s*\}")
_BRACED_ATOM = re.compile(r"(^|[-+(,=\s])\{([^{}]*)\}(?=$|[-+),=\s])")


@functools.lru_cache(maxsize=16_384)
def normal_form(answer: str) -> str:
    """The answer in the one spelling; "" if nothing is left."""
    text = "".join(c for c in answer if unicodedata.category(c) not in ("Cc", "Cf", "Cs") or c in "\n\t")
    text = _SUPERSCRIPTS.sub(lambda match: "^{" + unicodedata.normalize("NFKC", match.group()) + "}", text)
    text = _ROOT_SIGN.sub(lambda match: f"{_ROOTS[match[1]]}{{{match[2]}}}", text)
    text = unicodedata.normalize("NFKC", text.translate(_TABLE)).translate(_TABLE)
    text = _CURRENCY.sub("", text)
    text = _GROUPED.sub(lambda match: _GROUPED_GAP.sub("", match.group()), text)
    text = _UNIT_VECTOR.sub(r"\\\1hat ", text)
    text = _unwrapped(_DROPPED.sub(" ", text))
    text = _SPACE.sub(" ", text)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    text = _BRACED_SIGN.sub(r"\1", text)
    for _ in range(4):
        text = _BRACED_ATOM.sub(r"\1\2", text)
    text = _SPACE.sub(" ", text).strip(" ,;:。")
    text = text.rstrip("\\ ").removeprefix('"').removesuffix('"') if text[-1:] in "\\ " or text[:1] == '"' else text
    text = _NEGATIVE.sub("-", _LEADING.sub("", text))
    return text if text.endswith("..") else text.rstrip(" .,;:。")  # 0.3... is not 0.3


def _unwrapped(text: str) -> str:
    """Words marked, fonts dropped, from the inside out; depth is bounded since each round is one pass."""
    for _ in range(6):
        before = text
        text = _WORDS_MACRO.sub(lambda match: _marked(match.group(1)), text)
        text = _FONT_MACRO.sub(r"\1", text)
        if text == before:
            break
    return text


def _marked(content: str) -> str:
    content = content.replace(r"\ ", " ")
    if len(content.strip()) == 1 and content.strip() in "ei":  # upright constants
        return content
    letters = re.sub(r",?\s+(?:and|or)\s+", ",", content.strip())
    if _CHOICES.fullmatch(letters):
        return letters
    if _NUMBERS.fullmatch(content):
        return re.sub(r",?\s+(and|or)\s+", r" ⟦\1⟧ ", content)
    if _NAMES.fullmatch(content):
        return ",".join(f" ⟦{name}⟧ " for name in re.findall(r"[A-Z][a-z]+", content))
    if _ORDINAL.fullmatch(content):
        return content.strip()[:-2]
    counted = re.fullmatch(r"\s*(-?\d[\d.,]*)\s+([^\W\d].*)", content)
    if counted:  # \text{2 hours}
        return f" {counted[1]} ⟦{counted[2].strip()}⟧ "
    return f" ⟦{content.strip()}⟧ " if re.search(r"[^\W\d_]", content) else content
