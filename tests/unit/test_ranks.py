"""A rank alone, and what NCCL must be given; several ranks are tested with processes."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from grpo_lightning import ranks


def test_alone_everything_is_its_own_total() -> None:
    values = torch.tensor([[1.0, 2.0]])
    assert (ranks.world_size(), ranks.rank()) == (1, 0)
    for function in (ranks.all_sum, ranks.all_max, ranks.gather_rows):
        assert torch.equal(function(values), values)
    assert ranks.gather_objects(["a", 1]) == ["a", 1]
    assert ranks.all_agree("anything")


@pytest.mark.parametrize(("backend", "moved"), [("nccl", 2), ("gloo", 0)])
def test_only_nccl_gets_tensors_on_the_gpu(backend: str, moved: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Figures are made on the CPU, which NCCL (Lightning's choice on GPUs) refuses.
    calls = []

    def cuda(tensor: torch.Tensor) -> torch.Tensor:
        calls.append(tensor.shape)
        return tensor

    def all_gather(parts: list[torch.Tensor], sent: torch.Tensor) -> None:
        for part in parts:
            part.copy_(sent)

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "get_backend", lambda: backend)
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, op: tensor.mul_(2))
    monkeypatch.setattr(dist, "all_gather", all_gather)
    monkeypatch.setattr(torch.Tensor, "cuda", cuda)
    values = torch.tensor([[1.0], [3.0]])
    assert ranks.all_sum(values).tolist() == [[2.0], [6.0]]
    assert values.tolist() == [[1.0], [3.0]]  # the input is left alone
    assert ranks.gather_rows(values).tolist() == [[1.0], [3.0], [1.0], [3.0]]
    assert len(calls) == moved
