"""The base model of the quickstart, which the experiments on the embedded task start from."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LAST_SECONDS = 35
"""For a command to end by Ctrl-C."""
RECIPE = ("configs/quickstart_base.yaml", "grpo_lightning/data/arithmetic.py", "grpo_lightning/data/tiny_model.py")


def run_folder(seed: int) -> Path:
    """Where the quickstart of one seed lies, its base model included."""
    return ROOT / "runs" / ("quickstart" if seed == 0 else f"quickstart-seed{seed}")


def quickstart_base(seed: int) -> Path:
    """The base model's folder; made once and kept while its recipe stays the same.

    Args:
        seed: of the tiny model's random weights and of its supervised data.
    """
    folder = run_folder(seed)
    base = folder / "base"
    recipe = hashlib.sha256(b"".join((ROOT / name).read_bytes() for name in RECIPE)).hexdigest()
    stamp = base / "recipe.sha256"
    if stamp.exists() and stamp.read_text() == recipe and (base / "hf").is_dir():
        print(f"Base model: {base / 'hf'} (made earlier)", flush=True)
        return base / "hf"
    print(f"Base model of seed {seed}: supervised training on 38,400 short texts", flush=True)
    from grpo_lightning.data.tiny_model import build_tiny_model

    build_tiny_model(str(folder / "tiny"), seed=seed)
    command_line(
        *("fit", "--config", "configs/quickstart_base.yaml", "--seed_everything", str(seed)),
        *("--model.policy", str(folder / "tiny"), "--trainer.default_root_dir", str(base)),
        *("--data.source.seed", str(seed)),
    )
    if not (base / "hf").is_dir():
        sys.exit("The base model was not finished; run this again.")
    stamp.write_text(recipe)
    return base / "hf"


def command_line(*words: str) -> None:
    """Run ``python -m grpo_lightning``; stop with its exit code if it fails (it has said why), or by Ctrl-C."""
    with subprocess.Popen([sys.executable, "-m", "grpo_lightning", *words], cwd=ROOT) as command:
        try:
            code = command.wait()
        except KeyboardInterrupt:
            try:
                command.wait(LAST_SECONDS)  # a terminal has sent it to the command too, which ends cleanly
            except subprocess.TimeoutExpired:
                command.terminate()
            sys.exit(130)
    if code:
        sys.exit(code)
