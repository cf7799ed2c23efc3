r"""The final answer in a completion.

Marked forms, of which the *last* in the text counts: ``\boxed{...}`` (and ``\fbox``), ``<answer>...</answer>``,
``#### x``, ``### 答案: x``. Boxes joined by "and", "or" or a comma count together. Without any of them: the last "the
answer is x" / "Answer: x" / ``答案是 x``, then a text that is nothing but one formula, then the conclusion
(``conclusion``): "The bill comes to $37.00." A number that merely occurs in prose is no answer.

Reasoning never counts: text before the last ``</think>`` is dropped, and a ``<think>`` that was never closed leaves
nothing. A last box that was cut by the length limit is no answer, and neither is what an earlier box said.
"""

from __future__ import annotations

import re

from grpo_lightning.rewards.answers.doubts import DOUBT, is_denied, is_taken_back, is_untrue
from grpo_lightning.rewards.answers.words import spelled_number

_BOX_TOKEN = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*(\{)?|\\.|[{}]", re.DOTALL)
_BARE_BOX = re.compile(r"\s*([-−+]?\d(?:[\d,.]*\d)?)")
_BOX_JOINT = re.compile(
    r"[\s$]*(?:,|;|(?:\\text\{\s*)?(?:,\s*)?(?:and|or)(?:\s*\})?)[\s$]*(?:[a-zA-Z](?:_\d)?\s*=\s*)?"
)
_ANSWER_TAG = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL | re.IGNORECASE)
_TEXT_END = re.compile(
    r"<\|(?:im_end|endoftext|eot_id|end_of_text|end)\|>|</s>|<eos>|<end_of_turn>|<｜end▁of▁sentence｜>"
)
_HASHES = re.compile(
    r"(?<!#)####(?!#)[\s*]*(?:(?:final\s+)?answer\b(?!\s+is)[\s*:\uff1a]*)?((?:(?!</answer>)[^\n])*)", re.IGNORECASE
)
_ANSWER_HEADING = re.compile(
    r"(?<!#)#+[ \t*]*(?:(?:最终)?答案[ \t]*[:\uff1a是为]*|(?:final[ \t]+)?answer\b(?![ \t]+is)[ \t*:]*)\s*([^\n]*)",
    re.IGNORECASE,
)
_SAID = re.compile(
    r"(?:(?<![A-Za-z])(?:answer|(?:correct|right|best)\s+(?:option|choice)|(?:final\s+)?result|solution)(?![A-Za-z])[*_]*"
    r"(?:\s+to\s+(?:the|this)\s+(?:question|problem))?\s*"
    r"(?:(?:is|equals|(?:would|should|must|will)\s+be)\b(?:\s+(?:therefore|thus|then|simply|just|exactly|clearly|obviously|indeed|actually|certainly|definitely|surely|option|choice)\b)*"
    r"|[:\uff1a=])|答案[*]*\s*(?:应该|应)?[:\uff1a是为]{1,2}|答[:\uff1a]"
    r"|^[ \t*_#]*(?:final\s+)?answer[ \t*_:]*\n+)[ \t*_]*[:\uff1a]?\s*",
    re.IGNORECASE | re.MULTILINE,
)
_CHOSEN = re.compile(
    r"\b(?:option|choice)\s+\(?([A-J])\)?\s+is\s+(?:the\s+)?(?:correct|right|best)\b|选\s*([A-J])(?![A-Za-z])",
    re.IGNORECASE,
)
_AFTER_ANSWER = re.compile(
    r",?\s+(?:because|since|as|which|where|so|but|i\.e\.|not)\b|,\s+(?=(?:not|i\.e|that is)\b)"
    r"|,?\s+and\s+(?=(?:we|hence|thus|so|this)\b)|\s+\((?:since|because|as|which|i\.e)\b"
    r"|[，,]\s*(?:而?不是|因为)|\s+[-–—]\s+(?=[A-Za-z])|\?(?=\s|$)",
    re.IGNORECASE,
)
_FEW_HASHES = re.compile(r"^###[ \t]*(\$?[-−]?\d[\d,.]*)[ \t]*$", re.MULTILINE)
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z$\\])|(?<=[。！？])")
_THEREFORE = re.compile(
    r"(?:\b(?:so|thus|therefore|hence|consequently|altogether|we get|which means|which gives|finally|^then"
    r"|in conclusion|in total,)\b|^in total|所以|因此|综上|故)[,，:：]?\s*",
    re.IGNORECASE,
)
_PLAIN_EQUATION = re.compile(r"(?:^|\s)([a-zA-Z]\s*=\s*[^=\s,;]+(?:\s*[-+*/^]\s*[^=\s,;]+)*)$")
_CHINESE = re.compile(r"[\u4e00-\u9fff]")
_COUNTED = re.compile(r"\$?[-−]?\d[\d,]*(?:\.\d+)?(?:\s+[A-Za-z]+){1,3}")
_HEADING_WORD = re.compile(r"(?:step|part|case|note|check|verification|solution|question|problem|explanation)\b", re.I)
_NEXT_QUESTION = re.compile(r"^[ \t]*(?:Question|Problem)[ \t]*[:\uff1a\d]", re.IGNORECASE | re.MULTILINE)
_FORMULA_JOINT = re.compile(r"\s*(?:,|;|,?\s*\b(and|or)\b)\s*")
_SENTENCE_END = re.compile(r"[.。](?=\s|$)|[。\uff01]|[.,;]\s+(?=[A-Z][a-z])")
_MATH = re.compile(r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|\\\((.+?)\\\)|(?<!\\)\$((?:[^$\\]|\\.)+)\$", re.DOTALL)
_PROSE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}\s+[A-Za-z]{2,}|\b(?:is|are|has|have|get)\b")
_NUMBER = re.compile(r"(?<![A-Za-z0-9_.,])[-−]?\$?\d(?:[\d,]*\d)?(?:\.\d+)?(?:/\d+)?%?(?![\d])")
_FORMULA = re.compile(r"[\w\s+\-−*/^=().,{}\[\]\\$%<>|!:°π√]{1,200}")
_WORD = re.compile(r"(?<!\\)\b[A-Za-z]{3,}")
_LONGEST_PROSE = 2_000
"""Characters of a marked place in which a formula is looked for; longer ones are taken as they stand."""


