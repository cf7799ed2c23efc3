"""What grows while a model learns: accuracy, length, KL: python -m experiments.emergence.run"""

from __future__ import annotations

import json
from pathlib import Path

from experiments.plots import Panel, draw, markdown, spread, write_table
from experiments.sweep import ROOT, RUNS, Run, run_sweep

HERE = Path(__file__).resolve().parent
ROLLOUTS = 120
POINTS = (0, 5, 10, 15, 20, 40, 60, 80, 100, 120)
"""Rollouts that the table shows."""
STAGES = (0, 10, 120)
"""Rollouts after which the page shows answers."""
SETTINGS = {"GRPO": f"--data.source.size {32 * ROLLOUTS} --trainer.val_check_interval 5"}
GREEDY, SAMPLED = "val/running_totals/mean_length", "completions/mean_length"
FIGURES = ("reward", "val/accuracy", "kl", SAMPLED, GREEDY, "entropy")
PANELS = (
    Panel("reward", "Mean reward of a rollout", "share of right answers", smooth=3),
    Panel("val/accuracy", "Greedy accuracy, held-out problems", "%", scale=100),
    Panel(SAMPLED, "Mean completion length", "tokens", smooth=3),
    Panel("kl", "KL to the base model (k3)", "nats a token", smooth=3),
)


def main() -> None:
    runs = run_sweep(
        "emergence",
        SETTINGS,
        options="--config configs/quickstart.yaml --config configs/objective/grpo.yaml "
        "--config experiments/embedded.yaml",
        figures=FIGURES,
    )
    answers = json.dumps(read_answers(ROOT / RUNS / "emergence" / "GRPO-seed0"), indent=2)
    (HERE / "answers.json").write_text(answers + "\n", encoding="utf-8")
    show(runs)


def read_answers(run: Path) -> list[dict[str, str]]:
    """The greedy answer to the first held-out question that was wrong at first and right in the end, at each stage."""
    stages = []
    for step in STAGES:
        lines = (run / "samples" / f"val_running_totals_step{step:06d}.jsonl").read_text("utf-8").splitlines()
        stages.append({row["prompt"]: row for row in map(json.loads, lines) if row["greedy"]})
    first, *_, last = stages
    prompt = next(prompt for prompt in first if last[prompt]["correct"] and not first[prompt]["correct"])
    return [
        {"rollouts": str(step), "prompt": prompt, "answer": rows[prompt]["completion"], "right": rows[prompt]["answer"]}
        for step, rows in zip(STAGES, stages, strict=True)
    ]


def show(runs: list[Run]) -> None:
    """Plot and table of a record, also of one that ``read_results`` has read."""
    draw(runs, PANELS, HERE / "plot.png")
    write_table(HERE / "README.md", page(runs))


def page(runs: list[Run]) -> str:
    """What README.md shows of the record: figures at ten points, and one question's answers."""

    def at(figure: str, point: int) -> list[float | None]:
        """Of each seed: the value there, or the first rollout's before training."""
        return [dict(zip(*run.by_rollout(figure), strict=True)).get(point) for run in runs]

    rows = [["rollouts", "greedy accuracy (%)", "greedy length", "sampled reward (%)", "sampled length", "KL"]]
    for point in POINTS:
        sampled = max(point, 1)
        rows.append(
            [
                str(point),
                spread(at("val/accuracy", point), ".1%"),
                spread(at(GREEDY, point), ".1f"),
                spread(at("reward", sampled), ".1%"),
                spread(at(SAMPLED, sampled), ".1f"),
                spread(at("kl", sampled), ".3f"),
            ]
        )
    stages = json.loads((HERE / "answers.json").read_text("utf-8"))
    answers = [["rollouts", f"greedy answer to: {stages[0]['prompt']} ({stages[0]['right']})"]]
    answers += [[stage["rollouts"], f"`{stage['answer']}`"] for stage in stages]
    return f"{markdown(rows)}\n\n{markdown(answers)}"


if __name__ == "__main__":
    main()
