"""What the model is asked: one prompt as it sees it, and how long the prompts are."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

from grpo_lightning.types import Prompt

BINS, BAR = 10, 40
SHOWN = 1500
"""Characters of a prompt; of a longer one, the beginning and the end."""
LONG, NAMED = 4000, 5
"""Characters from which on a comparison is a rough one, and words that a sentence names."""


def rendered(prompt: Prompt, tokenizer: Any) -> str:
    """The prompt decoded from its tokens, special ones included, a line's end as it is.

    Args:
        prompt: of the training data.
        tokenizer: the policy's.
    """
    text = tokenizer.decode(prompt.token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    if len(text) > SHOWN:
        text = f"{text[: SHOWN // 2]}\n[... {len(text) - SHOWN} characters ...]\n{text[-SHOWN // 2 :]}"
    return "\n".join(f"| {line}" for line in text.split("\n"))


def remarks(prompt: Prompt, tokenizer: Any) -> Iterator[tuple[str, str]]:
    """(mark, sentence) on how the prompt begins, ends and what it is written in; ``!`` marks what may be a fault."""
    ids, bos = prompt.token_ids, tokenizer.bos_token_id
    pieces = [repr(tokenizer.decode([token])) for token in ids]
    front, back = " ".join(pieces[:6]), " ".join(pieces[-6:])
    yield "", f"Row {prompt.row} of {prompt.source}, {len(ids)} tokens, begins {front} and ends {back}."
    yield "", "Written as chat turns." if prompt.messages is not None else "Written as plain text."
    adds = bos is not None and tokenizer.encode("a", add_special_tokens=True)[:1] == [bos]
    if bos is None or bos == tokenizer.eos_token_id:
        yield "", "The tokenizer has no beginning-of-sequence token of its own, and none is added."
    elif ids[:1] == [bos]:
        yield "", f"It begins with one {tokenizer.bos_token}, as it should."
    elif adds:
        yield (
            "!",
            f"It does not begin with {tokenizer.bos_token}, which the tokenizer puts before a text.",
        )
    if prompt.prefill:
        tag = prompt.prefill.strip()
        yield "", f"The prompt ends with {tag}: completions begin inside it, and are scored with it in front."


def lost_text(prompts: Sequence[Prompt], tokenizer: Any) -> str:
    """A sentence on the first prompt whose tokens do not say what its text says; empty if there is none.

    White space is not looked at, since many tokenizers make it anew. Letters are compared by their parts (NFKD), so
    that an accent may stand apart from its letter.

    Args:
        prompts: of the training data.
        tokenizer: the policy's.
    """
    for prompt in prompts:
        told = tokenizer.decode(prompt.token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        unknown = tokenizer.unk_token
        if unknown and unknown not in prompt.text:
            told = told.replace(unknown, "\N{REPLACEMENT CHARACTER}")
        written, decoded = _parts(prompt.text), _parts(told)
        rest = iter(part for part, _ in decoded)
        if all(part in rest for part, _ in written):  # all is there, in order
            continue
        matcher = difflib.SequenceMatcher(
            None, [part for part, _ in written], [part for part, _ in decoded], autojunk=len(written) > LONG
        )
        lost = {
            place
            for kind, start, end, *_ in matcher.get_opcodes()
            if kind in ("delete", "replace")
            for _, place in written[start:end]
        }
        spans = [
            span for span in re.finditer(r"\S+", prompt.text) if not lost.isdisjoint(range(span.start(), span.end()))
        ]
        words = list(dict.fromkeys(repr(span.group()) for span in spans))
        more = f" and {len(words) - NAMED} more words" if len(words) > NAMED else ""
        return (
            f"Row {prompt.row}: the tokenizer drops or changes {len(lost)} of the prompt's {len(prompt.text)} "
            f"characters: in {', '.join(words[:NAMED])}{more}. The model does not see them as they are written."
        )
    return ""


def _parts(text: str) -> list[tuple[str, int]]:
    """The text's characters without white space, taken apart, each with its place."""
    return [
        (part, place)
        for place, character in enumerate(text)
        for part in unicodedata.normalize("NFKD", character)
        if not part.isspace()
    ]


def histogram(lengths: Sequence[int], *, limit: int) -> str:
    """Rows by the tokens of their prompt, those beyond ``limit`` marked as left out.

    Args:
        lengths: of every row's prompt, in tokens.
        limit: longest prompt that is kept.
    """
    low, high = min(lengths), max(lengths)
    width = max(-(-(high - low + 1) // BINS), 1)
    edges = list(range(low, high + 1, width))
    if low <= limit < high:  # the limit ends a bin
        edges = sorted({*edges, limit + 1})
    counts = [sum(start <= n < end for n in lengths) for start, end in zip(edges, [*edges[1:], high + 1], strict=True)]
    lines = []
    for start, end, count in zip(edges, [*edges[1:], high + 1], counts, strict=True):
        bar = "#" * -(-count * BAR // max(counts))
        dropped = "  left out" if start > limit and count else ""
        lengths_of = f"{start:>6}" + (f" to {end - 1:<6}" if end - 1 > start else " " * 10)
        lines.append(f"{lengths_of} {count:>7,} {bar}{dropped}".rstrip())
    ordered = sorted(lengths)
    marks = ", ".join(f"{name} {ordered[int(share * (len(ordered) - 1))]}" for name, share in MARKS)
    lines.append(f"tokens of a prompt: {marks}; limit --data.max_prompt_length {limit}")
    return "\n".join(lines)


MARKS = (("shortest", 0.0), ("half", 0.5), ("95%", 0.95), ("longest", 1.0))
