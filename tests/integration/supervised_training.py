"""A short supervised run under any strategy: ragged rows to learn, and held-out rows that fill no batch."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import lightning as L
from torch import Tensor

from grpo_lightning import PromptDataModule, SFTModule
from grpo_lightning.data import PromptTemplate
from grpo_lightning.data.source import PromptSource
from grpo_lightning.models.adapters import whole
from grpo_lightning.rewards.accuracy import math_accuracy
from grpo_lightning.types import RewardFunction


class Letters(PromptSource):
    """Random letters to go on with others; one row has no target if ``gap`` says so."""

    def __init__(self, name: str, *, rows: int, gap: bool = False) -> None:
        self.name, self.count, self.gap = name, rows, gap

    def rows(self) -> list[dict[str, Any]]:
        draw = random.Random(self.name)

        def letters(most: int) -> str:
            return "".join(draw.choices("abcdefghij", k=draw.randint(1, most)))

        made = [{"question": f"{letters(9)}={n}", "answer": "x", "solution": letters(12)} for n in range(self.count)]
        if self.gap:
            made[1]["solution"] = None
        return made

    @property
    def correctness(self) -> RewardFunction:
        return math_accuracy

    def extract_answer(self, completion: str) -> str | None:
        return completion


class Recorded(SFTModule):
    """Remembers what was logged, and every weight after every optimizer step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.steps: list[dict[str, float]] = []
        self.held_out: list[dict[str, float]] = []
        self.weights: list[list[Tensor]] = []

    def log_step(self, figures: dict[str, float], **kwargs: Any) -> None:
        self.steps.append(figures)
        self.weights.append([whole(p.detach()).cpu().clone() for p in self.policy.parameters() if p.requires_grad])
        super().log_step(figures, **kwargs)

    def log_figures(self, figures: dict[str, float], **kwargs: Any) -> None:
        self.held_out.append(figures)
        super().log_figures(figures, **kwargs)


def train(policy: str, folder: Path, *, trainer_options: dict[str, Any], **module_options: Any) -> Recorded:
    """Two epochs of two steps of 8 rows, with the held-out loss after each epoch."""
    module = Recorded(policy, micro_batch_tokens=40, **module_options)
    data = PromptDataModule(
        Letters("train", rows=16),
        eval_sources=[Letters("some", rows=5), Letters("others", rows=3, gap=True)],
        template=PromptTemplate(chat=False, layout="{question}", answer_format="none"),
        prompts_per_step=8,
        eval_batch_size=2,
    )
    trainer = L.Trainer(
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        default_root_dir=folder,
        use_distributed_sampler=False,
        max_epochs=2,
        **trainer_options,
    )
    trainer.fit(module, datamodule=data)
    return module
