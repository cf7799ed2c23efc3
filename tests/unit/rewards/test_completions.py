from __future__ import annotations

from grpo_lightning.rewards import completion_text


def test_completion_text():
    assert completion_text("x") == "x"
    chat = [{"role": "assistant", "content": "a"}, {"role": "user", "content": "u"}]
    assert completion_text(chat) == "a"
    assert completion_text([{"role": "assistant", "content": [{"type": "text", "text": "p"}]}]) == "p"
    assert completion_text([{"role": "user", "content": "u"}]) == ""
    assert completion_text([{"role": "assistant", "content": None}]) == ""