def final_answer(text: str) -> str | None:
    """The final answer as written, or None if the text has none; see the module's docstring for the rules."""
    text = _TEXT_END.split(without_reasoning(text), maxsplit=1)[0]
    following = _NEXT_QUESTION.search(text)
    if following and _marked_answer(text[: following.start()]):
        # A base model goes on with a made-up next question; its answer is not the answer to ours.
        text = text[: following.start()]
    found = _marked_answer(text)
    if found is not None:
        return found or None
    return said_answer(text) or _lone_formula(text) or conclusion(text)


def without_reasoning(text: str) -> str:
    """What follows the last ``</think>``; nothing if a ``<think>`` was opened and never closed."""
    before, closed, after = text.rpartition("</think>")
    answer = after if closed else before + after
    return answer.partition("<think>")[0] if "<think>" in answer else answer


def _marked_answer(text: str) -> str | None:
    """The last marked form; "" if that one was cut, None if there is no mark at all."""
    candidates = [boxed_answer(text), tagged_answer(text), hash_answer(text)]
    found = [candidate for candidate in candidates if candidate is not None]
    return max(found)[1] if found else None


def boxed_answer(text: str) -> tuple[int, str] | None:
    r"""End position and content of the last outermost ``\boxed``; content "" if its brace was never closed.

    Empty boxes are passed over. One pass over the text, whatever it holds.
    """
    stack: list[tuple[bool, int]] = []  # (opened by a box, where its content starts)
    boxes_open = 0
    best: tuple[int, str] | None = None
    box_start = 0
    for token in _BOX_TOKEN.finditer(text):
        symbol = token.group()
        if token.group(1) or symbol == "{":
            boxed = symbol != "{"
            stack.append((boxed, token.end()))
            box_start = token.start() if boxed and not boxes_open else box_start
            boxes_open += boxed
        elif symbol == "}" and stack:
            boxed, start = stack.pop()
            boxes_open -= boxed
            content = text[start : token.start()].strip() if boxed and not boxes_open else ""
            if content:
                joined = (
                    best is not None and box_start - best[0] < 40 and _BOX_JOINT.fullmatch(text[best[0] : box_start])
                )
                best = (token.end(), f"{best[1]}, {content}" if joined and best else content)
        elif symbol.startswith(("\\boxed", "\\fbox")) and not boxes_open:
            bare = _BARE_BOX.match(text, token.end())
            if bare:
                best = (bare.end(), bare.group(1))
    return (len(text), "") if boxes_open else best


