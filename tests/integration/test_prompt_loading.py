"""The data module under a real Trainer: resuming, evaluation and YAML."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from grpo_lightning.callbacks.resume import ExactResume
from grpo_lightning.data import ByColumn, ByPassRate, Curriculum, PromptDataModule, PromptTemplate, RunningTotals
from grpo_lightning.data.arithmetic import build_tokenizer
from grpo_lightning.types import PromptBatch
from tests.integration.command_line import fit, grpo, untimed

pytestmark = pytest.mark.integration

RAW = PromptTemplate(layout="{question}", answer_format="none")


class Recorder(L.LightningModule):
    """Takes one optimizer step a batch and writes down which rows it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.tokenizer = build_tokenizer()
        self.optimizer_factory = None
        self.layer = torch.nn.Linear(1, 1, bias=False)
        self.seen: list[tuple[int, list[int]]] = []
        self.evaluated: list[tuple[int, list[int]]] = []

    def training_step(self, batch: PromptBatch, batch_idx: int) -> None:
        self.seen.append((self.current_epoch, [prompt.row for prompt in batch.prompts]))
        rows = torch.tensor([prompt.row for prompt in batch.prompts])
        solved = (rows + 7 * self.trainer.global_step) % 5  # of four completions
        rewards = (torch.arange(4) < solved[:, None]).double()
        self.trainer.datamodule.record(batch.prompts, rewards, {"right": rewards})
        optimizer = self.optimizers()
        self.manual_backward(self.layer.weight.sum())
        optimizer.step()

    def validation_step(self, batch: PromptBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.evaluated.append((dataloader_idx, [prompt.row for prompt in batch.prompts if prompt.valid]))

    test_step = predict_step = validation_step

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def _data(
    *, evaluated: bool = True, curriculum: Curriculum | None = None, size: int = 14, rows: int = 0, batch: int = 4
) -> PromptDataModule:
    """``rows`` is the seed of the training rows, ``batch`` the number of prompts of a rollout."""
    sources = [RunningTotals(split="eval", size=5), RunningTotals(split="eval", size=3, seed=1, name="more")]
    return PromptDataModule(
        RunningTotals(size=size, seed=rows),
        template=RAW,
        prompts_per_step=batch,
        eval_batch_size=4,
        eval_sources=sources if evaluated else None,
        curriculum=curriculum,
    )


CURRICULA: dict[str, Callable[[], Curriculum | None]] = {
    "none": lambda: None,
    "by-column": lambda: ByColumn("changes", rollouts=6, mix=0.2),
    "by-pass-rate": lambda: ByPassRate(reward="right"),
}


def _trainer(folder: Path, **arguments: Any) -> L.Trainer:
    arguments = {"max_epochs": 3, "limit_val_batches": 1.0, "num_sanity_val_steps": 0, **arguments}
    return L.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        **arguments,
    )


@pytest.mark.parametrize(
    ("saving", "trainer", "curriculum"),
    [
        ({"every_n_train_steps": 1}, {}, "none"),
        ({"save_on_train_epoch_end": False}, {}, "none"),
        ({"save_on_train_epoch_end": False}, {"val_check_interval": 1}, "none"),
        ({"save_on_train_epoch_end": True}, {}, "none"),
        ({"save_on_train_epoch_end": True}, {"limit_val_batches": 0}, "none"),
        ({"save_on_train_epoch_end": True}, {"max_steps": 9}, "none"),
        ({"save_on_train_epoch_end": True}, {"max_steps": 9, "limit_val_batches": 0}, "none"),
        ({"every_n_train_steps": 1}, {"limit_train_batches": 2}, "none"),
        ({"every_n_train_steps": 1}, {}, "by-column"),
        ({"every_n_train_steps": 1}, {}, "by-pass-rate"),
        ({"save_on_train_epoch_end": True}, {}, "by-pass-rate"),
    ],
    ids=[
        *("each-step", "each-validation", "validation-each-step", "each-epoch", "no-validation"),
        *("each-epoch-by-steps", "no-validation-by-steps", "short-epochs"),
        *("by-column", "by-pass-rate", "by-pass-rate-each-epoch"),
    ],
)
def test_resuming_sees_what_an_unbroken_run_would_have_seen(
    tmp_path: Path, saving: dict[str, Any], trainer: dict[str, Any], curriculum: str
) -> None:
    make = CURRICULA[curriculum]
    keep = ModelCheckpoint(dirpath=tmp_path / "kept", filename="{step}", save_top_k=-1, **saving)
    whole = Recorder()
    _trainer(tmp_path, callbacks=[keep], **trainer).fit(whole, datamodule=_data(curriculum=make()))
    length = trainer.get("limit_train_batches", 3)
    assert [epoch for epoch, _ in whole.seen] == [0] * length + [1] * length + [2] * length
    assert len({tuple(rows) for _, rows in whole.seen}) == 3 * length
    if curriculum == "by-pass-rate":  # and not by chance: its choices are other ones without what it was told
        unguided = Recorder()
        _trainer(tmp_path, enable_checkpointing=False).fit(unguided, datamodule=_data(curriculum=ByPassRate(revisit=1)))
        assert unguided.seen[:1] == whole.seen[:1]
        assert unguided.seen[1:] != whole.seen[1:]
    checkpoints = sorted((tmp_path / "kept").glob("*.ckpt"), key=lambda path: int(path.stem.partition("=")[2]))
    each_step = "every_n_train_steps" in saving or "val_check_interval" in trainer
    assert len(checkpoints) == (3 * length if each_step else 3)
    for checkpoint in checkpoints[:-1]:
        steps = int(checkpoint.stem.partition("=")[2])
        resumed = Recorder()
        _trainer(tmp_path, enable_checkpointing=False, callbacks=[ExactResume()], **trainer).fit(
            resumed, datamodule=_data(curriculum=make()), ckpt_path=checkpoint, weights_only=True
        )
        assert resumed.seen == whole.seen[steps:], checkpoint.stem


