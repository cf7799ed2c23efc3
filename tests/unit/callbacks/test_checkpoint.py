from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_lightning.callbacks.checkpoint import CheckpointHeader, read_header

CONTENT: dict[str, Any] = {
    "state_dict": {"weight": torch.ones(2)},
    "global_step": 7,
    "lr_schedulers": [],
    "callbacks": {"Named": {"value": 1}},
}


def test_what_a_file_says_of_itself(tmp_path: Path) -> None:
    torch.save(CONTENT, tmp_path / "whole.ckpt")
    whole = CheckpointHeader(step=7, resumable=True, callbacks={"Named": {"value": 1}})
    assert read_header(tmp_path / "whole.ckpt") == whole
    torch.save({"state_dict": {}, "global_step": 7}, tmp_path / "weights.ckpt")
    assert read_header(tmp_path / "weights.ckpt") == CheckpointHeader(step=7, resumable=False, callbacks={})


def test_a_folder_of_shards_is_complete_with_its_metadata(tmp_path: Path) -> None:
    (tmp_path / "__0_0.distcp").write_bytes(b"shard")
    assert read_header(tmp_path) is None
    torch.save({name: value for name, value in CONTENT.items() if name != "state_dict"}, tmp_path / "meta.pt")
    assert read_header(tmp_path) is None  # as where a kill came while the folder was removed
    (tmp_path / ".metadata").write_bytes(b"torch's own")
    header = read_header(tmp_path)
    assert header is not None
    assert (header.step, header.resumable) == (7, True)


@pytest.mark.parametrize("fault", ["cut", "text", "empty", "another's", "code"])
def test_what_is_no_complete_checkpoint(tmp_path: Path, fault: str) -> None:
    file = tmp_path / "x.ckpt"
    torch.save(CONTENT if fault == "cut" else {"weight": torch.ones(1)}, file)
    if fault == "cut":
        file.write_bytes(file.read_bytes()[:-1])
    elif fault == "text":
        file.write_text("no checkpoint")
    elif fault == "empty":
        file.write_bytes(b"")
    elif fault == "code":
        torch.save(CONTENT | {"path": tmp_path}, file)  # a class, which a safe reading does not make
        assert read_header(file, weights_only=False) is not None
    assert read_header(file) is None
