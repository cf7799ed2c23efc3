"""What the run would compute on, and whom it would report to."""

from __future__ import annotations

import inspect
import os

import lightning as L
import torch
from lightning.pytorch.loggers import WandbLogger

from grpo_lightning.errors import UserError
from grpo_lightning.models.size import in_words


def memory(device: torch.device) -> int:
    """Bytes of the device, or of the machine for a CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def device_line(trainer: L.Trainer) -> str:
    """Where the ranks compute, and in what."""
    device = trainer.strategy.root_device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{os.cpu_count()} processor cores"
    ranks = f"{trainer.world_size} rank" + "s" * (trainer.world_size > 1)
    strategy = type(trainer.strategy).__name__
    return f"{ranks} on {name} with {in_words(memory(device))}; {strategy}, precision {trainer.precision}."


def require_wandb_login(trainer: L.Trainer) -> None:
    """Refuse a logger of Weights & Biases where nobody is logged in; nothing is sent."""
    online = [logger for logger in trainer.loggers if isinstance(logger, WandbLogger) and not logger._offline]
    if not online or os.environ.get("WANDB_MODE", "online") != "online":
        return
    import wandb

    # An older wandb would ask at the terminal, in the middle of the page.
    asks = "prompt" not in inspect.signature(wandb.login).parameters
    if not asks and not wandb.login(prompt=False, verify=False):
        raise UserError(
            "--trainer.logger: Weights & Biases knows nobody here; `wandb login`, set WANDB_MODE=offline, or give "
            "--trainer.logger true for files alone"
        )