def _seen(data: PromptDataModule, epoch: int, start: int = 0) -> list[tuple[int, list[int]]]:
    """What an epoch asks after its first prompts."""
    data.tokenizer = build_tokenizer()
    data.setup("fit")
    sampler = data.train_dataloader().sampler
    starts = range(start, sampler.prompts - sampler.batch_size + 1, sampler.batch_size)
    return [(epoch, sampler.batch(epoch, start)) for start in starts]


AGAIN = "the checkpoint's prompts are not this run's ({}): the epoch starts again"
OTHERWISE = "the epoch goes on after its first {} prompts, in batches of {} prompts instead of 4"


@pytest.mark.parametrize("saved", ["rollout", "validation", "rollout, by steps", "validation, by steps"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": 18}, AGAIN.format("other questions, prompts 14 before, 18 now")),
        ({"rows": 5}, AGAIN.format("other questions")),
        ({"size": 10}, AGAIN.format("other questions, prompts 14 before, 10 now")),
        ({"batch": 8}, OTHERWISE),
        ({"batch": 2}, OTHERWISE),
        ({"size": 18, "batch": 8}, AGAIN.format("other questions, prompts 14 before, 18 now")),
    ],
    ids=["more", "others", "fewer", "larger", "smaller", "both"],
)
def test_an_epoch_on_other_data_or_in_other_batches_loses_no_prompt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, changes: dict[str, int], message: str, saved: str
) -> None:
    """From within the first epoch, from its end, and from within the second: all that are left are asked, once."""
    trainer: dict[str, Any] = {"max_steps": 4} if saved.endswith("steps") else {"max_epochs": 2}
    each = {"val_check_interval": 1} if saved.startswith("validation") else {}
    saving = {"save_on_train_epoch_end": False} if each else {"every_n_train_steps": 1}
    keep = ModelCheckpoint(dirpath=tmp_path / "kept", filename="{step}", save_top_k=-1, **saving)
    _trainer(tmp_path, callbacks=[keep], **trainer, **each).fit(Recorder(), datamodule=_data())
    for steps in (1, 2, 3, 4):
        epoch, position = divmod(4 * steps, 12)
        start = position if message == OTHERWISE else 0
        expected = [asked for e in range(epoch, 3) for asked in _seen(_data(**changes), e, start if e == epoch else 0)]
        resumed = Recorder()
        trainer = {"max_steps": steps + len(expected)} if saved.endswith("steps") else {"max_epochs": 3}
        caplog.clear()
        with caplog.at_level("INFO", logger="grpo_lightning"):
            _trainer(tmp_path, enable_checkpointing=False, callbacks=[ExactResume()], **trainer).fit(
                resumed, datamodule=_data(**changes), ckpt_path=tmp_path / "kept" / f"step={steps}.ckpt"
            )
        assert resumed.seen == expected, steps
        assert (message.format(position, changes.get("batch")) in caplog.messages) == (position > 0), steps
        assert len(resumed.evaluated) == 3 * len({epoch for epoch, _ in expected}), "after each epoch"


