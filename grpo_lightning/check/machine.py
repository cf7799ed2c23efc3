"""What the run would compute on."""

from __future__ import annotations

import os

import lightning as L
import torch

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
