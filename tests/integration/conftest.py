"""Models and settings that integration tests share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_lightning.data.tiny_model import build_tiny_model
from grpo_lightning.rewards.code import runs


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 10,000 random weights with the running totals' tokenizer and 256 positions."""
    return build_tiny_model(str(tmp_path_factory.mktemp("models") / "tiny"), hidden=32, layers=2, mlp=64)


@pytest.fixture(autouse=True)
def _fresh_wandb() -> Iterator[None]:
    """wandb keeps the open run and the environment of its first use for the whole process: each test has its own."""
    yield
    if (wandb := sys.modules.get("wandb")) is not None:
        wandb.finish()
        wandb.teardown()


@pytest.fixture(params=["name spaces", "plain"])
def confined(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Code rewards in name spaces of their own, and without; True for the former."""
    wanted = request.param == "name spaces"
    if wanted and not runs.name_spaces_work():
        pytest.skip("no name spaces here")
    monkeypatch.setattr(runs, "name_spaces_work", lambda: wanted)
    return wanted
