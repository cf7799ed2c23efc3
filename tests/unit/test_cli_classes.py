"""Classes on the command line: objectives keep nothing of each other, and null goes where it may."""

from __future__ import annotations

import pytest
import torch
from jsonargparse import Namespace

from grpo_lightning.cli_classes import keep_no_arguments_of_another_objective, misplaced_nulls
from grpo_lightning.cli_parser import OneLineParser
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
