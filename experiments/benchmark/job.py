"""One measured run: what it is told, and what it is given to train on."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from grpo_lightning.types import Completion

OURS, TRL = "ours", "trl"
NONE = "none"
"""In the place of an engine: nothing is generated, the recorded completions are trained on."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run of one trainer in a process of its own."""

    trainer: str
    """``OURS`` or ``TRL``."""
    engine: str
    """``vllm`` or ``transformers`` (TRL: the latter alone), or ``NONE``."""
    model: str
    data: str
    """Folder with ``prompts.jsonl`` and ``completions.jsonl``."""
    prompts_per_step: int
    group_size: int
    max_prompt_length: int
    max_completion_length: int
    rows: int
    """Sequences in a micro-batch. Ours is told the tokens that so many of the longest possible ones would have."""
    precision: str
    """``bf16-mixed`` or ``32-true``."""
    beta: float = 0.0
    checkpointing: bool = False
    """Gradient checkpointing."""
    completion_head: bool = False
    """TRL's head goes over completion tokens alone, as it does on GPUs; on CPUs it goes over every position."""
    steps: int = 1
    """That are measured; one more comes before them."""
    seed: int = 0
    kv_cache_gib: float = 0.25
    """vLLM's cache on CPUs."""
    module: str = "grpo_lightning.GRPOModule"
    """Ours."""
    options: dict[str, object] = field(default_factory=dict)
    """Further arguments of our module."""
    commit: str | None = None
    """Of this checkout: a run of another one is another run."""

    @property
    def sequences(self) -> int:
        """Completions of a step."""
        return self.prompts_per_step * self.group_size

    @property
    def micro_batch_tokens(self) -> int:
        """The bound that ``rows`` sequences of the greatest length stay within."""
        return self.rows * (self.max_prompt_length + self.max_completion_length)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Job:
        return cls(**json.loads(path.read_text("utf-8")))


class Recording:
    """Completions that were sampled once, of which both trainers learn in every run: so they see the same tokens."""

    def __init__(self, folder: Path) -> None:
        self.groups: dict[tuple[int, ...], list[Completion]] = {}
        """By the token ids of the prompt, in the order of the prompts."""
        self._given: dict[tuple[int, ...], int] = defaultdict(int)
        for line in (folder / "completions.jsonl").read_text("utf-8").splitlines():
            row = json.loads(line)
            self.groups[tuple(row["prompt"])] = [Completion(**completion) for completion in row["completions"]]

    @staticmethod
    def write(folder: Path, prompts: list[list[int]], groups: list[list[Completion]]) -> None:
        fields = ("token_ids", "logprobs", "finished")
        rows = (
            {"prompt": prompt, "completions": [{name: getattr(c, name) for name in fields} for c in group]}
            for prompt, group in zip(prompts, groups, strict=True)
        )
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "completions.jsonl").write_text(text, encoding="utf-8")

    def group(self, prompt: list[int]) -> list[Completion]:
        """All completions of a prompt, new objects."""
        return [dataclasses.replace(completion) for completion in self.groups[tuple(prompt)]]

    def next(self, prompt: list[int]) -> list[int]:
        """Token ids of the next completion of a prompt, for a trainer that repeats it for each of its group."""
        group = self.groups[tuple(prompt)]
        number = self._given[tuple(prompt)]
        self._given[tuple(prompt)] += 1
        return group[number % len(group)].token_ids
