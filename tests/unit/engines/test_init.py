from __future__ import annotations

import logging
import subprocess
import sys

from grpo_lightning import engines
from grpo_lightning.engines.transformers import TransformersEngine
from grpo_lightning.engines.vllm import VLLMEngine


def test_default_engine_is_vllm_where_it_runs(monkeypatch):
    monkeypatch.setattr(VLLMEngine, "check", lambda self: None)
    assert type(engines.default_engine()) is VLLMEngine


def test_without_vllm_transformers_samples_and_one_line_says_so(monkeypatch, caplog):
    from importlib.metadata import PackageNotFoundError

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    with caplog.at_level(logging.INFO):
        assert type(engines.default_engine()) is TransformersEngine
    assert len(caplog.records) == 1
    assert "Sampling with transformers" in caplog.text
    assert "pip install" in caplog.text


def test_engines_are_named_here_and_checked_without_importing_vllm():
    assert engines.TransformersEngine is TransformersEngine
    assert engines.VLLMEngine is VLLMEngine
    code = "import sys, grpo_lightning.engines as e; e.default_engine(); assert 'vllm' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
