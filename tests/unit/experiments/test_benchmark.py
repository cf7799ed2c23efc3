"""The benchmark's arithmetic: operations, phases, equal tokens, ratios, growth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from experiments.benchmark import growth, report, run, stopwatch
from experiments.benchmark.flops import step_flops
from experiments.benchmark.job import Job, Recording
from experiments.benchmark.model_w2 import CHARACTERS, EOS, character_tokenizer, end_probability, random_model, tune_end
from experiments.benchmark.reward import checksum, token_reward
from experiments.benchmark.stopwatch import Stopwatch, step_figures
from grpo_lightning.models.flops import Group, Shape, forward_flops
from grpo_lightning.types import Completion

SHAPE = Shape(layers=2, hidden=8, heads=4, key_heads=2, head_size=3, mlp=10, vocabulary=100)


def test_training_is_three_forwards_and_four_with_a_reference() -> None:
    groups = [Group(2, (1, 2))]
    forward = forward_flops(SHAPE, groups)
    assert step_flops(SHAPE, groups, reference=False) == {"train": 3 * forward, "generate": forward}
    assert step_flops(SHAPE, groups, reference=True)["train"] == 4 * forward


def test_glue_is_what_no_phase_explains() -> None:
    figures = step_figures({"generate": 2.0, "backward": 3.0, "trained_tokens": 7.0}, seconds=6.5)
    assert figures["glue"] == 1.5
    assert figures["step"] == 6.5
    assert (figures["forward"], figures["backward"], figures["trained_tokens"]) == (0.0, 3.0, 7.0)


def test_time_goes_to_the_step_it_was_spent_in(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([-5.0, 0.0, 10.0, 11.0, 13.0, 20.0, 20.0, 24.0, 26.0])
    monkeypatch.setattr(stopwatch, "now", lambda: next(times))
    watch = Stopwatch()
    watch.count("tokens", 5)
    watch.restart()  # at 0
    watch.timed("forward", lambda: None)()  # 10 to 11
    with pytest.raises(ZeroDivisionError), watch.phase("forward"):  # 13 to 20
        _ = 1 / 0
    watch.end_step()  # at 20
    with watch.phase("score"):  # 24 to 26
        pass
    monkeypatch.setattr(stopwatch, "now", lambda: 30.0)
    watch.end_step()
    assert [(step["step"], step["forward"], step["score"], step["glue"]) for step in watch.steps] == [
        (20.0, 8.0, 0.0, 12.0),
        (10.0, 0.0, 2.0, 8.0),
    ]
    assert "tokens" not in watch.steps[0]


def test_padding_is_counted_where_a_gradient_flows() -> None:
    class Decoder(nn.Module):
        def forward(self, input_ids: Any, attention_mask: Any = None) -> None:
            return None

    watch, decoder = Stopwatch(), Decoder()
    watch.count_tokens(decoder)
    ids = torch.zeros(2, 5)
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    decoder(input_ids=ids, attention_mask=mask)
    decoder(input_ids=ids, attention_mask=torch.zeros(1, 1, 2, 9))  # places in a packed row
    with torch.no_grad():
        decoder(input_ids=ids, attention_mask=mask)
    watch.end_step()
    assert (watch.steps[0]["computed_tokens"], watch.steps[0]["padding_tokens"]) == (20, 2)


def made(trainer: str, *, rows: int = 8, purpose: str = "main", **step: float) -> dict[str, Any]:
    job = {"trainer": trainer, "engine": "transformers", "rows": rows, "checkpointing": False}
    steps = [{**step_figures({"generate": 4.0, "forward": 1.0, **step}, seconds=10.0)}]
    memory = {"above_load": 300.0, "peak": 900.0}
    job |= {"completion_head": False, "beta": 0.0, "precision": "32-true"}
    return {"purpose": purpose, "job": job, "memory": memory, "steps": steps}


WORKLOAD = {"flops": {"train": 30.0, "generate": 10.0}, "matmul": {"32-true": 100.0}}


def test_generation_counts_for_as_many_tokens_as_are_trained_on() -> None:
    counts = {"generated_tokens": 80.0, "trained_tokens": 60.0, "computed_tokens": 200.0, "padding_tokens": 50.0}
    figures = report.figures(made("trl", score=2.0, processor=15.0, **counts), WORKLOAD)
    assert figures["cores"] == 1.5
    assert figures["generate"] == pytest.approx(3.0)
    assert figures["step"] == pytest.approx(9.0)
    assert figures["training"] == pytest.approx(3.0)
    assert figures["glue"] == pytest.approx(3.0)
    assert sum(figures[part] for part in report.PARTS) == pytest.approx(9.0)
    assert figures["tokens_per_second"] == pytest.approx(60 / 9)
    assert figures["padding"] == 0.25
    assert figures["training_utilisation"] == pytest.approx(30 / 300)
    assert figures["utilisation"] == pytest.approx(40 / 900)


def test_a_ratio_is_of_medians() -> None:
    slow, fast = ([{"step": value} for value in values] for values in ((9.0, 40.0, 10.0), (2.5, 2.0, 0.1)))
    assert report.ratio(slow, fast, "step") == 5.0
    assert report.spread([3.0, 1.0, 2.0], ".1f") == "2.0 (1.0 to 3.0)"


def test_the_best_micro_batch_is_the_fastest() -> None:
    runs = [made("trl", rows=rows, purpose="tune") for rows in (64, 16, 4)]
    runs[1]["steps"][0]["step"] = 8.0
    runs.append(made("trl", rows=64, purpose="tune"))
    runs[-1]["steps"][0]["step"], runs[-1]["job"]["checkpointing"] = 1.0, True
    assert run.best_rows(runs) == 16


def test_rewards_differ_in_a_group_of_equal_answers_and_follow_the_tokens() -> None:
    same, other = [5, 6, 1], [6, 5, 1]
    assert checksum(same) != checksum(other)
    rewards = token_reward(completion_ids=[same, same, other, same])
    assert rewards[1] == rewards[0] + 1 == rewards[3]
    assert int(rewards[2]) == 0
    assert rewards[2] != rewards[0]


def test_both_trainers_are_given_the_same_completions(tmp_path: Path) -> None:
    groups = [[Completion(token_ids=[p, g], logprobs=[-1.0, -2.0], finished=True) for g in range(2)] for p in range(2)]
    Recording.write(tmp_path, [[7, 8], [9]], groups)
    recording = Recording(tmp_path)
    assert [c.token_ids for c in recording.group([9])] == [[1, 0], [1, 1]]
    assert recording.group([9]) == groups[1]
    assert [recording.next(prompt) for prompt in ([7, 8], [7, 8], [9], [9])] == [[0, 0], [0, 1], [1, 0], [1, 1]]


def test_a_job_comes_back_from_its_file(tmp_path: Path) -> None:
    job = Job(
        trainer="ours", engine="vllm", model="m", data="d", prompts_per_step=2, group_size=4, max_prompt_length=10,
        max_completion_length=20, rows=4, precision="32-true", options={"packing": True},
    )  # fmt: skip
    job.write(tmp_path / "job.json")
    assert Job.read(tmp_path / "job.json") == job
    assert (job.sequences, job.micro_batch_tokens) == (8, 120)


def test_the_slope_is_the_exponent() -> None:
    assert growth.slope([1, 2, 4, 8], [3, 6, 12, 24]) == pytest.approx(1.0)
    assert growth.slope([1, 2, 4], [5, 20, 80]) == pytest.approx(2.0)
    assert growth.slope([10, 100], [7, 7]) == pytest.approx(0.0)
    assert growth.exponents([1, 2, 4], [8, 8, 32]) == "1.00 (2.00)"


def test_the_end_of_a_text_is_as_likely_as_asked() -> None:
    model = random_model(hidden=64, mlp=64, layers=2, vocabulary=512)
    reached = tune_end(model)
    assert reached == pytest.approx(1 / 80, rel=0.05)
    assert end_probability(model, torch.randint(2, 90, (4, 100))) == pytest.approx(1 / 80, rel=0.2)
    tokenizer = character_tokenizer(512)
    text = "".join(CHARACTERS)
    assert len(tokenizer.encode(text)) == len(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_token_id == EOS


def test_sides_take_turns_and_the_page_tells_of_all_of_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    job = Job(
        trainer="ours", engine="vllm", model="m", data="d", prompts_per_step=8, group_size=8, max_prompt_length=200,
        max_completion_length=256, rows=64, precision="bf16-mixed",
    )  # fmt: skip

    def measure(job: Job, folder: Path) -> dict[str, Any]:
        seconds = {"ours": 2.0, "trl": 40.0}[job.trainer] - (job.rows == 16)
        figures = {"forward": 1.0, "generated_tokens": 5.0, "trained_tokens": 5.0, "computed_tokens": 10.0}
        steps = [step_figures(dict(figures), seconds=value) for value in (99.0, seconds)]
        return {"memory": {"above_load": 100.0 if job.trainer == "ours" else 400.0, "peak": 500.0}, "steps": steps}

    monkeypatch.setattr(run, "measure", measure)
    runs = run.compare("W2", job, repeats=2)
    main = [(r["job"]["trainer"], r["job"]["engine"], r["job"]["rows"]) for r in runs if r["purpose"] == "main"]
    turn = [
        ("ours", "vllm", 64),
        ("ours", "transformers", 64),
        ("trl", "transformers", 64),
        ("trl", "transformers", 16),
    ]
    assert main == 2 * turn
    assert [r["job"]["seed"] for r in runs if r["purpose"] == "main"] == [0] * 4 + [1] * 4
    once = [(r["job"]["trainer"], r["job"]["precision"], r["job"]["beta"]) for r in runs if r["purpose"] == "once"]
    assert once == [(t, *s) for s in (("32-true", 0.0), ("bf16-mixed", 0.04)) for t in ("ours", "trl")]
    assert all(len(r["steps"]) == 1 for r in runs)  # the first step is not among them

    flops = {"train": 3e12, "generate": 1e12}
    length = {"mean": 80.0, "max": 256}
    found = {"title": "made", "runs": runs, "flops": flops, "flops_with_reference": flops, "machine": "some"}
    found |= {"matmul": {"32-true": 1e12, "bf16-mixed": 2e12}, "commit": "abc"}
    record = {"workloads": {"W2": found | {"completion_length": length, "prompt_length": length}}}
    page = report.page(record)
    assert "| ours, vllm, micro-batch 64 / TRL, micro-batch 64 | 20.00 x | 1.00 x | 0.25 x |" in page
    assert "| ours, vllm, micro-batch 64 / TRL, micro-batch 16 | 19.50 x | 1.00 x | 0.25 x |" in page
    assert "| TRL, micro-batch 64, checkpointing | 40.00 | 400 |" in page
    assert "bf16-mixed, beta 0.04, one run:" in page
    report.draw(record, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 0


def test_growth_by_factor(tmp_path: Path) -> None:
    def points(time: float, memory: float) -> list[dict[str, Any]]:
        made = [(100, 10), (200, 20), (400, 40)]
        return [
            {"hidden": h, "weights": {"body": b}, "seconds": b**time, "beyond": 8.0 * b**memory} for h, b in made
        ]  # fmt: skip

    record = {"factors": {"hidden": {"ours": points(1.0, 0.5), "trl": points(2.0, 1.0)}}}
    rows = growth.table(record)
    assert rows[1][1:6] == ["10", "40", "ours", "1.00 (1.00)", "0.50 (0.50)"]
    assert rows[2][4:6] == ["2.00 (2.00)", "1.00 (1.00)"]
    growth.draw(record, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").stat().st_size > 0
