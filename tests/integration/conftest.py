"""Models that the tests of whole commands share."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_lightning.data.tiny_model import build_tiny_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 10,000 random weights with the running totals' tokenizer and 256 positions."""
    return build_tiny_model(str(tmp_path_factory.mktemp("models") / "tiny"), hidden=32, layers=2, mlp=64)
