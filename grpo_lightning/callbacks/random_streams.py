"""The process's own random numbers, from which a user's reward or an augmentation may draw."""

from __future__ import annotations

import os
import random
from typing import Any

import lightning as L
import numpy as np
import torch

from grpo_lightning import ranks
from grpo_lightning.rollout.seeds import request_seed


class RandomStreams(L.Callback):
    """Seeds python, numpy and torch before every rollout and every evaluation, from the seed, the step and the rank.

    So what is drawn is a function of where the run is: a resumed run draws what the whole one drew, without any
    generator's state in the checkpoint, on the same number of ranks or another, and however often it is evaluated. Each
    rank has a stream of its own. Generators that a user's code makes for itself, and the processes in which isolated
    rewards run, are not touched; samples and the order of the prompts have seeds of their own.
    """

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        _seed("training", trainer.global_step)

    def on_validation_start(self, trainer: L.Trainer, *args: Any) -> None:
        _seed("evaluation", trainer.global_step)


def _seed(purpose: str, step: int) -> None:
    seed = request_seed(int(os.environ.get("PL_GLOBAL_SEED", 0)), f"process, {purpose}", step, 0, ranks.rank())
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)  # of every device
