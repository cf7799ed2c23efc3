"""The exported folder opens in transformers and is the trained policy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from grpo_lightning.models.export import export_policy
from grpo_lightning.models.policy import Policy
from tests.unit.models.tiny import tiny_model, tiny_tokenizer

IDS = torch.arange(2, 20)[None]


def _names(folder: Path) -> list[str]:
    with safe_open(folder / "model.safetensors", "pt") as file:
        return sorted(file.keys())


@pytest.mark.parametrize("name", ["Qwen2", "Llama", "GPT-2", "Gemma3"])
def test_comes_back_with_every_key_and_the_same_logits(name: str, tmp_path: Path) -> None:
    model = tiny_model(name)
    export_policy(Policy(model), tiny_tokenizer(), tmp_path / "hf", eos_token_ids=(1,), card="# Card")
    loaded, report = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    torch.testing.assert_close(loaded(IDS).logits, model(IDS).logits, rtol=0, atol=1e-6)
    assert (tmp_path / "hf" / "README.md").read_text() == "# Card"


def test_a_tied_head_is_stored_once(tmp_path: Path) -> None:
    export_policy(Policy(tiny_model("Qwen2")), tiny_tokenizer(), tmp_path / "hf", eos_token_ids=(1,))
    names = _names(tmp_path / "hf")
    assert "lm_head.weight" not in names
    assert "model.embed_tokens.weight" in names


def test_another_dtype_can_be_asked_for(tmp_path: Path) -> None:
    model = tiny_model()
    export_policy(Policy(model), tiny_tokenizer(), tmp_path / "hf", eos_token_ids=(1,), dtype=torch.bfloat16)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    assert loaded.dtype == torch.bfloat16
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight.bfloat16())
    assert model.lm_head.weight.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keeps_the_dtype_of_the_weights(dtype: torch.dtype, tmp_path: Path) -> None:
    export_policy(Policy(tiny_model().to(dtype)), tiny_tokenizer(), tmp_path / "hf", eos_token_ids=(1,))
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "hf").dtype == dtype


def test_tokenizer_chat_template_and_end_tokens_come_along_and_sampling_does_not(tmp_path: Path) -> None:
    model, tokenizer = tiny_model(), tiny_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    # Published models come with such a mixture, which transformers refuses to save.
    model.generation_config = own = GenerationConfig(temperature=0.6, do_sample=False, top_p=0.9)
    export_policy(Policy(model), tokenizer, tmp_path / "hf", eos_token_ids=(1, 5))
    saved = json.loads((tmp_path / "hf" / "generation_config.json").read_text())
    assert (saved["eos_token_id"], saved["pad_token_id"]) == ([1, 5], 0)
    assert not {"temperature", "top_p", "top_k", "do_sample"} & saved.keys()
    assert model.generation_config is own
    again = AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert again.chat_template == tokenizer.chat_template
    assert again("<think>7</think>").input_ids == tokenizer("<think>7</think>").input_ids


def test_an_older_export_is_replaced_as_a_whole(tmp_path: Path) -> None:
    folder = tmp_path / "hf"
    export_policy(Policy(tiny_model("GPT-2")), tiny_tokenizer(), folder, eos_token_ids=(1,))
    (folder / "stale.bin").write_bytes(b"x")
    export_policy(Policy(tiny_model("Llama")), tiny_tokenizer(), folder, eos_token_ids=(1,))
    assert AutoModelForCausalLM.from_pretrained(folder).config.model_type == "llama"
    assert not (folder / "stale.bin").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_an_export_that_breaks_off_leaves_the_older_one_usable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, model = tmp_path / "hf", tiny_model()
    export_policy(Policy(model), tiny_tokenizer(), folder, eos_token_ids=(1,))
    broken = tiny_tokenizer()

    def disk_full(*_, **__) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(broken, "save_pretrained", disk_full)
    with pytest.raises(OSError, match="No space"):
        export_policy(Policy(tiny_model(seed=9)), broken, folder, eos_token_ids=(1,))
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    torch.testing.assert_close(loaded(IDS).logits, model(IDS).logits)
    export_policy(Policy(tiny_model(seed=9)), tiny_tokenizer(), folder, eos_token_ids=(1,))  # and the next one succeeds
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_at_no_moment_is_there_no_complete_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop at every rename and deletion in turn; a complete folder must be left under one of the three names."""
    folder, tokenizer = tmp_path / "hf", tiny_tokenizer()
    export_policy(Policy(tiny_model()), tokenizer, folder, eos_token_ids=(1,))
    rename = Path.rename
    for stop in (1, 2):
        calls = []

        def stopping(path: Path, target: Path, calls: list = calls, stop: int = stop) -> Path:
            calls.append(path)
            if len(calls) == stop:
                raise KeyboardInterrupt
            return rename(path, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", stopping)
            with pytest.raises(KeyboardInterrupt):
                export_policy(Policy(tiny_model()), tokenizer, folder, eos_token_ids=(1,))
        complete = [path for path in tmp_path.iterdir() if (path / "README.md").exists()]
        assert complete
        AutoModelForCausalLM.from_pretrained(complete[0])
    export_policy(Policy(tiny_model()), tokenizer, folder, eos_token_ids=(1,))
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]
