"""Words by which a text denies, bounds, hedges or takes back the number it names."""

from __future__ import annotations

import re

DENIED = re.compile(
    r"(?:(?:\b(?:not|cannot|never|unlikely|hardly|impossible)|n't)(?:\s+(?:to|be|equal|exactly|just|a)\b){0,3}"
    r"|\b(?:at (?:least|most)|between|no longer|exceeds?|anything but"
    r"|(?:more|less|fewer|greater|smaller|larger|bigger|higher|lower|other) than(?: or equal to)?|close to|nowhere near"
    r"|far from|bounded by|almost|nearly"
    r"|over|under|above|below|beyond|near|twice|double|half(?: of)?|divisible by"
    r"|(?:multiple|factor|divisor|root|square|cube|power) of))(?=\s+[$\d]|\s*$)"
    r"|\beither\b|不(?:是|为|会|能|可能|等于|应)|[并绝]非|[大小多少]于|至[少多]|最[少多]|超过|可能[是为]",
    re.IGNORECASE,
)
"""Before a number: it is not the answer, or only bounds it, or is what the answer is made from."""
DOUBT = re.compile(
    DENIED.pattern
    + r"|\b(?:not|cannot|never|unlikely|hardly|impossible|doubt|unless|if|maybe|perhaps|guess|unknown|least"
    r"|most|between|more|less|fewer|than|might|could|or|wrong|incorrect|false|untrue|nobody|no one|no way|disagree"
    r"|except|rounds?(?:\s+(?:up|down|off))?\s+to|first|step)\b|n't|[?<>≤≥≠]"
    r"|\\(?:le|ge|ne|lt|gt|neq|leq|geq)(?![a-z])",
    re.IGNORECASE,
)
"""Anywhere in a sentence: what it says about its number is in doubt."""
_UNTRUE = re.compile(
    r"(?:\b(?:false|untrue|wrong|incorrect|impossible|unlikely|unclear"
    r"|not\s+(?:true|correct|right|the case|clear|possible|sure|certain))"
    r"\s+(?:that|to\s+(?:say|claim|think|believe|conclude))"
    r"|(?<!no\s)(?<!without\s)\bdoubt(?:s|ed|ful)?\s+(?:that|if|whether)|\b(?:nobody|no\s+one)\s+\w+"
    r"|\b(?:maybe|perhaps|possibly|(?:some|others|they|many)\s+(?:say|think|claim|believe))"
    r"|(?:\bcan(?:no|')t|\bcould(?:n't|\s+not))\s+be(?:\s+the\s+case)?\s+that|\b(?:wrong|incorrect|false)(?=\s+(?:answer|result)|\s*$)"
    r"|(?:\bnot|\bnever|n't)\s+(?:think|believe|say|claim|conclude))(?:\s+that)?"
    r"(?:\s+(?:the|my|our|your|its|final|correct|right|it|x))*"
    r"(?:\s+(?:answer|result|solution))?(?:\s+(?:is|equals))?\s*$",
    re.IGNORECASE,
)
_HEDGED = re.compile(
    r"(?:\b(?:could|might|may|can)\s+be|\b(?:maybe|perhaps|possibly|but|plus|minus|times|except(?:\s+for)?)"
    r"|\bno\s+way(?:\s+(?:that|it|this|x|the\s+answer|is|equals))*)\s*$",
    re.IGNORECASE,
)
_TAKEN_BACK = re.compile(
    r"\s*(?:"
    + "|".join(
        (
            r"-?ish\b|(?:squared|cubed|factorial|doubled|tripled|halved|halves|thirds)\b",
            r"(?:four|fif|six|seven|eigh|nin|ten|hundred|thousand|million)ths\b|(?:hundred|thousand|[mbtr]+illion)\b",
            r"(?:plus|minus|times|divided\s+by|less\s+than|more\s+than)\s+[$\d\\]|(?:more|less|fewer)\s+than\b",
            r"times\s+(?:the|as|that|this|more|less)\b|and\s+(?:a|one)\s+(?:half|third|quarter)\b|or\s+so\b",
            r"\?(?=\s|$)|[.,]?\s*(?:no|oops|sorry)\s*[,.!]|[-–—]\s+(?:maybe|perhaps|possibly|or|no|not)\b",
            r",?\s*but\b(?=.*(?:\d|\b(?:not|wrong|maybe|perhaps)\b))|,?\s*as\s+well\s+as\b",
            r",?\s*(?:or\s+)?(?:maybe|perhaps|possibly)\b|,?\s*(?:or|and)\s+(?:it|that|then|else)\b",
            r"(?:is|are)\s+(?:too|(?:less|more|greater|smaller|larger)\s+than)\b",
            r",\s*not\s+(?:really|quite|sure|exactly|certain|necessarily)\b",
            r",?\s*(?:(?:which|that|this|it)\s+)?(?:is|are|was)"
            r"(?:\s+(?:wrong|false|incorrect|impossible|excluded|not\s+(?:it|right|correct|true|the))|n't)\b",
        )
    )
    + ")",
    re.IGNORECASE,
)


def is_untrue(before: str) -> bool:
    """Whether the words before "answer is" say that what follows is not so: "It is false that the"."""
    return _UNTRUE.search(before[-120:]) is not None


def is_denied(before: str) -> bool:
    """Whether the words right before a number deny it, bound it or leave it open."""
    return DENIED.search(before) is not None or is_untrue(before) or _HEDGED.search(before[-120:]) is not None


def is_taken_back(after: str) -> bool:
    """Whether the words right after an answer take it back or make another of it: "- maybe 6", "plus $1$"."""
    return _TAKEN_BACK.match(after[:200].partition("\n")[0]) is not None
