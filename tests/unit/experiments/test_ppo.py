"""What the comparison of PPO and GRPO counts, and what it says of learning rates."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import Qwen2Config

from experiments.ppo import costs, run
from experiments.ppo.costs import VARIANTS, Shape, Variant, lines_of_code, measured, modelled, saved_for_backward
from tests.unit.experiments.test_figures_of_runs import made

TINY = Qwen2Config(
    vocab_size=40,
    hidden_size=48,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=3,
    intermediate_size=100,
    tie_word_embeddings=True,
)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", VARIANTS)
def test_the_formula_is_the_count(name: str, padded: bool) -> None:
    shape = Shape(rows=8, prompt=11, completion=30, padded=padded)
    counted, computed = measured(VARIANTS[name], TINY, shape), modelled(VARIANTS[name], TINY, shape)
    assert counted.gradients == computed.gradients
    # Beyond the parameters: the rotary frequencies (4 or 8 numbers a model), and a step number each in Adam.
    assert 0 <= counted.weights - computed.weights <= 3 * 2 * 8 * 4
    assert 0 <= counted.optimizer - computed.optimizer <= 2 * 4 * 30
    # Beyond the formula: the completions' indices, masks and log-probabilities.
    assert 0.98 < computed.activations / counted.activations < 1


def test_a_model_by_hand() -> None:
    # 40 embeddings; a layer: q 48 x 48 + 48, k and v 24 x 48 + 24, o 48 x 48, three of 48 x 100, two norms; a norm.
    parameters = 40 * 48 + 2 * (2 * 48 * 48 + 48 + 2 * (24 * 48 + 24) + 3 * 48 * 100 + 2 * 48) + 48
    found = modelled(Variant(critic=True, reference=True), TINY, Shape(rows=1, prompt=1, completion=1))
    assert found.gradients == 4 * (2 * parameters + 49)
    assert found.optimizer == 2 * found.gradients
    assert found.weights == found.gradients + 4 * parameters
    assert found.total == found.weights + 3 * found.gradients + found.activations


def test_memory_is_counted_once_and_whole() -> None:
    weight = torch.ones(6, requires_grad=True)
    with saved_for_backward() as saved:
        squared = weight.square()  # keeps the weight
        _ = squared[:2].exp() * squared[2:4]  # keeps the exponential, twice, and a view of the squares
    places = costs.storages(saved)
    assert places.pop(weight.untyped_storage().data_ptr()) == 24
    assert sorted(places.values()) == [8, 24]


def test_lines_with_code_on_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "PACKAGE", tmp_path)
    (tmp_path / "some.py").write_text(
        '"""A text.\n\nGoes on."""\n\nimport os  # used\n# a remark\n\n\ndef one() -> str:\n    """Another."""\n'
        '    return os.path.join(\n        "a",\n    )\n\n\nTEXT = """kept\n\nkept"""\n'
    )
    assert lines_of_code("some.py") == 1 + 4 + 3
    assert lines_of_code("some.py:one") == 4


def test_what_the_rate_does_to_an_algorithm() -> None:
    rewards = {"3e-5": [0.5] * 9, "1e-4": [0.6, 0.75, 0.8] + [0.9] * 6, "3e-4": [0.8] * 4 + [0.1] * 5}
    explained = {"critic/vf_explained_var": [[1, 0.25]]}
    runs = [
        made(rewards[rate], setting=f"{algorithm}, lr {rate}", **({} if algorithm == "GRPO" else explained))
        for algorithm in run.ALGORITHMS
        for rate in run.RATES
    ]
    lines = run.over_rates(runs).splitlines()
    assert lines[2] == "| GRPO | 1e-4 | 4 | 50.0 ± 40.0 | 10.0 to 90.0 | – |"
    assert lines[3] == "| PPO, value head | 1e-4 | 4 | 50.0 ± 40.0 | 10.0 to 90.0 | 0.25 ± 0.00 |"
