"""What configs are tested with instead of the hub: a tiny chat model, rows of each data set, an 8-bit optimizer."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from grpo_lightning.cli import GRPOCommandLine

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QUESTIONS = 6
ROWS: dict[str, list[dict[str, Any]]] = {
    "gsm8k": [
        {
            "question": f"Tom has {n} pens and finds 2. How many?",
            "answer": f"{n}+2 = <<{n}+2={n + 2}>>{n + 2}\n#### {n + 2}",
        }
        for n in range(QUESTIONS)
    ],
    "math": [
        {
            "problem": f"What is ${n}+2$?",
            "solution": rf"It is $\boxed{{{n + 2}}}$.",
            "level": "Level 1",
            "type": "Algebra",
        }
        for n in range(QUESTIONS)
    ],
    "choice": [
        {
            "prompt": f"Which is {n + 2}?\nA. {n} + 1\nB. {n} + 2\nC. {n}\nD. {n} + 3",
            "response": "<reasoning>\nNot A.\n</reasoning>\n<answer>\n\\boxed{B}\n</answer>",
        }
        for n in range(QUESTIONS)
    ],
}
"""A few rows in the form of each data set that a recipe reads."""


def build_chat_model(folder: Path) -> Path:
    """A model of 40,000 random weights that reads and writes any text byte by byte, and chats as Qwen2.5 does."""
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocabulary = {piece: number for number, piece in enumerate([*bytes_to_unicode().values(), *specials])}
    tokenizer = Qwen2Tokenizer(
        vocab=vocabulary,
        merges=[],
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token=None,
        extra_special_tokens=["<|im_start|>"],
    )
    tokenizer.chat_template = CHAT
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=64,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_rows(folder: Path) -> dict[str, Path]:
    """``ROWS`` as JSON Lines files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: folder / f"{name}.jsonl" for name in ROWS}
    for name, file in files.items():
        file.write_text("".join(json.dumps(row) + "\n" for row in ROWS[name]), "utf-8")
    return files


@contextmanager
def all_packages(folder: Path) -> Iterator[None]:
    """With ``bitsandbytes`` (if it is not installed, an AdamW with the real one's arguments) and a mute wandb.

    Arguments of the command line are not pytest's.
    """
    (folder / "bitsandbytes").mkdir(parents=True)
    (folder / "bitsandbytes" / "__init__.py").write_text("")
    (folder / "bitsandbytes" / "optim.py").write_text(
        "import torch\n"
        "class PagedAdamW8bit(torch.optim.AdamW):\n"
        "    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, amsgrad=False,\n"
        "                 optim_bits=32, args=None, min_8bit_size=4096, percentile_clipping=100, block_wise=True):\n"
        "        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad)\n"
    )
    importlib.invalidate_caches()
    # Last on the path, so that an installed one is taken.
    with (
        mock.patch.object(sys, "path", [*sys.path, str(folder)]),
        mock.patch.object(sys, "argv", ["grpo-lightning"]),
        mock.patch.dict(os.environ, WANDB_MODE="disabled"),
    ):
        yield
    for name in ("bitsandbytes", "bitsandbytes.optim"):
        if str(getattr(sys.modules.get(name), "__file__", "")).startswith(str(folder)):
            del sys.modules[name]


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted keys to values, ``trainer.callbacks.0.class_path``; functions as dotted paths."""
    value = plain(value)
    if isinstance(value, list) and value and isinstance(value[0], dict):
        value = {str(number): inner for number, inner in enumerate(value)}
    if not isinstance(value, dict) or not value:
        return {prefix: value}
    return {k: v for name, inner in value.items() for k, v in flat(inner, f"{prefix}.{name}".lstrip(".")).items()}


def plain(value: Any) -> Any:
    value = value.as_dict() if hasattr(value, "as_dict") else value
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return public_path(value) if hasattr(value, "__qualname__") else value


def public_path(function: Any) -> str:
    """As a saved config has it: from the first package on the way that has the function."""
    parts = function.__module__.split(".")
    modules = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
    found = next(m for m in modules if getattr(sys.modules[m], function.__qualname__, None) is function)
    return f"{found}.{function.__qualname__}"


class Parsed(GRPOCommandLine):
    """Parses the command line and builds nothing."""

    def instantiate_classes(self) -> None:
        """Nothing."""

    def _run_subcommand(self, subcommand: str) -> None:
        """Nothing."""


class Built(GRPOCommandLine):
    """Builds trainer, module, data and callbacks, and runs nothing."""

    def _run_subcommand(self, subcommand: str) -> None:
        """Nothing."""


def words(configs: Iterable[Path | str], *options: str) -> list[str]:
    """``fit`` with configs from left to right, and options."""
    return ["fit", *(word for config in configs for word in ("--config", str(config))), *options]
