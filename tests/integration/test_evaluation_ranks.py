"""Two ranks tally what one would, ask what one would, and exchange figures without losing any."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from grpo_lightning import ranks
from grpo_lightning.data import ByPassRate, JsonLines, PromptDataModule, PromptTemplate, RunningTotals
from grpo_lightning.data.arithmetic import build_tokenizer
from grpo_lightning.data.loading import require_same_on_ranks
from grpo_lightning.errors import UserError
from grpo_lightning.evaluation import Tally
from grpo_lightning.token_means import TokenMeans
from grpo_lightning.types import Completion, Prompt

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).resolve().parents[2]
# Gold, greedy answer, two samples, level; the last one's gold cannot be read.
PROBLEMS = [
    ("1", "1", ("1", "2"), 1),
    ("2", "3", ("3", "3"), 1),
    ("3", "3", ("3", "3"), 2),
    ("4", "5", ("4", "5"), None),
    (r"\frac{1}{", "1", ("1", "1"), 1),
]


def _tally(rank: int, world_size: int) -> Tally:
    tally = Tally(JsonLines("unused.jsonl"), greedy=True, samples=2)
    for row in range(0, len(PROBLEMS), world_size):
        number = min(row + rank, len(PROBLEMS) - 1)
        valid = row + rank == number  # a copy of the last one fills up the last batch
        gold, greedy, samples, level = PROBLEMS[number]
        columns = {"question": "Q", "answer": gold, "level": level}
        said = [
            Completion(token_ids=[1] * number, logprobs=[0.0] * number, finished=number > 1, text=f"#### {answer}")
            for answer in (greedy, *samples)
        ]
        prompt = Prompt(token_ids=[1], text="Q", columns=columns, row=number, valid=valid)
        tally.add([prompt], [said[:1]], [said[1:]])
    return tally


def _asked(rank: int, world_size: int) -> dict[str, Any]:
    """The rows of two epochs that a curriculum chose by what both ranks measured, and what it then knows."""
    raw = PromptTemplate(layout="{question}", answer_format="none")
    data = PromptDataModule(RunningTotals(size=14), template=raw, prompts_per_step=4, curriculum=ByPassRate())
    data.tokenizer = build_tokenizer()
    data.trainer = SimpleNamespace(global_rank=rank, world_size=world_size)  # type: ignore[assignment]
    data.setup("fit")
    loader, rows, figures = data.train_dataloader(), [], {}
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            rows.append([prompt.row for prompt in batch.prompts])
            passed = torch.tensor(rows[-1]) % 5  # of four completions
            figures = data.record(batch.prompts, (torch.arange(4) < passed[:, None]).double(), {})
    return {"rows": rows, "figures": figures, "state": json.dumps([loader.state_dict(), data.state_dict()])}


def test_two_ranks_tally_and_ask_what_one_would(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.integration.test_evaluation_ranks", str(rank), str(tmp_path / "store")],
            cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    (first, asked), (second, also_asked) = (json.loads(out.splitlines()[-1]) for out, _ in outputs)
    assert first == second
    assert first == pytest.approx(_tally(0, 1).result())
    assert (first["problems"], first["unreadable_golds"]) == (4.0, 1.0)
    assert (first["accuracy"], first["pass@1"], first["pass@2"], first["maj@2"]) == (0.5, 0.5, 0.75, 0.75)
    assert (first["mean_length"], first["clipped_ratio"]) == (1.5, 0.5)
    assert (first["level=1/accuracy"], first["level=2/accuracy"]) == (0.5, 1.0)
    alone = _asked(0, 1)
    shares = zip(asked.pop("rows"), also_asked.pop("rows"), strict=True)
    assert [[row for pair in zip(*rows, strict=True) for row in pair] for rows in shares] == alone.pop("rows")
    assert asked == also_asked == alone


def _exchange(rank: int) -> None:
    """What each rank checks by itself."""
    # A NaN of either rank shows, at any place (gloo's maximum would keep or lose it by chance).
    values = torch.arange(9.0)
    values[4 * rank :: 4] = torch.nan
    expected = [True, False, False, False, True, False, False, False, True]
    assert ranks.all_max(values).isnan().tolist() == expected
    assert ranks.all_max(torch.tensor([rank, -rank])).tolist() == [1, 0]
    assert ranks.all_agree("the same")
    assert not ranks.all_agree(f"rank {rank}")

    # Three tokens of 1 on the first rank, one of 0 on the second.
    means = TokenMeans()
    means.add({"x": torch.ones(1, 3 - 2 * rank) - rank}, torch.ones(1, 3 - 2 * rank))
    assert means.result() == {"x": 0.75}
    other = TokenMeans()
    other.add({f"x{rank}": torch.ones(1, 1)}, torch.ones(1, 1))
    with pytest.raises(UserError, match=f"the same names on every rank.*one rank has x{rank}"):
        other.result()

    prompts = [Prompt(token_ids=[row], text="", row=row) for row in range(3)]
    require_same_on_ranks(prompts)
    with pytest.raises(UserError, match="ranks read different rows"):
        require_same_on_ranks(prompts[:: 1 - 2 * rank])


if __name__ == "__main__":
    rank, store = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    _exchange(rank)
    print(json.dumps([_tally(rank, 2).result(), _asked(rank, 2)]))
    dist.destroy_process_group()
