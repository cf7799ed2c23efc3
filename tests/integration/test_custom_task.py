"""The example of an own task: its data, rewards and baselines by hand, and its two YAML files run."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from experiments.custom_task import baselines, collect
from experiments.custom_task.rewards import VolatilityPenalty, direction, forecast, size_closeness
from experiments.custom_task.series import SPLITS, PriceMoves, best_forecast, simulate
from grpo_lightning.data.tiny_model import build_tiny_model
from grpo_lightning.errors import UserError
from tests.integration.command_line import REPOSITORY, rows, run

pytestmark = pytest.mark.integration

FOLDER = REPOSITORY / "experiments" / "custom_task"
CALM, WILD = [1, -1, 2, -2, 1, -2], [6, -7, 8, -9, 7, -5]
"""Mean sizes 1.5 and 7."""


# --- rewards ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("completion", "move"),
    [("+3", 3), ("-9", -9), (" -2\n", -2), ([{"role": "assistant", "content": "+4"}], 4),
     ("+0", None), ("3", None), ("+12", None), ("+3-2", None), ("up", None), ("", None)],
)  # fmt: skip
def test_a_forecast_is_a_sign_and_a_digit(completion: object, move: int | None) -> None:
    assert forecast(completion) == move


def test_direction_and_size() -> None:
    said, came = ["+3", "+3", "+3", "-2", "+9", "-3", "what"], ["+3", "+1", "-3", "-5", "+1", "+3", "+3"]
    assert direction(completions=said, answer=came) == [1, 1, 0, 1, 1, 0, 0]
    assert size_closeness(completions=said, answer=came) == [1, 0.5, 0, 0.25, 0, 0, 0]


def test_the_penalty_measures_size_in_multiples_of_the_recent_volatility() -> None:
    said = ["+2", "-3", "+9", "+9", "-9", "?"]
    history = [CALM, CALM, CALM, WILD, [4, -4], WILD]
    # (2 - 2.25) / 1.5 < 0; (3 - 2.25) / 1.5; (9 - 2.25) / 1.5 > 1; (9 - 10.5) / 7 < 0; (9 - 6) / 4; no forecast
    assert VolatilityPenalty()(completions=said, history=history) == pytest.approx([0, -0.5, -1, 0, -0.75, -1])
    assert VolatilityPenalty(factor=2.0)(completions=["-9"], history=[[4, -4]]) == pytest.approx([-0.25])


def test_every_gold_earns_the_most() -> None:
    answers = [row["answer"] for row in PriceMoves(split="validation").rows()]
    for reward in (direction, size_closeness):
        assert set(reward(completions=answers, answer=answers)) == {reward.best}


# --- data ---------------------------------------------------------------------------------------------------------


def test_best_forecast() -> None:
    # A small last move goes on, one above 4 is taken back; the size is 1 + 3s/8 of the last two.
    assert [best_forecast([9, *pair]) for pair in ((1, 4), (1, -4), (-3, 5), (2, -9))] == [2, -2, -4, 5]


def test_the_market_follows_its_rule_in_four_cases_of_five() -> None:
    moves = simulate(15_000)
    follows = [(best_forecast(moves[:i]) > 0) == (moves[i] > 0) for i in range(2, len(moves))]
    assert sum(follows) / len(follows) == pytest.approx(0.8, abs=0.01)  # three standard errors
    assert {abs(move) for move in moves} == set(range(1, 10))


def test_no_move_is_in_two_splits_and_the_test_comes_last() -> None:
    spans = list(SPLITS.values())
    assert all(end <= first for (_, end), (first, _) in itertools.pairwise(spans))
    moves = simulate(spans[-1][1])
    for split, (first, end) in SPLITS.items():
        found = PriceMoves(split=split).rows()
        assert found[0]["history"] == moves[first : first + 6]
        assert [int(row["answer"]) for row in found] == moves[first + 6 : end]
    assert next(reversed(SPLITS)) == "test"


def test_rows_are_text_and_numbers() -> None:
    row = PriceMoves(split="test").rows()[0]
    assert row["question"].removesuffix("?").split(",") == [f"{move:+d}" for move in row["history"]]
    source = PriceMoves(split="test")
    assert (source.extract_answer(" +3"), source.extract_answer("rise"), source.name) == ("+3", None, "test")


def test_the_analyst_extrapolates_half_of_the_time() -> None:
    found = PriceMoves(split="start").rows()
    turned = [row for row in found if (int(row["answer"]) > 0) != (row["history"][-1] > 0)]
    assert all(row["analyst"] in (row["answer"], f"{-int(row['answer']):+d}") for row in turned)
    assert sum(row["analyst"] != row["answer"] for row in turned) / len(turned) == pytest.approx(0.5, abs=0.04)
    assert all(row["analyst"] == row["answer"] for row in found if row not in turned)


def test_an_unknown_split_is_named() -> None:
    with pytest.raises(UserError, match="'tset' is unknown to PriceMoves; choose one of start, train, val"):
        PriceMoves(split="tset")  # type: ignore[arg-type]


# --- baselines ----------------------------------------------------------------------------------------------------


def made(*pairs: tuple[list[int], int]) -> baselines.Rows:
    return [{"history": history, "answer": f"{answer:+d}"} for history, answer in pairs]


def test_baselines_on_a_series_made_by_hand() -> None:
    # Each move is minus the one before: least squares finds that, persistence cannot.
    known = made(([1, -1], 1), ([-1, 1], -1), ([2, -2], 2), ([5, -5], 5), ([-3, 3], -3))
    new = made(([4, -4], 4), ([-2, 2], -2))
    assert baselines.majority(known, new) == ["+2", "+2"]
    assert baselines.persistence(known, new) == ["-4", "+2"]
    assert baselines.autoregression(known, new) == ["+4", "-2"]
    assert baselines.autoregression_with_signs(known, new) == ["+4", "-2"]
    assert baselines.ceiling(known, new) == ["-4", "+2"]


def test_a_forecast_is_written_as_the_model_writes_it() -> None:
    assert [baselines.written(move) for move in (0.2, -0.2, -3.6, 40, -40)] == ["+1", "-1", "-4", "+9", "-9"]


def test_figures_of_forecasts() -> None:
    found = baselines.measure(["+3", "-3", "-9", "no"], made((CALM, 3), (CALM, 1), (WILD, -5), (WILD, 2)))
    assert found == pytest.approx(
        {
            "direction": 2 / 4,  # first and third
            "size_error": (0 + 2 + 4 + 2) / 4,
            "profit": (3 - 1 + 5 + 0) / 4,
            "rash": 3 / 4,  # 3 is more than 1.5 x 1.5; 9 is not more than 1.5 x 7; no forecast is
            "reward": (2 + 1 + 0.5 * (-0.5 - 0.5 - 1)) / 4,
        }
    )


# --- the page -----------------------------------------------------------------------------------------------------


def test_the_page_shows_the_record_and_the_baselines_are_those_of_today() -> None:
    record = json.loads((FOLDER / "results.json").read_text("utf-8"))
    page = (FOLDER / "README.md").read_text("utf-8")
    assert collect.result_table(record, 1994) in page
    assert collect.sweep_table(record) in page
    known, test = baselines.known_rows(), PriceMoves(split="test").rows()
    for name, baseline in baselines.BASELINES.items():
        assert baselines.measure(baseline(known, test), test) == pytest.approx(record["baselines"][name])


# --- the command line ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(str(tmp_path_factory.mktemp("models") / "tiny"), hidden=32, layers=2, mlp=64)


SHORT = ("--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false", "--data.prompts_per_step", "4")


def test_the_supervised_start_learns(tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--model.policy", str(tiny_model), "--trainer.default_root_dir", str(tmp_path / "run"))
    config = ("--config", str(FOLDER / "supervised.yaml"))
    outcome = run(capsys, "fit", *config, *options, *SHORT, "--trainer.max_steps", "3")
    assert outcome.code == 0, outcome.err
    losses = [float(row["loss"]) for row in rows(tmp_path / "run")]
    assert len(losses) == 3
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("weights", ["[1,1,0.5]", "[1,0,0]"])
def test_two_rollouts(weights: str, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--model.policy", str(tiny_model), "--trainer.default_root_dir", str(tmp_path / "run"))
    options += ("--rollout.reward_weights", weights, "--trainer.limit_val_batches", "0")
    config = ("--config", str(FOLDER / "custom_task.yaml"))
    outcome = run(capsys, "fit", *config, *options, *SHORT, "--trainer.max_steps", "2")
    assert outcome.code == 0, outcome.err
    found = rows(tmp_path / "run")
    assert [row["step"] for row in found] == ["1", "2"]
    for row in found:
        terms = [float(row[f"rewards/{name}/mean"]) for name in ("direction", "size_closeness", "VolatilityPenalty")]
        paid = sum(weight * term for weight, term in zip(json.loads(weights), terms, strict=True))
        assert float(row["reward"]) == pytest.approx(paid)
        assert terms[2] < 0  # random weights write no forecasts
