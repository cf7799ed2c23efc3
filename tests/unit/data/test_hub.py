from __future__ import annotations

from pathlib import Path

import pytest

from grpo_lightning.data.hub import HubDataset
from grpo_lightning.errors import UserError


def test_a_folder_is_opened_by_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "Mine"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"q": "Q", "gold": 4, "more": "m"}\n{"q": "R", "gold": 5, "more": "n"}\n')
    source = HubDataset(str(folder), split="train", question_column="q", answer_column="gold", limit=1)
    assert source.rows() == [{"q": "Q", "gold": 4, "more": "m", "question": "Q", "answer": "4"}]
    assert source.name == "mine"


def test_what_cannot_be_loaded_is_named_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--data.source.dataset .*nothing .*cannot be loaded") as caught:
        HubDataset(str(tmp_path / "nothing")).rows()
    assert "\n" not in str(caught.value)
