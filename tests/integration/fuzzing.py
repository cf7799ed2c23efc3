"""Random and hostile completions, and everything of the package that handles such text."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow.parquet as pq
import torch

from grpo_lightning import rewards
from grpo_lightning.callbacks.rollout import RolloutCallback
from grpo_lightning.callbacks.samples import SamplesCallback
from grpo_lightning.data.answer_formats import ANSWER_FORMATS, continuation
from grpo_lightning.data.arithmetic import last_total
from grpo_lightning.data.final_answers import formula_answer, number_answer
from grpo_lightning.data.templates import PromptTemplate
from grpo_lightning.report.command import write_report
from grpo_lightning.types import Completion, Prompt, PromptBatch, Rollout, ScoredPrompts
from tests.integration.browser import CHROMIUM, opened
from tests.unit.data.character_tokenizer import CHAT, letters
from tests.unit.report.run_folders import CONFIG, run_folder
from tests.unit.rewards.test_library import JUDGES, LIGHT, PIECES, PUBLIC, score

GROUP = 10
LARGEST_PAGE = 20_000_000
"""Bytes: plotly.js, and at most 2,000 completions of 3,000 characters."""
MARKUP = [
    "</script><script>run()</script>", "<img src=x onerror=run()>", "<svg/onload=run()>", "<!--", "-->", "<![CDATA[",
    "<a href='javascript:run()'>", "&lt;script&gt;", "&#60;", "<iframe srcdoc='<script>run()</script>'>", "<style>*{",
    "<base href=//x>", "\u2028", "\u2029", "]]>", "'\"`", "\\u003cscript\\u003e", "<b onmouseover=run()>", "%{x}",
]  # fmt: skip
COMMANDS = [
    "\\frac",
    "\\boxed",
    "\\sqrt",
    "\\text",
    "\\left(",
    "\\right)",
    "^",
    "_",
    "\\begin{matrix}",
    "\\\\",
    "&",
    "$",
]
TEMPLATES = [
    "{{ 7*7 }}",
    "{% for i in x %}",
    "${x}",
    "%s",
    "{0}",
    "{question}",
    "{answer}",
    "<|im_end|>",
    "<think>",
    "</think>",
]
ODD = [
    "\u202e",
    "\u200d",
    "\ufeff",
    "e\u0301\u0323\u0489",
    "👩‍👩‍👧",
    "\x1b[31m",
    "\x07",
    "\r",
    "\t",
    "\x00",
    "\ud83d",
    "\udfff",
    "�",
    "٣",
    "Ⅷ",
    "½",
]


def _bytes(draw: random.Random) -> str:
    return draw.randbytes(draw.randrange(200)).decode("utf-8", draw.choice(["replace", "surrogateescape", "ignore"]))


def _pieces(of: list[str], most: int) -> Callable[[random.Random], str]:
    return lambda draw: "".join(draw.choice(of) for _ in range(draw.randrange(most)))


def _latex(draw: random.Random) -> str:
    inside = "".join(draw.choice([*COMMANDS, "{", "}", "x", "1", "2", "+"]) for _ in range(draw.randrange(30)))
    return draw.choice(["\\boxed{%s}", "$%s$", "#### %s", "<answer>%s</answer>", "the answer is %s"]) % inside


def _deep(draw: random.Random) -> str:
    depth, piece = (
        draw.choice([50, 500, 3_000]),
        draw.choice(["(", "[", "{", "\\boxed{", "\\frac{", "\\sqrt{", "<think>"]),
    )
    return f"#### {piece * depth}1{draw.choice([')', ']', '}', '}', '']) * depth}"


def _digits(draw: random.Random) -> str:
    number = draw.choice(
        ["9" * draw.choice([20, 400, 5_000]), "9^9^9^9", "1e999999", "10**10**10", "0." + "3" * 3_000, "1/0"]
    )
    return draw.choice(["#### %s", "\\boxed{%s}", "%s", "-%s%%"]) % number


def _long(draw: random.Random) -> str:
    return draw.choice([*PIECES, *MARKUP, *ODD]) * draw.choice([1_000, 10_000])


KINDS: list[tuple[int, Callable[[random.Random], str]]] = [
    (4, _bytes),
    (4, _pieces(PIECES, 30)),
    (4, _pieces([*MARKUP, *PIECES], 20)),
    (3, _pieces([*TEMPLATES, *PIECES, *ODD], 20)),
    (4, _latex),
    (1, _deep),
    (2, _digits),
    (1, _long),
]


def hostile_completions(number: int, *, seed: int) -> list[str]:
    """The same ``number`` texts for the same seed."""
    draw = random.Random(seed)
    weights = [weight for weight, _ in KINDS]
    return [draw.choices(KINDS, weights)[0][1](draw) for _ in range(number)]


def survive(texts: list[str], folder: Path) -> None:
    """Put the texts through templates, rewards, the table of samples and the report.

    Args:
        texts: completions; a multiple of 10.
        folder: for a run folder.
    """
    _through_templates(texts)
    golds = [("5", "A", "", "#### 5", "x+1")[i % 5] for i in range(len(texts))]
    terms = _through_rewards(texts, golds)
    file = _through_the_table(texts, golds, terms, folder / "run")
    table = pq.read_table(file)
    assert table["completion"].to_pylist() == [_utf8(text) for text in texts]
    assert file.stat().st_size < 10_000 + 2 * sum(len(_utf8(text).encode()) + 500 for text in texts)
    _through_the_report(texts, folder)


def _through_templates(texts: list[str]) -> None:
    tokenizers = [letters(bos=True), letters(chat=CHAT)]
    for i, text in enumerate(texts):
        text = text.encode("utf-8", "replace").decode()  # a question has been UTF-8
        name = list(ANSWER_FORMATS)[i % len(ANSWER_FORMATS)]
        template = PromptTemplate(answer_format=cast(Any, name))
        prompt = template.prompt({"question": text[:2_000]}, tokenizer=tokenizers[i % 2])
        assert text[:2_000] in prompt.text
        assert text in ANSWER_FORMATS[name].show(text)
        continuation(prompt.prefill, ANSWER_FORMATS[name].show("1", text))


def _through_rewards(texts: list[str], golds: list[str]) -> dict[str, list[float | None]]:
    terms = {}
    for number, reward in enumerate([*LIGHT, *(PUBLIC[name] for name in sorted(JUDGES))]):
        scores = score(reward, texts, golds)
        assert len(scores) == len(texts)
        assert all(value is None or -1e6 < value < 1e6 for value in scores), reward
        terms[f"{number}_{reward.__name__}"] = scores
    for text in texts:
        for read in (formula_answer, number_answer, last_total):
            found = read(text)
            assert found is None or len(found) <= 2 * len(text) + 10
    return terms


def _through_the_table(texts: list[str], golds: list[str], terms: dict[str, list[float | None]], folder: Path) -> Path:
    run_folder(folder, steps=1)
    groups = range(0, len(texts), GROUP)
    prompts = [
        Prompt(token_ids=[1], text=texts[i], columns={"answer": golds[i]}, source=texts[i][:30], row=i) for i in groups
    ]
    shape = (len(prompts), GROUP)
    rollout = Rollout(
        prompts=prompts,
        positions=list(range(len(prompts))),
        completions=[
            [
                Completion(token_ids=[2], logprobs=[0.0], finished=i % 2 == 0, text=text)
                for i, text in enumerate(texts[g : g + GROUP])
            ]
            for g in groups
        ],
        rewards=torch.tensor([i % 3 / 2 for i in range(len(texts))]).reshape(shape),
        reward_terms={
            name: torch.tensor([float("nan") if s is None else s for s in scores]).reshape(shape)
            for name, scores in terms.items()
        },
        sampled=ScoredPrompts([], [], torch.zeros(0), {}),
        advantages=torch.zeros(shape),
        windows=[],
        passes=1,
        temperature=1.0,
        metrics={},
        logged_columns={texts[0][:100]: list(texts), "parts": [[text[:9], None] for text in texts]},
    )
    batch = PromptBatch(prompts)
    batch.rollout = rollout
    trainer = SimpleNamespace(
        default_root_dir=str(folder), fit_loop=SimpleNamespace(total_batch_idx=0), global_step=1,
        callbacks=[RolloutCallback(rewards=[rewards.math_accuracy])],
    )  # fmt: skip
    SamplesCallback(every_n_rollouts=1).on_train_batch_end(cast(Any, trainer), cast(Any, None), None, batch, 0)
    return folder / "samples" / "rollout_000001.parquet"


def _through_the_report(texts: list[str], folder: Path) -> None:
    run, second = (
        folder / "run",
        folder / texts[0][:20].encode("utf-8", "replace").decode().translate({0: "_", 47: "_"}),
    )
    run_folder(second, steps=2, completions=texts[:8], config=CONFIG + f"note: {json.dumps(texts[1])}\n")
    line = {"command": "fit", "step": 1, "source": texts[2][:500], "accuracy": 0.5}
    with (run / "evaluations.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    (run / "environment.json").write_text(json.dumps({"command": texts[3]}), "utf-8")
    path = write_report([run, second], folder / "report.html")
    page = path.read_bytes()
    assert len(page) < LARGEST_PAGE
    text = page.decode("utf-8")
    assert text.count("<script") == text.count("</script") == 3
    data = json.loads(cast(Any, re.search(r'id="data">(.*?)</script>', text, re.DOTALL))[1])
    assert data["runs"][0]["rollouts"][0]["groups"][0]["completions"][0]["text"].startswith(_utf8(texts[0])[:100])
    if CHROMIUM is not None:
        document, console = opened(path)
        assert console == ""  # where a script that has run, or was refused, would be told of
        assert document.count("<script") == 3
        assert len(re.findall(r'class="member[ "]', document)) >= GROUP


def _utf8(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
