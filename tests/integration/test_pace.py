"""What a run says while it goes on: time, tokens and utilisation, lines where there is no terminal, samples."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from grpo_lightning.callbacks.throughput import PHASES
from tests.integration.command_line import fit, grpo, rows

pytestmark = pytest.mark.integration


def test_the_time_of_a_rollout_is_that_of_its_phases(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two rollouts of two optimizer steps each; what came before the first rollout's end starts the sampler."""
    changes = {"trainer__max_steps": 4, "rollout__updates_per_rollout": 2, "trainer__enable_progress_bar": True}
    changes["samples__console"] = True
    outcome = fit(capsys, grpo(tiny, tmp_path / "run", **changes))
    table = [{name: float(value) for name, value in row.items() if value} for row in rows(tmp_path / "run")]
    for first, last in (table[:2], table[2:]):
        assert "step_time" not in first
        phases = sum(step.get(f"time/{phase}", 0.0) for step in (first, last) for phase in PHASES)
        assert last["step_time"] == pytest.approx(phases + last["time/other"])
        assert first["time/update"] == pytest.approx(first["time/forward_backward"] + first["time/optimizer"])
        assert 0 < last["mfu/step"] < 1
        assert 0 < last["mfu/update"] < 1
    assert 0 < table[3]["time/other"] < 0.5 * table[3]["step_time"]  # in the first, loggers open their files
    tokens = table[2]["num_tokens"] - table[0]["num_tokens"]
    assert table[3]["tokens_per_second"] == pytest.approx(tokens / table[3]["step_time"])
    lines = [line for line in outcome.err.splitlines() if line.startswith("rollout ") and "reward" in line]
    assert [line.split(":")[0] for line in lines] == ["rollout 1/2", "rollout 2/2"]
    assert f"reward {table[0]['reward']:.3f}, length {table[0]['completions/mean_length']:.1f}" in lines[0]
    assert "%|" not in outcome.out  # no bar
    assert outcome.err.count("rollout 1, step 2: ") == 1  # the table of samples
    board = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    board.Reload()
    assert [event.step for event in board.Tensors("samples/text_summary")] == [2]
    assert outcome.err.count("The first step's loss is") == 1
