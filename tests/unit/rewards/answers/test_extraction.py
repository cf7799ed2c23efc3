from __future__ import annotations

import time

import pytest

from grpo_lightning.rewards.answers.extraction import boxed_answer, final_answer, without_reasoning


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so $\boxed{7}$", "7"),
        (r"so \boxed {7} and so on", "7"),
        (r"hence \boxed 7", "7"),
        (r"\boxed{\frac{\sqrt{3}}{2}}", r"\frac{\sqrt{3}}{2}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{42} \boxed{}", "42"),
        (r"\boxed{5} but then \boxed{\frac{1}{2", None),
        (r"put it in \boxed and stop", None),
        ("<answer>72</answer> and 9", "72"),
        ("<answer>The answer is $x=5$.</answer>", "x=5"),
        ("<answer>Tom has 18 apples.</answer>", "18"),
        (r"<answer>It is \(\frac{1}{2}\) of the whole.</answer>", r"\frac{1}{2}"),
        ("<answer>72", None),
        ("<answer>#### 72</answer>", "72"),
        ("7*8=56\n#### 56\nThis agrees with 12.", "56"),
        ("#### 23\nWait.\n#### 24", "24"),
        ("####\n18", "18"),
        ("#### Final Answer\n18", "18"),
        ("#### Step 3: add 5\n" + r"\boxed{18}", "18"),
        ("#### The answer is 18.", "18"),
        ("#### **18**", "18"),
        (r"#### \boxed{18}", "18"),
        ("### 18", "18"),
        ("### 答案\uff1a18", "18"),
        ("所以答案是 18。", "18"),
        ("The answer is 42.", "42"),
        ("The answer is 4.5. Good.", "4.5"),
        ("The final answer is $42$. I hope it is correct.", "42"),
        ("**Final Answer:** **42**", "42"),
        ("\\boxed{7} then <answer>72</answer>", "72"),
        ("<answer>7</answer> so \\boxed{72}", "72"),
        ("#### 42\nQuestion: Tom has 3.\nAnswer: 5\n#### 5", "42"),
        ("72", "72"),
        ("x = 72", "x = 72"),
        ("The total is 18 dollars, she has 4 left over.", None),
        ("I do not know.", None),
        ("So 31.", "31"),
        ("The bill comes to $37.00.", "$37.00"),
        ("We add.\nTherefore, x = 5.", "x = 5"),
        ("It was 5. It grew to 7.", None),
        ("So it is not 5.", None),
        ("So x is 5", None),
        ("The answer cannot be 5.", None),
        ("The answer is definitely not $5$.", None),
        ("The answer is clearly $5$.", "5"),
        ("答案不可能是5。", None),
        ("答案大于5。", None),
        ("The answer is $5$ or $6$.", "5, 6"),
        ("The answer is $5$, $6$ and $7$.", "5, 6, 7"),
        ("The answer is $5$, and $6$ is left over.", "5"),
        ("The answer is half of $5$.", None),
        ("So it is twice 5.", None),
        ("<answer>it can't be 5</answer>", "it can't be 5"),
        ("<answer>The number who didn't go is 5</answer>", "5"),
        ("#### at least 5", "at least 5"),
        ("He has 26 cookies and 5 cakes.", None),
        (r"$\boxed{3}$ or $\boxed{5}$", "3, 5"),
        ("The answer is 41? No. The answer is 42.", "42"),
        ("Answer: He has 26 cookies left.", "26 cookies left"),
        ("**Final Answer**\n\n\\[ 5 \\]", "5"),
        ("The answer is 5<|im_end|> and 6", "5"),
        ("Option C is the correct answer.", "C"),
        ("答案是150，不是151。", "150"),
        ("", None),
        (" \n\t", None),
        ("\x00\U0001f600\u202e7", None),
    ],
)
def test_final_answer(text, answer):
    assert final_answer(text) == answer


def test_reasoning_never_counts():
    assert final_answer(r"<think>\boxed{3}</think>#### 4") == "4"
    assert final_answer(r"<think>\boxed{3}</think> I forgot it.") is None
    assert final_answer(r"<think>\boxed{3}") is None
    assert final_answer(r"<think>a</think>#### 1<think>\boxed{3}") == "1"
    assert without_reasoning("a</think>b</think>c") == "c"


def test_position_of_a_box_is_its_end():
    assert boxed_answer(r"ab\boxed{1}cd") == (11, "1")
    assert boxed_answer(r"\boxed{\boxed{7}}") == (17, r"\boxed{7}")
    assert boxed_answer("no box") is None


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{" * 15_000,
        "<answer>" * 12_000,
        "#### " * 20_000,
        "#" * 100_000,
        "####\n" * 20_000,
        "the answer is " * 7_000,
        "answer" + " " * 100_000,
        "\n \n" * 33_000,
        "<answer>" + "\\[" * 50_000 + "</answer>",
        "$$a" * 33_000,
        "\\" * 100_000,
        "{" * 100_000,
    ],
)
def test_time_grows_with_length_only(text):
    start = time.perf_counter()
    final_answer(text)
    assert time.perf_counter() - start < 1.0
