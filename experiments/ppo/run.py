"""PPO with a critic against GRPO, at three learning rates each: python -m experiments.ppo.run"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from experiments.plots import LINES, OKABE_ITO, Column, aligned, markdown, spread, table, write_table
from experiments.ppo import costs
from experiments.sweep import START, Run, run_sweep

HERE = Path(__file__).resolve().parent
ROLLOUTS = 30
PPO = "--model grpo_lightning.PPOModule --model.gae_lambda 1.0"
"""As in configs/quickstart_ppo.yaml."""
ALGORITHMS = {
    "GRPO": "",
    "PPO, value head": f"{PPO} --model.critic_lr 1e-3",
    "PPO, own critic": f"{PPO} --model.critic {START} --model.critic_lr 3e-4",
}
"""The rate of the critic stays; the rate that varies is the policy's, which with a value head is the trunk's."""
RATES = ("3e-5", "1e-4", "3e-4")
SETTINGS = {
    f"{algorithm}, lr {rate}": f"{options} --model.lr {rate}".strip()
    for algorithm, options in ALGORITHMS.items()
    for rate in RATES
}
FIGURES = (
    *("reward", "val/accuracy", "entropy", "completions/mean_length", "frac_reward_zero_std", "grad_norm"),
    *("critic/vf_explained_var", "critic/vf_loss", "critic/grad_norm", "time/score", "time/update", "time/generate"),
)


def rollouts_to_80(run: Run) -> float | None:
    """Rollouts, and so optimizer steps, until three in a row have a mean reward of 80%."""
    return run.rollouts_to("reward", 0.8, points=3)


def end_reward(run: Run) -> float | None:
    """Mean reward of the last five rollouts."""
    return run.last("reward", points=5)


COLUMNS = (
    Column("steps to 80% reward", rollouts_to_80, ".0f"),
    Column("reward, last 5 rollouts (%)", end_reward, ".1%"),
    Column("greedy accuracy, end (%)", lambda run: run.last("val/accuracy"), ".1%"),
    Column("entropy, last 5", lambda run: run.last("entropy", points=5), ".3f"),
)


def main() -> None:
    runs = run_sweep(
        "ppo",
        SETTINGS,
        options="--config configs/quickstart.yaml --config experiments/embedded.yaml "
        f"--data.source.size {32 * ROLLOUTS} --trainer.num_sanity_val_steps 0",
        figures=FIGURES,
    )
    costs.main()
    show(runs)


def show(runs: list[Run]) -> None:
    """Plot and tables of a record, also of one that ``read_results`` has read."""
    draw(runs, HERE / "plot.png")
    write_table(HERE / "README.md", page(runs))


def page(runs: list[Run]) -> str:
    """What README.md shows of the records."""
    record = json.loads(costs.RECORD.read_text("utf-8"))
    return "\n\n".join((table(runs, COLUMNS), over_rates(runs), bytes_table(record["bytes"]), lines_table(record)))


def over_rates(runs: Sequence[Run]) -> str:
    """One line an algorithm: what its learning rate does to it."""
    headings = "best rate", "steps to 80% there", "reward, last 5 (%): all rates", "least to greatest"
    rows = [["over the three rates", *headings, "explained variance, last 10: all runs"]]
    for algorithm in ALGORITHMS:
        own = [of(runs, algorithm, rate) for rate in RATES]
        ends = [_mean(end_reward, seeds) for seeds in own]
        explained = [run.last("critic/vf_explained_var", points=10) for seeds in own for run in seeds]
        best = int(np.argmax(ends))
        rows.append(
            [
                algorithm,
                RATES[best],
                spread([rollouts_to_80(run) for run in own[best]], ".0f"),
                spread(ends, ".1%"),
                f"{100 * min(ends):.1f} to {100 * max(ends):.1f}",
                spread([value for value in explained if value is not None], ".2f"),
            ]
        )
    return markdown(rows)


def bytes_table(sizes: dict[str, dict[str, dict[str, int]]]) -> str:
    """Megabytes counted on the tiny model, and gigabytes computed for 1.5 billion parameters."""
    parts = ("weights", "gradients", "optimizer", "activations")
    tiny, large = ("tiny: counted (MB)", "by formula"), (f"1.5B: {parts[0]} (GB)", *parts[1:], "together", "to GRPO")
    rows = [["held while training", *tiny, *large]]
    least = sum(sizes["GRPO"]["at 1.5B"].values())
    for name, found in sizes.items():
        megabytes = (f"{sum(found[kind].values()) / 1e6:.1f}" for kind in ("measured", "modelled"))
        gigabytes = (f"{found['at 1.5B'][part] / 1e9:.1f}" for part in parts)
        total = sum(found["at 1.5B"].values())
        rows.append([name, *megabytes, *gigabytes, f"{total / 1e9:.1f}", f"x {total / least:.2f}"])
    return markdown(rows)


def lines_table(record: dict[str, dict[str, dict[str, int]]]) -> str:
    """What each needs that the other does not."""
    rows = [["lines of code of its own", "together", "where"]]
    for name, files in record["lines of code"].items():
        rows.append([name, str(sum(files.values())), ", ".join(f"`{file}` {lines}" for file, lines in files.items())])
    return markdown(rows)


def draw(runs: Sequence[Run], path: Path) -> None:
    """A panel a rate with the rewards of all algorithms, and what the rate does to the end."""
    figure, axes = plt.subplots(1, len(RATES) + 1, figsize=(4.2 * (len(RATES) + 1), 3.6), layout="constrained")
    for number, (algorithm, color, line) in enumerate(zip(ALGORITHMS, OKABE_ITO, LINES, strict=False)):
        for rate, place in zip(RATES, axes, strict=False):
            rollouts, values = aligned(of(runs, algorithm, rate), "reward", smooth=3)
            place.fill_between(rollouts, 100 * values.min(0), 100 * values.max(0), color=color, alpha=0.15, linewidth=0)
            place.plot(rollouts, 100 * values.mean(0), color=color, linestyle=line, label=algorithm)
            place.set(title=f"Mean reward of a rollout, lr {rate}", xlabel="rollouts", ylabel="%", ylim=(0, 100))
        ends = [[100 * (end_reward(run) or 0) for run in of(runs, algorithm, rate)] for rate in RATES]
        means = [np.mean(values) for values in ends]
        reach = [[mean - min(v) for mean, v in zip(means, ends, strict=True)]]
        reach.append([max(v) - mean for mean, v in zip(means, ends, strict=True)])
        beside = np.arange(len(RATES)) + 0.07 * (number - 1)  # or the bars would hide each other
        axes[-1].errorbar(beside, means, yerr=reach, color=color, linestyle=line, marker="o", markersize=4, capsize=3)
    axes[-1].set(title="Reward of the last five rollouts", xlabel="learning rate", ylabel="%")
    axes[-1].set_xticks(range(len(RATES)), RATES)
    for place in axes:
        place.title.set_fontsize(10)
        place.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(ALGORITHMS), fontsize=9)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def of(runs: Sequence[Run], algorithm: str, rate: str) -> list[Run]:
    """The seeds of one setting."""
    return [run for run in runs if run.setting == f"{algorithm}, lr {rate}"]


def _mean(figure: Callable[[Run], float | None], seeds: Sequence[Run]) -> float:
    return float(np.mean([value for run in seeds if (value := figure(run)) is not None]))


if __name__ == "__main__":
    main()
