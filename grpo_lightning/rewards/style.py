"""How a completion reads: does it repeat itself, does it stay in one language?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from grpo_lightning.errors import UserError
from grpo_lightning.rewards.completions import completion_text
from grpo_lightning.rewards.settings import at_least, one_of
from grpo_lightning.rewards.words import HAN, KANA, words

Language = Literal["en", "zh", "ja", "ko", "ru", "ar", "hi", "th"]
_SCRIPTS: dict[str, str] = {
    "en": "A-Za-z\u00c0-\u024f",
    "zh": HAN,
    "ja": HAN + KANA,
    "ko": "\uac00-\ud7a3\u1100-\u11ff\u3130-\u318f",
    "ru": "\u0400-\u052f",
    "ar": "\u0600-\u06ff",
    "hi": "\u0900-\u097f",
    "th": "\u0e00-\u0e7f",
}
_CLOSERS = {"```": "```", "`": "`", "$$": "$$", "$": "$", r"\[": r"\]", r"\(": r"\)"}
_OPENER = re.compile(r"```|`|\$\$|\$|\\\[|\\\(")
_ON_ONE_LINE = ("`", "$")
_COMMAND_OR_TAG = re.compile(r"\\[A-Za-z]+|</?[A-Za-z][\w-]*>")


class RepetitionPenalty:
    """``max_penalty`` times the share of n-grams that occurred before in the completion: (1 - different / all).

    A completion of fewer than n words scores 0. Variants:

    - ``default``: lower-case words cut at white space; a Chinese character is a word by itself;
    - ``as_published``: cut at white space only, as in open-r1, for which a Chinese text is one long word without
      repetition;
    - ``tokens``: token ids, as in TRL.

    Source: "Demystifying Long Chain-of-Thought Reasoning" (arXiv 2502.03373, C.2); open-r1's and TRL's
    ``get_repetition_penalty_reward(ngram_size=3, max_penalty=-1.0)``.

    Args:
        n: size of the n-grams.
        max_penalty: score of a text that only repeats itself, in the limit; not positive.
        variant: what the n-grams are made of.
    """

    __name__ = "repetition_penalty"
    inline = True

    def __init__(
        self,
        *,
        n: int = 3,
        max_penalty: float = -1.0,
        variant: Literal["default", "as_published", "tokens"] = "default",
    ) -> None:
        self.n = at_least("RepetitionPenalty", "n", n, 1)
        if max_penalty > 0:
            raise UserError(f"RepetitionPenalty: max_penalty {max_penalty} is positive; give 0 or less, such as -1.0")
        self.max_penalty = max_penalty
        self.variant = one_of("RepetitionPenalty", "variant", variant, ("default", "as_published", "tokens"))

    def __call__(
        self, completions: Sequence[Any], completion_ids: Sequence[Sequence[int]] | None = None, **_: Any
    ) -> list[float | None]:
        if self.variant == "tokens":
            if completion_ids is None:
                raise UserError("RepetitionPenalty: variant tokens needs completion_ids; take variant default")
            return [self._score(ids) for ids in completion_ids]
        texts = [completion_text(completion).lower() for completion in completions]
        return [self._score(text.split() if self.variant == "as_published" else words(text)) for text in texts]

    def _score(self, parts: Sequence[Any]) -> float:
        total = len(parts) - self.n + 1
        if total < 1:
            return 0.0
        different = len(set(zip(*(parts[start:] for start in range(self.n)), strict=False)))
        return (1 - different / total) * self.max_penalty + 0.0  # without it, no repetition is -0.0


class LanguageConsistency:
    """Share of letters that belong to the language's script: 1.0 for a text in one language, 0.0 without any letter.

    Counted are letters of the scripts known here (Latin, Chinese, Japanese, Korean, Cyrillic, Arabic, Devanagari, Thai)
    outside of what belongs to no language: code, formulas, LaTeX commands, tags, digits and signs. Latin stands for
    English, so that other languages written in it pass; Japanese takes Chinese characters as its own.

    Source: the language consistency reward of DeepSeek-R1 (arXiv 2501.12948, 2.3.2), "the proportion of target language
    words in the chain of thought", which published no code; here by letters, since Chinese has no spaces between words.

    Args:
        language: en, zh, ja, ko, ru, ar, hi or th.
    """

    __name__ = "language_consistency"
    inline = True

    def __init__(self, *, language: Language) -> None:
        self.language = one_of("LanguageConsistency", "language", language, tuple(_SCRIPTS))
        self._own = re.compile(f"[{_SCRIPTS[language]}]")
        self._letter = re.compile(f"[{''.join(_SCRIPTS.values())}]")

    def __call__(self, completions: Sequence[Any], **_: Any) -> list[float | None]:
        return [self._share(completion_text(completion)) for completion in completions]

    def _share(self, text: str) -> float:
        text = _COMMAND_OR_TAG.sub(" ", _without_code_and_formulas(text))
        letters = len(self._letter.findall(text))
        return len(self._own.findall(text)) / letters if letters else 0.0


def _without_code_and_formulas(text: str) -> str:
    # One search for each kind of closer first: looking for a missing one behind every opener would be quadratic.
    last = {closer: text.rfind(closer) for closer in _CLOSERS.values()}
    kept, position = [], 0
    while opener := _OPENER.search(text, position):
        closer = _CLOSERS[opener.group()]
        end = text.find(closer, opener.end()) if last[closer] >= opener.end() else -1
        if end >= 0 and closer in _ON_ONE_LINE and "\n" in text[opener.end() : end]:
            end = -1
        kept.append(text[position : opener.start()])
        position = opener.end() if end < 0 else end + len(closer)
    return " ".join([*kept, text[position:]])