def tagged_answer(text: str) -> tuple[int, str] | None:
    """End position and content of the last complete ``<answer>...</answer>``."""
    last = None
    for last in _ANSWER_TAG.finditer(text):  # noqa: B007
        pass
    if last is None:
        return None
    content = _inner(last.group(1))
    return (last.end(), content) if content else None


def hash_answer(text: str) -> tuple[int, str] | None:
    """End position and content of the last ``#### x`` or ``### 答案: x`` line; headings are passed over."""
    best: tuple[int, str] | None = None
    for pattern in (_HASHES, _ANSWER_HEADING, _FEW_HASHES):
        for match in pattern.finditer(text):
            content = match.group(1).strip(' *_"\t')
            is_heading = _HEADING_WORD.match(content) or not re.search(r"\w", content)
            if not is_heading and (best is None or match.end() > best[0]):
                best = (match.end(), content)
    return (best[0], _inner(best[1])) if best else None


def said_answer(text: str) -> str | None:
    """x of the last "the answer is x", "Answer: x" or ``答案是 x``, up to the end of its formula or sentence."""
    last = chosen = None
    for last in _SAID.finditer(text):  # noqa: B007
        pass
    for chosen in _CHOSEN.finditer(text):  # noqa: B007
        pass
    if chosen is not None and (last is None or chosen.end() > last.end() + 40):
        return str(chosen[1] or chosen[2])
    if last is None or is_untrue(text[max(0, last.start() - 120) : last.start()].rpartition("\n")[2]):
        return None
    math = _MATH.match(text, last.end())
    if math:
        answer, end = _joined(text, math)
        return None if is_taken_back(text[end : end + 200]) else answer
    content = text[last.end() : last.end() + _LONGEST_PROSE].partition("\n")[0]
    content = _SENTENCE_END.split(content, maxsplit=1)[0].strip(" *_")
    if re.match(r"not\b", content, re.IGNORECASE):
        return None
    formulas = [next(group for group in groups if group) for groups in _MATH.findall(content)]
    if len(formulas) == 1 and _PROSE.search(_MATH.sub("", content)):
        found = _MATH.search(content)
        doubted = found and (is_denied(content[: found.start()]) or is_taken_back(content[found.end() :]))
        return None if doubted else formulas[0].strip()
    cut = _AFTER_ANSWER.search(content)
    if cut and is_taken_back(content[cut.start() :]):
        return None
    content = content[: cut.start() if cut else None].strip(" *_,`")
    told = _PROSE.search(content) or _CHINESE.search(content)
    return (_counted_in(content) if told and not formulas else None) or content or None


def _joined(text: str, math: re.Match[str]) -> tuple[str, int]:
    """A formula and those that "or", or a list up to the sentence's end, joins to it; and where they end."""
    found, alternatives, end = [math], False, math.end()
    while joint := _FORMULA_JOINT.match(text, end):
        following = _MATH.match(text, joint.end())
        if following is None or len(found) > 20:
            break
        found.append(following)
        alternatives, end = alternatives or joint[1] == "or", following.end()
    if not alternatives and not re.match(r"\s*(?:[.。!]|$)", text[end : end + 20]):
        found = found[:1]
    return ", ".join(map(_inside, found)), found[-1].end()


