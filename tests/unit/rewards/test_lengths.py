"""Length rewards by hand: cosines of whole fractions of pi, shares of a group's spread."""

from __future__ import annotations

import functools
import math

import pytest

from grpo_lightning.errors import UserError
from grpo_lightning.rewards import CosineLength, KimiLength, SoftOverlongPunishment, best, exact_answer, inline

RIGHT, WRONG = "right", "wrong"


@best(2.0)
@inline
def says_right(completions, answer, **_):
    """2.0 where the text begins as the gold does; the gold "?" cannot be read."""
    return [
        None if gold == "?" else 2.0 * text.startswith(gold) for text, gold in zip(completions, answer, strict=True)
    ]


def half(completions, answer):
    """Half of what a right answer earns, by a function without marks or ``**kwargs``."""
    return [0.5] * len(completions)


def ids(*lengths: int) -> list[list[int]]:
    return [[7] * length for length in lengths]


def test_cosine_of_tokens():
    reward = CosineLength(correctness=says_right)
    lengths = (0, 250, 500, 1000, 3000)
    #  (1 + cos(pi / 4)) / 2 = 0.853553
    right = reward(completions=[RIGHT] * 5, answer=[RIGHT] * 5, completion_ids=ids(*lengths))
    assert right == pytest.approx([1.0, 0.926777, 0.75, 0.5, 0.5], abs=1e-6)
    wrong = reward(completions=[WRONG] * 5, answer=[RIGHT] * 5, completion_ids=ids(*lengths))
    assert wrong == pytest.approx([-1.0, -0.926777, -0.75, -0.5, -0.5], abs=1e-6)


def test_cosine_with_the_recipe_s_settings():
    reward = CosineLength(wrong_short=0.0, correctness=says_right, max_length=100)
    lengths = ids(0, 25, 50, 100, 101)
    assert reward(completions=[WRONG] * 5, answer=[RIGHT] * 5, completion_ids=lengths) == pytest.approx(
        [0.0, -0.073223, -0.25, -0.5, -0.5], abs=1e-6
    )


def test_cosine_of_characters_and_beyond_the_end_as_published():
    texts = [RIGHT.ljust(50), RIGHT.ljust(100), RIGHT.ljust(200), WRONG.ljust(200), RIGHT.ljust(150)]
    arguments = {"completions": texts, "answer": [RIGHT] * 5}
    assert CosineLength(correctness=says_right, max_length=100)(**arguments) == pytest.approx(
        [0.75, 0.5, 0.5, -0.5, 0.5]
    )
    published = CosineLength(correctness=says_right, max_length=100, variant="as_published")
    for tokens in (None, ids(1, 2, 3, 4, 5)):
        assert published(**arguments, completion_ids=tokens) == pytest.approx([0.75, 0.5, 1.0, -1.0, 0.75])


def test_cosine_judges_by_mathematics_unless_told_otherwise():
    texts = ["\\boxed{0.5}", "\\boxed{0.6}"]
    assert CosineLength()(completions=texts, answer=["1/2"] * 2, completion_ids=ids(500, 500)) == [0.75, -0.75]
    scores = CosineLength(correctness=exact_answer)(
        completions=["<answer>5</answer>"], answer=["5"], completion_ids=ids(0)
    )
    assert scores == [1.0]
    assert CosineLength(correctness=half)(completions=[RIGHT], answer=[RIGHT], completion_ids=ids(0)) == [-1.0]


@pytest.mark.parametrize("reward", [CosineLength(correctness=says_right), KimiLength(correctness=says_right)])
def test_does_not_apply_where_nothing_is_known_to_be_right(reward):
    assert reward(completions=[RIGHT, RIGHT], answer=["?", RIGHT], completion_ids=ids(0, 0))[0] is None


def test_inline_as_its_correctness_is():
    assert CosineLength(correctness=says_right).inline
    assert KimiLength(correctness=says_right).inline
    assert not CosineLength(correctness=half).inline


def test_kimi_length_of_each_group():
    reward = KimiLength(correctness=says_right)
    scores = reward(
        prompts=["a"] * 5 + ["b"] * 3 + ["c"] * 2,
        completions=[RIGHT, RIGHT, RIGHT, WRONG, WRONG, RIGHT, WRONG, WRONG, RIGHT, WRONG],
        answer=[RIGHT] * 10,
        completion_ids=ids(10, 20, 30, 10, 30, 1000, 900, 1000, 5, 5),
    )
    assert scores == pytest.approx([0.5, 0.0, -0.5, 0.0, -0.5, -0.5, 0.0, -0.5, 0.0, 0.0])


def test_kimi_length_of_the_batch_as_published():
    texts = [RIGHT, RIGHT + "     ", RIGHT + "          ", WRONG + "          ", WRONG]  # 5, 10 and 15 characters
    arguments = {
        "prompts": list("aabbb"),
        "completions": texts,
        "answer": [RIGHT] * 5,
        "completion_ids": ids(9, 3, 4, 5, 6),
    }
    published = KimiLength(correctness=says_right, variant="as_published")
    assert published(**arguments) == pytest.approx([0.5, 0.0, -0.5, -0.5, 0.0])
    assert KimiLength(correctness=says_right)(**arguments) == pytest.approx([-0.5, 0.5, 0.5, 0.0, -0.5])
    chat = [[{"role": "user", "content": prompt}] for prompt in arguments["prompts"]]
    assert KimiLength(correctness=says_right)(**{**arguments, "prompts": chat}) == pytest.approx(
        [-0.5, 0.5, 0.5, 0.0, -0.5]
    )


def test_soft_overlong_punishment():
    reward = SoftOverlongPunishment(max_length=100, cache_length=20)
    lengths = (0, 80, 81, 90, 99, 100, 101)
    scores = reward(completions=[""] * 7, completion_ids=ids(*lengths))
    assert scores == pytest.approx([0.0, 0.0, -0.05, -0.5, -0.95, -1.0, -1.0])
    step = SoftOverlongPunishment(max_length=100, cache_length=0)
    assert step(completions=[""] * 3, completion_ids=ids(99, 100, 101)) == [0.0, 0.0, -1.0]
    assert math.copysign(1, scores[0]) == 1.0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SoftOverlongPunishment(max_length=10, cache_length=11), "cache_length 11"),
        (lambda: SoftOverlongPunishment(max_length=0, cache_length=0), "max_length 0"),
        (lambda: CosineLength(max_length=0), "max_length 0"),
        (lambda: CosineLength(variant="published"), "variant 'published' .* default, as_published"),
        (lambda: KimiLength(variant="batch"), "variant 'batch'"),
    ],
)
def test_wrong_settings(build, message):
    with pytest.raises(UserError, match=message):
        build()


def test_marks_of_a_correctness_reward_with_bound_arguments_count():
    @inline
    @best(2.0)
    def twice(completions, answer, factor):
        return [factor * float(text == gold) for text, gold in zip(completions, answer, strict=True)]

    reward = CosineLength(max_length=10, correctness=functools.partial(twice, factor=1.0))
    assert reward.inline
    assert reward(["ab"], ["ab"], [[1] * 10]) == [-0.5]  # 1 is not its best: wrong, and at the full length
