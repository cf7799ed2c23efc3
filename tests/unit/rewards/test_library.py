"""What holds for every public reward: TRL's form, a source in its docstring, no exception and no long wait, bounds."""

from __future__ import annotations

import inspect
import math
import re
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_lightning import rewards

#  Arguments of the classes that need some, that have variants, or that shall not judge by mathematics here.
ARGUMENTS: dict[str, list[dict[str, Any]]] = {
    "CosineLength": [{"correctness": rewards.exact_answer}, {"correctness": rewards.exact_answer, "wrong_short": 0.0}],
    "KimiLength": [{"correctness": rewards.exact_answer, "variant": name} for name in ("default", "as_published")],
    "LanguageConsistency": [{"language": name} for name in ("en", "zh", "th")],
    "ReasoningKeywords": [{"variant": name} for name in ("default", "as_published")],
    "RepetitionPenalty": [{"variant": name} for name in ("default", "as_published", "tokens")],
    "ShapedAccuracy": [{"variant": name} for name in ("default", "documented", "as_published")],
    "SoftOverlongPunishment": [{"max_length": 10, "cache_length": 5}],
    "TieredAccuracy": [{"variant": name} for name in ("default", "as_published")],
}
#  What they hand on (to sympy, to a child process, to a model) has limits and tests of its own.
JUDGES = {"gsm8k_accuracy", "math_accuracy"}
HEAVY = {"CodeTests", "RewardModel"}
BOUNDS = {
    "code_format": (0, 1),
    "choice_format_soft": (0, 0.5),
    "choice_format_strict": (0, 1),
    "cosine_length": (-1, 1),
    "exact_answer": (0, 2),
    "exact_answer_as_published": (0, 2),
    "gsm8k_accuracy": (0, 1),
    "integer_answer": (0, 0.5),
    "integer_answer_as_published": (0, 0.5),
    "kimi_length": (-0.5, 0.5),
    "language_consistency": (0, 1),
    "math_accuracy": (0, 1),
    "multiple_choice": (0, 2),
    "reasoning_format_soft": (0, 0.5),
    "reasoning_format_soft_as_published": (0, 0.5),
    "reasoning_format_strict": (0, 0.5),
    "reasoning_keywords": (0, 0.5),
    "reasoning_length": (0, 0.75),
    "reasoning_steps": (0, 1),
    "reasoning_steps_as_published": (0, 1),
    "repetition_penalty": (-1, 0),
    "shaped_accuracy": (-1, 1),
    "soft_overlong_punishment": (-1, 0),
    "tag_count": (0, 1),
    "think_answer_format": (0, 1),
    "think_answer_format_strict": (0, 1),
    "think_format": (0, 1),
    "tiered_accuracy": (-1, 1),
    "xml_count": (-math.inf, 0.5),
    "xml_count_as_published": (-math.inf, 0.502),
    "xml_count_three_tags": (0, 0.375),
}
PIECES = [
    *("<reasoning>", "</reasoning>", "<think>", "</think>", "<answer>", "</answer>", "\n", "\n</answer>\n", " "),
    *("</reasoning><answer>", "<answer>A</answer>", "\\boxed{", "\\boxed{A}", "}", "{", "(", "\\(", "\\[", "$", "$$"),
    *(
        "`",
        "```",
        "```python",
        "#### ",
        "### 答案:",
        "the answer is ",
        "5",
        "1,",
        "1 ",
        ".",
        "-",
        "=",
        "\\frac{",
        "<",
        "<a",
    ),
    *(
        "步",
        "首先",
        "第1步:",
        "Step 1:",
        "\n1.",
        "\n- ",
        "First,",
        "row",
        "no repeat ",
        "a ",
        "<<1=",
        ">>",
        "\x00",
        "\ud800",
        "İ",
    ),
]


def takes_completions(value: Any) -> bool:
    call = value.__call__ if inspect.isclass(value) else value
    return callable(call) and "completions" in inspect.signature(call).parameters


