"""The models that the prompting experiment starts from, made on first use."""

from __future__ import annotations

import hashlib
from pathlib import Path

from experiments.base_model import ROOT, command_line, quickstart_base

FILES = ("start_models.py", "examples.py", "template.py")
SUPERVISED = ("fit", "--config", "configs/quickstart_base.yaml", "--trainer.enable_progress_bar", "false")


def start_models(seed: int) -> Path:
    """Folder with two models: ``mixed/hf``, and ``chains/hf`` made from it. Kept while what makes them stays the same.

    - mixed: the quickstart's base model after 100 steps of 64 rows of ``WithExamples``, so that it knows what examples
      in a prompt are for. Asked a question alone, it answers 80% directly, as before.
    - chains: that model after 30 steps of 64 worked solutions to questions alone.
    """
    base = quickstart_base(seed)
    folder = ROOT / "runs" / "prompting" / f"seed{seed}"
    made_of = [(Path(__file__).parent / name).read_bytes() for name in FILES] + [
        (base.parent / "recipe.sha256").read_bytes()
    ]
    recipe, stamp = hashlib.sha256(b"".join(made_of)).hexdigest(), folder / "recipe.sha256"
    if not stamp.exists() or stamp.read_text() != recipe:
        data = ("--data.source", "experiments.prompting.examples.WithExamples", "--data.max_prompt_length", "220")
        _learn(base, folder / "mixed", seed, *data, rows=6400, direct_share=0.8, rate=1e-3)
        _learn(folder / "mixed" / "hf", folder / "chains", seed, rows=1920, direct_share=0.0, rate=3e-4)
        stamp.write_text(recipe)
    return folder


def _learn(start: Path, run: Path, seed: int, *data: str, rows: int, direct_share: float, rate: float) -> None:
    command_line(
        *(*SUPERVISED, "--seed_everything", str(seed), "--model.policy", str(start), "--model.lr", str(rate)),
        *("--trainer.default_root_dir", str(run), *data, "--data.source.split", "train"),
        *("--data.source.seed", str(100 + seed), "--data.source.size", str(rows)),
        *("--data.source.direct_share", str(direct_share), "--data.source.direct_from", "0"),
    )
