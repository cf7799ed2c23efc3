"""The tiers and the shaped sum, by hand."""

from __future__ import annotations

import pytest

from grpo_lightning.errors import UserError
from grpo_lightning.rewards import ShapedAccuracy, TieredAccuracy
from tests.unit.rewards.trl_form import check

NOTES = "Ann has 48/2 = <<48/2=24>>24 left, 48+24 = <<48+24=72>>72 in all, <<72*1000=72,000>>72,000 grams.\n#### 18"


def test_tiers():
    check(
        TieredAccuracy(),
        {
            "算出来的结果是 \\boxed{18}": 1.0,
            "算一下。\n### 答案: 18": 1.0,
            "算一下。\n### 答案：18 元": 1.0,
            "### 答案: 17\n不对\n### 答案: 18": 1.0,
            "Well, the answer is 18.": 1.0,
            "So the answer is 17. No, the answer is 18.": 1.0,
            "The answer is: $18.00. Done": 1.0,
            "\\boxed{18}": 1.0,
            "\\boxed{18} ### 答案: 17": 1.0,  # the box goes first
            "\\boxed{17}, no: \\boxed{18}": 1.0,
            "首先计算。\n### 答案: 17": 0.2,
            "Step 1: add.\n### 答案: 17": 0.2,
            "因此就是这样。\n### 答案: 17": 0.2,
            "算一下就知道。\n### 答案: 17": 0.0,
            "the answer is 17 or 18": 0.0,
            "首先我们来计算一下总数": 0.1,
            "解：设有若干个苹果在树上": 0.1,
            "I do not know it.": -0.5,
            "因此就是这样的一个结果": -0.5,  # counts beside an answer only
            "十八": -1.0,
            "123456789": -1.0,
            "1234567890": -0.5,
            "         18         ": -1.0,
            "": -1.0,
        },
        answer="18",
    )


def test_normal_forms():
    table = {"答案在这里：\\boxed{0018}": 1.0, "答案在这里：\\boxed{ 18 }": 1.0, "答案在这里：\\boxed{180}": 0.0}
    check(
        TieredAccuracy(),
        {**table, "答案在这里：\\boxed{1, 8}": 0.0, "答案在这里：\\boxed{18.0}": 1.0, "### 答案: 18\n": 1.0},
        answer="18",
    )
    published = {
        "答案在这里：\\boxed{1, 8}": 1.0,
        "答案在这里：\\boxed{18.0}": 0.0,
        "### 答案: 18": 1.0,
        "\\boxed{8}": -1.0,
    }
    check(TieredAccuracy(variant="as_published"), {**table, **published}, answer="18")
    check(TieredAccuracy(), {"\\boxed{5}": 1.0}, answer="5")
    check(TieredAccuracy(variant="as_published"), {"\\boxed{5}": -1.0, "答案：\\boxed{5}..": 1.0}, answer="5")
    for variant in ("default", "as_published"):
        check(
            TieredAccuracy(variant=variant),
            {"the answer is 0": 1.0, "the answer is 000": 1.0, "the answer is 1": 0.0},
            answer="0",
        )
        check(TieredAccuracy(variant=variant), {"the answer is 1,234": 1.0, "the answer is 1234": 1.0}, answer="1,234")
        check(
            TieredAccuracy(variant=variant), {"the answer is North": 1.0, "the answer is up": 0.0}, answer="#### north"
        )
        check(TieredAccuracy(variant=variant), {"the answer is 5": None}, answer=" ")


def test_reasoning_is_no_answer():
    check(TieredAccuracy(), {"<think>\\boxed{18}</think> I do not know": -0.5, "<think>\\boxed{18}": -0.5}, answer="18")


def test_shaped():
    table = {
        # base 0.2; marker and structure word; two of the step phrases; the results 24 and 72 of three
        "首先 48/2=24，然后 48+24=72。\n### 答案: 17": 0.2 + 0.25 + 0.2 * 2 / 5 + 0.5 * 2 / 3,
        "48/2=24，检查。\n### 答案: 17": 0.15 + 0.05 + 0.5 / 3,
        "### 答案: 18": 1.0,
        "\\boxed{18}": 1.0,
        "接着算：24。\n\\boxed{17}": 0.0 + 0.25 + 0.04 + 0.5 / 3,
        "第1步：想。第2步: 算。\\boxed{17}": 0.2 + 0.15 + 0.04,
        "Step 1: think. Step 2: do.": 0.1 + 0.1 + 0.04,
        "240 and 720 and 72000 grams": -0.5 + 0.5 / 3,
        "48/2=24.0": -1.0 + 0.5 / 3,
        "首先": -1.0 + 0.1 + 0.04,
        "": -1.0,
    }
    check(ShapedAccuracy(), table, answer="18", published_answer=NOTES)
    check(ShapedAccuracy(), table, answer="18", published_answer="none", solution=NOTES)
    check(ShapedAccuracy(), {"接着算：24。\n\\boxed{17}": 0.29}, answer="18")
    check(ShapedAccuracy(), {"接着算：24。\n\\boxed{17}": 0.29 + 0.5 / 3}, answer=NOTES)


def test_a_wrong_answer_never_earns_what_a_right_one_does():
    everything = "首先 24 然后 72 接着 72,000 最后 第3步: step 4: 验证\n### 答案: 17"
    #  0.2 + 0.3 + 0.2 + 0.5 = 1.2
    check(ShapedAccuracy(), {everything: 0.9}, answer="18", published_answer=NOTES)
    check(ShapedAccuracy(cap=0.5), {everything: 0.5}, answer="18", published_answer=NOTES)
    check(ShapedAccuracy(variant="documented"), {everything: 1.0}, answer="18", published_answer=NOTES)


def test_shaped_as_published():
    check(
        ShapedAccuracy(variant="as_published"),
        {
            "首先 24 然后 72 接着 72,000 最后 第3步: step 4: 验证\n### 答案: 17": 0.2 + 0.3 * 0.3 + 0.2,
            "接着算：24。\n\\boxed{17}": 0.0 + 0.3 * 0.25 + 0.04,
            "### 答案: 18": 1.0,
            "\\boxed{18.0}, 就是它": 0.3 * 0.15,  # texts are compared
            "I do not know it.": -0.5,
            "": -1.0,
        },
        answer="18",
        published_answer=NOTES,
    )


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: TieredAccuracy(variant="documented"), "variant 'documented'"),
        (lambda: ShapedAccuracy(variant="x"), "variant 'x'"),
        (lambda: ShapedAccuracy(cap=1.5), "cap 1.5"),
    ],
)
def test_wrong_settings(build, message):
    with pytest.raises(UserError, match=message):
        build()
