"""Classes on the command line: objectives keep nothing of each other, and null goes where it may."""

from __future__ import annotations

import logging

import pytest
import torch
from jsonargparse import Namespace

from grpo_lightning.cli_classes import (
    check_learning_rates,
    keep_no_arguments_of_another_objective,
    misplaced_nulls,
)
from grpo_lightning.cli_parser import OneLineParser
from grpo_lightning.errors import UserError
from grpo_lightning.objectives import Objective

CLIPPED = "grpo_lightning.objectives.ClippedObjective"
GSPO = "grpo_lightning.objectives.GSPO"


@pytest.fixture
def parser() -> OneLineParser:
    keep_no_arguments_of_another_objective()
    parser = OneLineParser()
    parser.add_argument("--config", action="config")
    parser.add_argument("--objective", type=Objective | None)
    parser.add_argument("--optimizer", type=torch.optim.Optimizer | None)
    parser.set_defaults({"objective": {"class_path": CLIPPED}})
    return parser


@pytest.mark.parametrize("name", ["GSPO", GSPO])
def test_an_objective_begins_with_its_own_defaults(parser: OneLineParser, name: str) -> None:
    chosen = parser.parse_args(
        ["--objective.beta=0.3", f"--objective={name}", "--objective.epsilon_high=0.5"]
    ).objective
    assert chosen.class_path == GSPO
    assert (chosen.init_args.epsilon, chosen.init_args.epsilon_high, chosen.init_args.beta) == (3e-4, 0.5, 0.0)


def test_also_in_a_file(parser: OneLineParser, tmp_path) -> None:
    (tmp_path / "a.yaml").write_text(f"objective: {{class_path: {CLIPPED}, init_args: {{epsilon: 0.1, beta: 0.2}}}}")
    (tmp_path / "b.yaml").write_text(f"objective: {{class_path: {GSPO}}}")
    (tmp_path / "c.yaml").write_text("objective: {init_args: {beta: 0.7}}")
    files = [f"--config={tmp_path / name}" for name in ("a.yaml", "b.yaml", "c.yaml")]
    chosen = parser.parse_args(files).objective
    assert (chosen.class_path, chosen.init_args.epsilon, chosen.init_args.beta) == (GSPO, 3e-4, 0.7)


def test_the_same_class_keeps_what_was_set(parser: OneLineParser) -> None:
    chosen = parser.parse_args(["--objective.epsilon=0.1", f"--objective={CLIPPED}"]).objective
    assert chosen.init_args.epsilon == 0.1


def test_null_where_a_class_takes_none() -> None:
    objective = {"class_path": CLIPPED, "init_args": {"epsilon": None, "delta": None, "beta": None}}
    config = Namespace(
        model=Namespace(class_path="grpo_lightning.GRPOModule", init_args=Namespace(lr=None, objective=objective)),
        rollout=Namespace(seed=None, rewards=[objective]),
    )
    assert list(misplaced_nulls(config)) == [
        "--model.objective.epsilon",
        "--model.objective.beta",
        "--rollout.rewards.0.epsilon",
        "--rollout.rewards.0.beta",
    ]


def _model(lr: float | None, own: float) -> Namespace:
    optimizer = Namespace(class_path="torch.optim.AdamW", init_args=Namespace(lr=own))
    return Namespace(class_path="grpo_lightning.GRPOModule", init_args=Namespace(lr=lr, optimizer=optimizer))


def test_two_learning_rates_that_differ_are_refused() -> None:
    with pytest.raises(UserError, match=r"--model\.optimizer\.lr 0\.5: --model\.lr is 0\.1, and one of them was meant"):
        check_learning_rates(_model(0.1, 0.5), [])


@pytest.mark.parametrize(
    ("lr", "own", "words", "runs_at"),
    [
        (None, 0.5, [], None),
        (0.5, 0.5, [], None),
        (0.1, 1e-3, [], None),  # the class's default is nobody's choice
        (None, 1e-3, [], "1e-06"),
        (0.1, 1e-3, ["--model.optimizer.lr", "1e-3"], "0.1"),
        (0.1, 1e-3, ["--model.optimizer.init_args.lr=1e-3"], "0.1"),
        (0.1, 1e-3, ["--model.optimizer.lr_decay=1"], None),
    ],
)
def test_a_rate_that_counts_as_not_chosen_is_told_of(
    lr: float | None, own: float, words: list[str], runs_at: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        check_learning_rates(_model(lr, own), words)
    told = [f"--model.optimizer.lr {own}: is the class's default, which counts as not chosen; the run takes {runs_at}"]
    assert [record.getMessage().rpartition(";")[0] for record in caplog.records] == (told if runs_at else [])


def test_without_an_optimizer_there_is_one_rate() -> None:
    check_learning_rates(Namespace(class_path="x.Y", init_args=Namespace(lr=0.1, optimizer=None)), [])
