"""What a run's folder says of where it ran."""

from __future__ import annotations

import json
import platform
import sys

import pytest
import torch

from grpo_lightning.environment import environment


def test_it_holds_the_command_the_machine_and_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "grpo_lightning", "fit", "--data.template", "a b"])
    monkeypatch.setenv("WANDB_API_KEY", "a secret")
    found = environment(world_size=2)
    assert found["command"] == "python -m grpo_lightning fit --data.template 'a b'"
    assert found["processes"] == 2
    assert found["versions"]["python"] == platform.python_version()
    assert found["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert "a secret" not in json.dumps(found)


def test_secrets_of_the_command_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "x", "--trainer.logger.api_key", "hush", "--a", "b"])
    assert environment()["command"] == "python -m x --trainer.logger.api_key '***' --a b"
