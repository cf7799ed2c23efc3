"""What breaks in a sampler is told of in one line."""

from __future__ import annotations

from typing import Any, cast

import pytest

from grpo_lightning.engines.base import RolloutEngine
from grpo_lightning.engines.failures import ReportedEngine
from grpo_lightning.errors import RunStopped, UserError

LOST = "[/src/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1"


class Broken:
    """An engine whose every call raises ``error``."""

    weights_lost_in_sleep = True

    def __init__(self, error: Exception) -> None:
        self.error = error

    def generate(self, *arguments: Any, **options: Any) -> None:
        raise self.error

    start = load_weights = sleep = wake = close = generate


def broken(error: Exception) -> ReportedEngine:
    return ReportedEngine(cast(RolloutEngine, Broken(error)))


@pytest.mark.parametrize(
    ("method", "doing"),
    [("start", "start"), ("load_weights", "take the new weights"), ("generate", "generate"), ("wake", "wake")],
)
def test_what_where_and_why(method: str, doing: str) -> None:
    with pytest.raises(RunStopped) as caught:
        getattr(broken(KeyError("no such\n  kernel")), method)([[1]], seeds=[1])
    expected = rf"the sampler (Broken) failed to {doing}: KeyError: 'no such\n kernel' (test_failures.py, line "
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("error", [UserError("a flag"), RunStopped("enough"), RuntimeError(LOST)])
def test_what_has_been_said_passes(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        broken(error).generate()
    assert caught.value is error


def test_memory_has_its_remedy() -> None:
    with pytest.raises(RunStopped, match=r"CUDA out of memory.*; lower --rollout.engine.batch_size"):
        broken(RuntimeError("CUDA out of memory")).generate()


def test_all_else_is_the_engine_s_own() -> None:
    assert broken(ValueError()).weights_lost_in_sleep
    with pytest.raises(ValueError, match="x"):
        broken(ValueError("x")).close()
