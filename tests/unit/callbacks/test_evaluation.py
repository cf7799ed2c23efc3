"""Which figures are recorded, with a scripted sampler in place of a model."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grpo_lightning.callbacks.evaluation import EvaluationCallback
from grpo_lightning.errors import UserError
from grpo_lightning.evaluation import wilson_interval
from grpo_lightning.rewards import RewardScorer
from grpo_lightning.types import Completion, Prompt, PromptBatch


class Answers:
    """A sampler whose greedy answer is "1" and whose samples are "0", "1", "2", ..."""

    def generate(self, prompts: list[Any], sampling: Any, *, group_size: int, seeds: list[int]) -> Any:
        return [
            [
                Completion(token_ids=[1 if sampling.temperature == 0 else g], logprobs=[0.0], finished=False)
                for g in range(group_size)
            ]
            for _ in prompts
        ]


def _source(name: str, correctness: Any = None) -> Any:
    def equal(completions: list[str], answer: list[str], **_: Any) -> list[float | None]:
        return [None if a == "?" else float(c == a) for c, a in zip(completions, answer, strict=True)]

    return SimpleNamespace(name=name, correctness=correctness or equal, extract_answer=lambda text: text)


def _batch(source: str, *answers: str, valid: bool = True) -> PromptBatch:
    return PromptBatch(
        [
            Prompt(token_ids=[1], text="Q", columns={"answer": a}, source=source, row=row, valid=valid)
            for row, a in enumerate(answers)
        ]
    )


class Run:
    """An evaluation callback between stand-ins for trainer and module."""

    def __init__(self, folder: Path, *sources: Any, **arguments: Any) -> None:
        self.callback = EvaluationCallback(max_completion_length=8, **arguments)
        self.callback._rollout = SimpleNamespace(  # type: ignore[assignment]
            sampler=SimpleNamespace(ready=lambda *_: Answers(), rest=lambda: None), seeds=lambda *_: [0], rewards=[]
        )
        self.figures: dict[str, float] = {}
        self.module: Any = SimpleNamespace(
            device=torch.device("cpu"),
            policy_path="policy",
            tokenizer=SimpleNamespace(decode=lambda ids, **_: " ".join(str(i) for i in ids)),
            log_figures=lambda figures, bar: self.figures.update(figures),
        )
        self.trainer: Any = SimpleNamespace(
            datamodule=SimpleNamespace(
                eval_sources=list(sources), eval_names=[s.name for s in sources], question=None
            ),
            default_root_dir=str(folder), state=SimpleNamespace(fn=SimpleNamespace(value="fit")),
            ckpt_path=None, global_step=0, current_epoch=0, max_steps=7,
            sanity_checking=False, num_sanity_val_batches=[2], num_val_batches=[2],
        )  # fmt: skip
        self.folder = folder

    def validate(self, *batches: PromptBatch) -> None:
        self.callback.on_validation_epoch_start(self.trainer, self.module)
        for number, batch in enumerate(batches):
            self.callback.on_validation_batch_start(self.trainer, self.module, batch, 0, number)
        self.callback.on_validation_epoch_end(self.trainer, self.module)

    def written(self, name: str) -> list[Any]:
        return [json.loads(line) for line in (self.folder / name).read_text("utf-8").splitlines()]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "grpo_lightning")
    return caplog


@pytest.mark.parametrize(("checked", "of", "recorded"), [(2, 2, True), (2, 5, False)])
def test_a_sanity_check_counts_if_it_went_through_all(tmp_path: Path, checked: int, of: int, recorded: bool) -> None:
    run = Run(tmp_path, _source("s"))
    run.trainer.sanity_checking = True
    run.trainer.num_sanity_val_batches, run.trainer.num_val_batches = [checked], [of]
    run.validate(_batch("s", "1", "2"))
    assert (tmp_path / "evaluations.jsonl").exists() is recorded
    assert (tmp_path / "samples").exists() is recorded
    assert run.figures.get("val/accuracy") == (0.5 if recorded else None)


def test_unreadable_golds_are_counted_and_told(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    run = Run(tmp_path, _source("fine"), _source("odd"))
    run.validate(_batch("fine", "1", "2"), _batch("odd", "1", "?", "?", "3"))
    fine, odd = run.written("evaluations.jsonl")
    assert "unreadable_golds" not in fine
    assert (odd["problems"], odd["unreadable_golds"], odd["accuracy"]) == (2, 2, 0.5)
    warnings = [record.getMessage() for record in log.records if record.levelno == logging.WARNING]
    assert warnings == ["val odd: 2 problems are left out, since their gold answer cannot be read"]


def test_a_source_without_a_readable_gold_has_no_accuracy(tmp_path: Path) -> None:
    run = Run(tmp_path, _source("fine"), _source("odd"))
    run.validate(_batch("fine", "1", "1", "1", "2"), _batch("odd", "?"))
    _, odd = run.written("evaluations.jsonl")
    assert (odd["accuracy"], odd["accuracy_interval"], odd["problems"]) == (None, [0.0, 1.0], 0)
    assert run.figures["val/accuracy"] == 0.75


def test_intervals_of_accuracy_and_pass_at_1(tmp_path: Path) -> None:
    run = Run(tmp_path, _source("s"), samples=2)  # greedy "1"; samples "0" and "1"
    run.validate(_batch("s", "1", "1", "0", "5"))
    (line,) = run.written("evaluations.jsonl")
    assert (line["accuracy"], line["pass@1"], line["pass@2"]) == (0.5, 0.375, 0.75)
    assert line["accuracy_interval"] == list(wilson_interval(2, 4))
    assert line["pass@1_interval"] == list(wilson_interval(1.5, 4))


def test_the_rule_is_asked_once_per_batch_and_given_the_state(tmp_path: Path) -> None:
    calls = []

    def rule(completions: list[str], trainer_state: Any, **_: Any) -> list[float]:
        calls.append((completions, trainer_state.global_step, trainer_state.max_steps))
        return [1.0] * len(completions)

    run = Run(tmp_path, _source("s", rule), samples=2)
    run.validate(_batch("s", "1", "2", "3"))
    assert calls == [(["1", "0", "1"] * 3, 0, 7)]


def test_settings_are_told_once(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    run = Run(tmp_path, _source("s"), samples=2, temperature=0.5, top_p=0.9, top_k=5)
    run.validate(_batch("s", "1"))
    run.validate(_batch("s", "1"))
    told = [record.getMessage() for record in log.records if record.getMessage().startswith("evaluation:")]
    assert told == [
        "evaluation: greedy answers and 2 samples at temperature 0.5, top_p 0.9, top_k 5, min_p 0; at most 8 tokens"
    ]


def test_predictions_are_judged_by_their_own_source(tmp_path: Path) -> None:
    run = Run(tmp_path, _source("equal"), _source("never", lambda completions, **_: [0.0] * len(completions)))
    states = []

    def reward(completions: list[str], trainer_state: Any, **_: Any) -> list[float | None]:
        states.append(trainer_state.global_step)
        return [None] * len(completions)

    run.callback._rollout.rewards, run.callback._rollout.make_scorer = [reward], lambda: RewardScorer([reward])
    run.callback.on_predict_start(run.trainer, run.module)
    for number, batch in enumerate(
        (_batch("equal", "1", "?"), _batch("never", "1"), _batch("equal", "1", valid=False))
    ):
        run.callback.on_predict_batch_start(run.trainer, run.module, batch, 0, number % 2)
    run.callback.on_predict_end(run.trainer, run.module)
    lines = run.written("predictions.jsonl")
    assert [(line["source"], line["correct"]) for line in lines] == [("equal", True), ("equal", None), ("never", False)]
    assert [line["rewards"] for line in lines] == [{"reward": None}] * 3
    assert states == [0, 0]


def test_a_question_without_an_answer_is_not_judged(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.trainer.datamodule.question = "Q"
    run.callback.on_predict_start(run.trainer, run.module)
    run.callback.on_predict_batch_start(run.trainer, run.module, PromptBatch([Prompt(token_ids=[1], text="Q")]), 0)
    run.callback.on_predict_end(run.trainer, run.module)
    assert [(p["completion"], p["rewards"], "correct" in p) for p in run.callback.predictions] == [("1", {}, False)]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"greedy": False}, "--evaluation.samples 0"),
        ({"samples": -1}, "--evaluation.samples -1"),
        ({"samples": 2, "temperature": 0.0}, "--evaluation.temperature 0.0"),
        ({"max_completion_length": 0}, "--evaluation.max_completion_length 0"),
    ],
)
def test_settings_that_make_no_sense(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        EvaluationCallback(**arguments)
