"""How far a run is and how long it will take, on a terminal and in a file."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from grpo_lightning.callbacks import progress_bar, throughput
from grpo_lightning.callbacks.progress_bar import ProgressBar, duration
from grpo_lightning.report import metrics

MODULE = SimpleNamespace(learns_from_rollouts=True, steps_per_batch=2)
FIGURES = {"reward": 0.5, "completions/mean_length": 31.25, "loss": 0.1, "tokens_per_second": 1234.0, "step_time": 2.0}


class Run:
    """A bar and as much of a trainer as it looks at: ``epochs`` of 4 rollouts, ``done`` of which are behind."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        terminal: bool,
        epochs: int | None = 3,
        max_steps: int = -1,
        done: int = 0,
        **arguments: Any,
    ) -> None:
        self.time = 100.0
        monkeypatch.setattr(progress_bar, "time", SimpleNamespace(monotonic=lambda: self.time))
        monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
        self.trainer = SimpleNamespace(
            max_epochs=epochs, num_training_batches=4, max_steps=max_steps,
            global_step=2 * done, current_epoch=done // 4,
            fit_loop=SimpleNamespace(total_batch_idx=done - 1), lightning_module=MODULE, is_global_zero=True,
            loggers=[], progress_bar_metrics={"v_num": 0, "reward": 0.5, "completions/mean_length": 31.25},
        )  # fmt: skip
        self.bar = ProgressBar(**arguments)
        self.bar.setup(cast(Any, self.trainer), cast(Any, MODULE), "fit")
        self.bar.on_train_start(cast(Any, self.trainer))

    def rollout(self, seconds: float) -> None:
        self.trainer.fit_loop.total_batch_idx += 1
        self.trainer.global_step += 2
        self.time += seconds
        self.bar.on_step_figures(cast(Any, self.trainer), MODULE, FIGURES)
        self.bar.on_train_batch_end(cast(Any, self.trainer), MODULE)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0s"), (59, "59s"), (60, "1m 00s"), (185.2, "3m 05s"), (7620, "2h 07m"), (367_200, "4d 06h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_file_gets_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("INFO")
    run = Run(monkeypatch, terminal=False, line_seconds=30)
    run.rollout(60)  # starts the sampler
    (line,) = caplog.messages
    assert line == "rollout 1/12: reward 0.500, length 31.2, loss 0.1, 1,234 tokens/s, 2 s, 11m 00s left"
    for _ in range(3):
        run.rollout(10)
    assert caplog.messages[1:] == [line.replace("1/12", "4/12").replace("11m 00s", "1m 20s")]
    for _ in range(8):
        run.rollout(10)
    assert [message.split(":")[0] for message in caplog.messages[2:]] == [
        "rollout 7/12",
        "rollout 10/12",
        "rollout 12/12",
    ]
    assert caplog.messages[-1].endswith("done in 2m 50s")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("settings", "total"),
    [
        ({"epochs": 3}, 12),
        ({"epochs": 3, "done": 5}, 12),
        ({"epochs": None, "max_steps": 14}, 7),
        ({"epochs": 3, "max_steps": 14, "done": 5}, 7),
        ({"epochs": 1, "max_steps": 100}, 4),
        ({"epochs": -1}, None),
    ],
)
def test_the_total_is_of_the_whole_run(
    settings: dict[str, Any], total: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    bar = Run(monkeypatch, terminal=True, **settings).bar.train_progress_bar
    assert (bar.total, bar.n) == (total, settings.get("done", 0))


def test_a_resumed_run_reckons_with_its_own_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, terminal=False, done=6)
    assert run.bar.seconds_left() is None
    run.rollout(7)
    assert run.bar.seconds_left() == 5 * 7
    run.rollout(2)
    run.rollout(4)
    assert run.bar.seconds_left() == 3 * 3


def test_without_an_end_there_is_no_time_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    run = Run(monkeypatch, terminal=False, epochs=-1)
    run.rollout(3)
    assert caplog.messages == ["rollout 1: reward 0.500, length 31.2, loss 0.1, 1,234 tokens/s, 2 s"]


def test_a_terminal_gets_one_bar_with_phases(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(monkeypatch, terminal=True, done=4)
    for phase in ("sync", "generate", "score", "reward_wait", "forward_backward", "optimizer"):
        run.bar.on_phase(phase)
    run.rollout(5)
    run.bar.on_train_end()
    out = capsys.readouterr().out
    described = [part.split(":")[0] for part in out.split("\r")]
    assert [name for name in dict.fromkeys(described) if "Epoch" in name] == [
        "Epoch 1", "Epoch 1 rollout", "Epoch 1 log-probs", "Epoch 1 reward", "Epoch 1 update",
    ]  # fmt: skip
    assert "5/12" in out
    assert "reward=0.500, length=31.20, tokens/s=1,234, left=35s" in out
    assert "v_num" not in out


def test_a_phase_that_another_module_adds_has_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, terminal=True)
    for phase, name in (("generate", "rollout"), ("critic", "critic")):
        run.bar.on_phase(phase)
        assert run.bar.train_progress_bar.desc.rstrip(": ").endswith(name)


def test_phases_are_the_same_wherever_they_are_named() -> None:
    """The report adds up ``time/update``, which is forward, backward and optimizer, for runs without ``step_time``."""
    assert tuple(progress_bar.PHASES) == throughput.PHASES
    assert (*(f"time/{phase}" for phase in throughput.PHASES[:-2]), "time/update") == metrics.PHASES