def _inside(math: re.Match[str]) -> str:
    return next(group for group in math.groups() if group).strip()


def _last_formulas(content: str) -> str | None:
    """The last formula of a sentence and those joined to it; None if the sentence denies them or leaves a choice."""
    found = list(_MATH.finditer(content))
    first = len(found) - 1
    while first and _FORMULA_JOINT.fullmatch(content[found[first - 1].end() : found[first].start()]):
        first -= 1
    before = content[found[first - 1].end() if first else 0 : found[first].start()]
    choice = first and re.search(r"\bor\b", before)
    if choice or is_denied(before) or is_taken_back(content[found[-1].end() :]):
        return None
    return ", ".join(map(_inside, found[first:]))


def _counted_in(prose: str) -> str | None:
    """From the only number on: "26 cookies left" of "He has 26 cookies left"; None if in doubt."""
    numbers = list(_NUMBER.finditer(prose))
    return prose[numbers[0].start() :] if len(numbers) == 1 and not DOUBT.search(prose) else None


def conclusion(text: str) -> str | None:
    """The one number or equation of a text that is a single sentence, or of a last sentence that says "so" or the like.

    The sentence must have been finished and say nothing that doubts or bounds the number.
    """
    text = text.strip()[-_LONGEST_PROSE:].strip("*_ ")
    if not text.endswith((".", "!", "。", "$", ")", "]")):
        return None
    lines = [line for line in text.split("\n") if line.strip()]
    sentences = [sentence for sentence in _SENTENCE.split(lines[-1]) if sentence.strip()]
    last = sentences[-1] if sentences else ""
    said = _THEREFORE.split(last)
    if (len(said) == 1 and (len(sentences) > 1 or len(lines) > 1)) or DOUBT.search(last):
        return None
    clause = said[-1].strip(" ,.!。*_")
    formulas = list(_MATH.finditer(clause))
    outside = _MATH.sub(" ", clause)
    if formulas:
        alone = len(formulas) == 1 and not _NUMBER.search(outside)
        return _inside(formulas[0]) if alone and not is_taken_back(clause[formulas[0].end() :]) else None
    equation = _PLAIN_EQUATION.search(outside)
    if equation:
        return equation[1].strip()
    numbers = list(_NUMBER.finditer(outside))
    if len(numbers) != 1 or is_taken_back(outside[numbers[0].end() :]):
        return None
    return None if re.search(r"\d", outside.replace(numbers[0].group(), "", 1)) else numbers[0].group()


def _inner(content: str) -> str:
    """The answer inside a marked place that may hold prose: a box, "the answer is", the formula, the one number."""
    if len(content) > _LONGEST_PROSE:
        return content
    box = boxed_answer(content)
    if box is not None:
        return box[1]
    said = said_answer(content)
    if said is not None:
        return said
    content = content.strip().removeprefix("####").strip()
    if _CHINESE.search(content):
        return _counted_in(content) or content
    if not _PROSE.search(_MATH.sub("", content)):
        return content
    if _MATH.search(content):
        return _last_formulas(content) or content
    numbers = list(_NUMBER.finditer(content))
    if len(numbers) != 1 or is_denied(content[: numbers[0].start()]) or is_taken_back(content[numbers[0].end() :]):
        return content
    return numbers[0].group()


def _is_spelled(text: str) -> bool:
    spelled = spelled_number(text.strip("."))
    return spelled is not None and not spelled[1]


def _lone_formula(text: str) -> str | None:
    """A text that is one formula and nothing else is its own answer."""
    text = text.strip()
    words = [word for word in _WORD.findall(text) if word not in ("sqrt", "frac", "text", "left", "right")]
    if _THEREFORE.match(text):
        return None
    if len(text) < 60 and (_COUNTED.fullmatch(text) or _is_spelled(text)):
        return text
    return text if text and "\n" not in text and _FORMULA.fullmatch(text) and not words else None