def test_a_run_measures_pass_rates_and_goes_on_with_them(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep = {
        "class_path": "lightning.pytorch.callbacks.ModelCheckpoint",
        "init_args": {
            "dirpath": str(tmp_path / "kept"),
            "filename": "{step}",
            "save_top_k": -1,
            "every_n_train_steps": 1,
        },
    }
    changes: dict[str, Any] = {
        # Two rollouts an epoch, of twice 4 prompts each; few groups of this reward differ, so both tries are made.
        "rollout__dynamic_sampling_tries": 2,
        "rollout__rewards": ["tests.integration.reward_functions.begins_with_a_digit"],
        "data__curriculum": {"class_path": "ByPassRate", "init_args": {"reward": "begins_with_a_digit"}},
        "trainer__max_steps": 4,
        "trainer__callbacks": [keep],
        "samples__every_n_rollouts": 1,
    }
    fit(capsys, grpo(tiny, tmp_path / "whole", **changes))
    whole = untimed(tmp_path / "whole")
    asked = [float(row["curriculum/asked"]) for row in whole]
    # What dynamic sampling passed over is measured too: half of the 16 prompts after the first rollout.
    assert asked[0] == 8 / 16
    assert asked == sorted(asked)
    assert {"curriculum/pass_rate", "curriculum/frac_solved", "curriculum/frac_hopeless"} <= whole[0].keys()
    for step in (1, 2):  # within an epoch and at its end
        changes["trainer__callbacks"] = []
        goes_on = grpo(tiny, tmp_path / f"from{step}", **changes)
        fit(capsys, goes_on, "--ckpt_path", str(tmp_path / "kept" / f"step={step}.ckpt"))
        assert untimed(tmp_path / f"from{step}") == whole[step:]


def test_training_without_evaluation_sources(tmp_path: Path) -> None:
    recorder = Recorder()
    _trainer(tmp_path, max_epochs=1, enable_checkpointing=False).fit(recorder, datamodule=_data(evaluated=False))
    assert len(recorder.seen) == 3
    assert recorder.evaluated == []


def test_every_command_asks_every_source_once(tmp_path: Path) -> None:
    trainer, data = _trainer(tmp_path, enable_checkpointing=False), _data()
    for run in (trainer.validate, trainer.test, trainer.predict):
        recorder = Recorder()
        run(recorder, datamodule=data)
        assert recorder.evaluated == [(0, [0, 1, 2, 3]), (0, [4]), (1, [0, 1, 2])]
    data.question = "How many?"
    recorder = Recorder()
    trainer.predict(recorder, datamodule=data)
    assert recorder.evaluated == [(0, [0])]


YAML = """
source:
  class_path: grpo_lightning.data.JsonLines
  init_args:
    path: {path}
    question_column: prompt
    answer_column: response
    answer_pattern: '\\\\boxed\\{{([A-D])\\}}'
    correctness: grpo_lightning.data.arithmetic.running_total_accuracy
eval_sources:
  - class_path: grpo_lightning.data.GSM8K
    init_args: {{split: test, limit: 10}}
  - class_path: grpo_lightning.data.CompetitionMath
    init_args: {{dataset: HuggingFaceH4/MATH-500, split: test, name: math500, levels: [4, 5]}}
  - class_path: grpo_lightning.data.HubDataset
    init_args: {{dataset: someone/something, answer_column: gold}}
  - class_path: grpo_lightning.data.RunningTotals
    init_args: {{split: eval, size: 20}}
template:
  class_path: grpo_lightning.data.PromptTemplate
  init_args:
    answer_format: reasoning_answer
    style: worked_examples
    examples: 2
    chat_options: {{a: false}}
prompts_per_step: 1
eval_limit: 7
"""


def test_everything_is_reachable_from_yaml(tmp_path: Path) -> None:
    from jsonargparse import ArgumentParser

    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "Q", "response": "\\\\boxed{B}"}\n')
    config = tmp_path / "data.yaml"
    config.write_text(YAML.format(path=path))
    parser = ArgumentParser()
    parser.add_class_arguments(PromptDataModule, "data", sub_configs=True)
    arguments = [f"--data={config}", "--data.template.examples=3", "--data.source.limit=1", "--data.shuffle=false"]
    data = parser.instantiate_classes(parser.parse_args(arguments)).data
    assert data.eval_names == ["gsm8k", "math500", "something", "running_totals"]
    assert data.source.rows()[0]["answer"] == "B"
    assert data.source.correctness(completions=["#### 3"], answer=["3"]) == [1.0]
    assert (data.template.examples, data.template.chat_options, data.source.limit) == (3, {"a": False}, 1)
    assert (data.shuffle, data.eval_limit) == (False, 7)
    arguments += ["--data.shuffle=true", "--data.curriculum=ByColumn", "--data.curriculum.order=[1, hard, 2.5, null]"]
    curriculum = parser.instantiate_classes(parser.parse_args(arguments)).data.curriculum
    assert (type(curriculum), curriculum.column) == (ByColumn, "level")
    assert curriculum.places == {"1": 0, "hard": 1, "2.5": 2, "null": 3}
