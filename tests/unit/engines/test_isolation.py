from __future__ import annotations

import contextlib
import os
import random
from datetime import timedelta

import numpy
import torch

from grpo_lightning.engines.isolation import preserved_environment, preserved_process_group, preserved_randomness


def draws() -> tuple[float, float, float]:
    return random.random(), float(numpy.random.rand()), float(torch.rand(()))


def test_generators_are_put_back_even_after_an_error():
    random.seed(1), numpy.random.seed(1), torch.manual_seed(1)
    expected = draws()
    random.seed(1), numpy.random.seed(1), torch.manual_seed(1)
    with contextlib.suppress(RuntimeError), preserved_randomness():
        random.seed(9), numpy.random.seed(9), torch.manual_seed(9)
        draws()
        raise RuntimeError
    assert draws() == expected


def test_environment_is_put_back_but_for_the_kept_names(monkeypatch):
    monkeypatch.setenv("CHANGED", "old")
    monkeypatch.setenv("REMOVED", "old")
    monkeypatch.delenv("KEEP_ME", raising=False)
    with preserved_environment(keep="KEEP_"):
        os.environ.update(CHANGED="new", ADDED="new", KEEP_ME="new")
        del os.environ["REMOVED"]
    assert (os.environ["CHANGED"], os.environ["REMOVED"], os.environ["KEEP_ME"]) == ("old", "old", "new")
    assert "ADDED" not in os.environ
    del os.environ["KEEP_ME"]


def test_process_group_outlives_its_destruction(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=timedelta(seconds=20))
    try:
        with preserved_process_group():
            subgroup = torch.distributed.new_group([0])
            torch.distributed.destroy_process_group(subgroup)
            torch.distributed.destroy_process_group()
        assert torch.distributed.is_initialized()
    finally:
        torch.distributed.destroy_process_group()
    assert not torch.distributed.is_initialized()
