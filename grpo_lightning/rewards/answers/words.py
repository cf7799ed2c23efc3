"""Words that stand for numbers or for other words: "twenty-one", "DNE", "no real solution"."""

from __future__ import annotations

import re

_SMALL = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_LARGE = {"thousand": 10**3, "million": 10**6, "billion": 10**9}
_VALUES = {word: value for value, word in enumerate(_SMALL)}
_VALUES |= {word: 10 * value for value, word in enumerate(_TENS, start=2)}
BASES = {**{word: value for word, value in _VALUES.items() if 2 <= value <= 16}} | {
    "binary": 2,
    "octal": 8,
    "decimal": 10,
    "hex": 16,
    "hexadecimal": 16,
}
"""Names of number bases."""

_SAME = {
    "no solution": r"(?:there (?:is|are) )?no (?:real |integer |valid )?(?:solutions?|roots?|values?)(?: exists?)?"
    r"|none|(?:the )?empty set|null set",
    "undefined": r"undefined|dne|d\.n\.e|(?:limit )?does not exist|doesn't exist|not defined|nonexistent",
    "all real numbers": r"(?:all|any|every) reals?(?: numbers?| values?)?(?: x)?|(?:all|any) (?:x|values?)"
    r"|reals?(?: numbers)?|the set of (?:all )?real numbers",
    "nonnegative": r"(?:all )?non-?negative (?:real )?(?:numbers|reals)",
    "positive": r"(?:all )?positive (?:real numbers|reals)",
    "negative": r"(?:all )?negative (?:real numbers|reals)",
    "infinity": r"(?:positive )?infinity|infinite",
    "negative infinity": r"(?:negative|minus) infinity",
    "infinitely many solutions": r"(?:there are )?infinitely many(?: (?:real )?solutions?)?|infinite solutions",
    "tails": "tails?",
    "heads": "heads?",
}
_WORDS = re.compile(r"[^\W\d_][\w\s'.-]*")
_ARTICLE = re.compile(r"an? (?=(?!(?:sinh|cosh|tanh|sqrt)\b)[a-z]{4})")
"""Before a word; ``a b`` is a product."""
_SAME_WORDS = [(re.compile(pattern), name) for name, pattern in _SAME.items()]

_NUMERALS = "|".join(
    [*_VALUES, "hundred", "thousand", "dozen", *(f"{start}illions?" for start in ("m", "b", "tr", "quadr", "quint"))]
)
_PARTS = (
    "half|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|eleventh|twelfth|[a-z]{3,6}teenth|[a-z]{3,5}tieth"
    "|hundredth|thousandth|[a-z]{1,6}illionth"
)
_CHANGES_NUMBER = re.compile(
    rf"\b(?:(?:{_NUMERALS})\b(?!-)|(?:{_PARTS})s\b|halves\b|(?:{_PARTS})$"
    r"|(?:squared|cubed|factorial|doubled|tripled|quadrupled|halved|negated|point|over|plus|minus|modulo|mod|divided"
    r"|multiplied|lakhs?|crores?|myriads?|googols?|maybe|perhaps|possibly|probably|(?:to|raised) the power)\b(?!-)"
    r"|(?:score|gross|tens|repeating|root|power|times ten|negative|imaginary|false|wrong|incorrect|invalid|impossible"
    r"|unsure|unlikely|inverse|reciprocal|below|above)$)"
)
_DOUBTS = re.compile(
    r"\b(?:not?|never|or|nor|and|but|if|more|less|fewer|most|least|under|guess\w*|unless|might|could|may|wrong|false"
    r"|incorrect\w*|invalid|doubt\w*|unsure|uncertain|rejected|extraneous|to the)\b"
)


def changes_number(words: str, *, remark: bool = False) -> bool:
    """Whether words after a number make another one of it or take it back: "tenths", "squared", "(or more)".

    Args:
        words: the words, brackets and all.
        remark: the words stand in brackets, where they are no name of a thing.
    """
    words = " ".join(re.sub(r"[⟦⟧(){}.]", " ", words).split()).casefold()
    return _CHANGES_NUMBER.search(words) is not None or (remark and _DOUBTS.search(words) is not None)


def same_word(words: str) -> str:
    """The one spelling of words that mean the same, from lower case; other words as they are."""
    if len(words) > 60:
        return words
    words = _ARTICLE.sub("", words.removeprefix("the "))
    return next((name for pattern, name in _SAME_WORDS if pattern.fullmatch(words)), words)


def as_word(text: str) -> str | None:
    """A name or other words, in lower case and one spelling; None for anything with mathematics in it."""
    bare = text.replace("⟦", " ").replace("⟧", " ").strip(" .")
    return same_word(" ".join(bare.split()).casefold()) if len(bare) > 1 and _WORDS.fullmatch(bare) else None


def spelled_number(text: str) -> tuple[int, str] | None:
    """The whole number that the first words of a text spell and the rest of it: ("21", "cats"); None if they do not."""
    words = text.casefold().replace("-", " ").split()
    if not words or len(words) > 20:
        return None
    sign = 1
    if words[0] in ("minus", "negative"):
        sign, words = -1, words[1:]
    total = part = used = 0
    last = None
    for index, word in enumerate(words):
        if word in _VALUES:
            value = _VALUES[word]
            # "twenty one" and "hundred five" go on; "two three" does not spell a number.
            if last is not None and not (last >= 100 or (20 <= last < 100 and 0 < value < 10)):
                return None
            part, last = part + value, value
        elif word == "hundred" and last is not None and 0 < part < 100:
            part, last = part * 100, 100
        elif word in _LARGE and last is not None and part:
            total, part, last = total + part * _LARGE[word], 0, 1000
        elif word == "and" and last is not None and last >= 100 and words[index + 1 : index + 2]:
            continue
        else:
            break
        used = index + 1
    return (sign * (total + part), " ".join(words[used:])) if used else None