PUBLIC = {name: value for name in rewards.__all__ if takes_completions(value := getattr(rewards, name))}
LIGHT = [
    value(**arguments) if inspect.isclass(value) else value
    for name, value in PUBLIC.items()
    if name not in JUDGES | HEAVY
    for arguments in ARGUMENTS.get(name, [{}])
]


def score(reward: Any, completions: list[Any], golds: list[str]) -> list[float | None]:
    return reward(
        prompts=["p", *["q"] * (len(completions) - 1)],
        completions=completions,
        completion_ids=[list(str(completion).encode("utf-8", "replace")) for completion in completions],
        answer=golds,
        solution=golds,
        trainer_state=None,
        log_extra=lambda name, values: None,
        log_metric=lambda name, value: None,
    )


def named(reward: Any) -> str:
    return str(reward.__name__)


@pytest.mark.parametrize("name", PUBLIC)
def test_names_its_source(name: str) -> None:
    assert re.search(r"Source|arXiv|TRL|open-r1|verl|math-verify|GSM8K", PUBLIC[name].__doc__ or ""), name


@pytest.mark.parametrize("reward", [*LIGHT, *(PUBLIC[name] for name in sorted(JUDGES))], ids=named)
def test_scores_texts_and_chat_messages_alike(reward: Any) -> None:
    texts = ["<reasoning>\nrow\n</reasoning>\n<answer>\n\\boxed{A}\n</answer>\n", "\\boxed{5}", "因此 ### 答案: 5", ""]
    golds = ["A", "5", "#### 5", "5"]
    chats = [[{"role": "assistant", "content": text}] for text in texts]
    scores = score(reward, texts, golds)
    assert len(scores) == len(texts)
    assert all(value is None or type(value) is float for value in scores)
    chat_scores = reward(
        prompts=[[{"role": "user", "content": prompt}] for prompt in "pqqq"],
        completions=chats,
        completion_ids=[list(text.encode()) for text in texts],
        answer=golds,
    )
    assert chat_scores == scores


@pytest.mark.parametrize("reward", LIGHT, ids=named)
def test_is_called_in_the_trainer_s_process(reward: Any) -> None:
    assert reward.inline is True


def test_every_name_has_bounds() -> None:
    assert {named(reward) for reward in LIGHT} == set(BOUNDS)


texts = st.one_of(st.lists(st.sampled_from(PIECES), max_size=40).map("".join), st.text(max_size=60))
golds = st.one_of(st.sampled_from(["5", "A", "", "#### 5", "<<1+1=2>>2\n#### 2", "\\boxed{B}"]), st.text(max_size=20))


@settings(deadline=None, max_examples=200)
@given(rows=st.lists(st.tuples(texts, golds), min_size=1, max_size=4))
def test_never_raises_and_stays_within_its_bounds(rows: list[tuple[str, str]]) -> None:
    for reward in LIGHT:
        least, most = BOUNDS[named(reward)]
        scores = score(reward, [text for text, _ in rows], [gold for _, gold in rows])
        assert len(scores) == len(rows)
        for value in scores:
            assert value is None or least <= value <= most + 1e-9, (named(reward), rows, value)


def test_any_text_of_100_000_characters_takes_less_than_a_second() -> None:
    frames = ["{}", "<answer>{}</answer>", "<reasoning>\n{}\n</reasoning>\n<answer>\n{}\n</answer>\n"]
    for number, piece in enumerate(PIECES):
        frame = frames[number % len(frames)]
        text = frame.replace("{}", piece * (100_000 // len(piece) // frame.count("{}")))
        for reward in LIGHT:
            started = time.process_time()
            reward(prompts=["p"], completions=[text], completion_ids=[[1, 2] * 4_000], answer=["5"])
            assert time.process_time() - started < 1.0, (named(reward), piece, frame)
