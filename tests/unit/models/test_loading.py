"""Models and tokenizers from folders: what is set, and what a wrong folder says."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import GenerationConfig, GPT2Config

from grpo_lightning.errors import UserError
from grpo_lightning.models.loading import (
    context_length,
    eos_token_ids,
    load_config,
    load_policy,
    load_tokenizer,
    warn_of_bfloat16_weights,
)
from grpo_lightning.models.policy import Policy
from tests.unit.models.tiny import COMMON, sequences, tiny_model, tiny_tokenizer

FLAG = "--model.policy"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete model folder."""
    folder = tmp_path_factory.mktemp("model")
    tiny_model("Llama").save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(source: Path, tmp_path: Path) -> Path:
    """A copy that a test may break."""
    return Path(shutil.copytree(source, tmp_path / "model"))


def _load(folder: Path | str, **options) -> Policy:
    defaults = {"dtype": "float32", "attn_implementation": "sdpa"}
    return load_policy(str(folder), config=load_config(str(folder), flag=FLAG), flag=FLAG, **defaults | options)


def _message(error: pytest.ExceptionInfo) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert text.startswith(FLAG)
    return text


# --- what is loaded -----------------------------------------------------------------------------------------------


def test_weights_are_those_of_the_folder(source: Path) -> None:
    batch = sequences((3, 4), (5, 2))
    assert torch.equal(_load(source)(batch).logprobs, Policy(tiny_model("Llama"))(batch).logprobs)


def test_every_dropout_is_off(tmp_path: Path) -> None:
    tiny_model("GPT-2").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    policy, batch = _load(tmp_path).train(), sequences((3, 4), (5, 2))
    assert torch.equal(policy(batch).logprobs, policy(batch).logprobs)
    rates = [module.p for module in policy.modules() if isinstance(module, torch.nn.Dropout)]
    assert rates
    assert set(rates) == {0.0}


def test_dropout_of_whole_layers_is_off_too(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "opt", "dropout": 0.1, "layerdrop": 0.3}))
    config = load_config(str(tmp_path), flag=FLAG)
    assert (config.dropout, config.layerdrop) == (0.0, 0.0)


def test_the_noise_of_a_mixtures_router_is_off_too(tmp_path: Path) -> None:
    config = transformers.MixtralConfig(**COMMON, num_local_experts=4, router_jitter_noise=0.2)
    model = transformers.MixtralForCausalLM(config)
    model.save_pretrained(tmp_path)
    batch = sequences((3, 4), (5, 2))
    assert not torch.equal(Policy(model.train())(batch).logprobs, Policy(model)(batch).logprobs)
    policy = _load(tmp_path)
    expected = policy(batch).logprobs
    assert torch.equal(policy.train()(batch).logprobs, expected)


def test_what_a_sampling_model_mixes_its_experts_by_is_left_alone(tmp_path: Path) -> None:
    noise = {"router_jitter_noise": 0.01, "input_jitter_noise": 0.1}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "phimoe", **noise}))
    config = load_config(str(tmp_path), flag=FLAG)
    assert (config.router_jitter_noise, config.input_jitter_noise) == (0.01, 0.0)


def test_weights_are_float32_unless_bfloat16_is_asked_for(source: Path) -> None:
    assert next(_load(source).parameters()).dtype == torch.float32
    assert next(_load(source, dtype="bfloat16").parameters()).dtype == torch.bfloat16


def test_bfloat16_weights_come_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="grpo_lightning"):
        warn_of_bfloat16_weights("--model.dtype bfloat16")
    assert "almost no weight" in caplog.text
    assert "--model.dtype float32" in caplog.text


def test_gradient_checkpointing_is_off_unless_asked_for(source: Path) -> None:
    assert not _load(source).model.is_gradient_checkpointing
    assert _load(source, gradient_checkpointing=True).model.is_gradient_checkpointing


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/no/such/folder", "./nor/this", "~/nor-this-one"])
def test_a_missing_folder_is_named(path: str) -> None:
    for load in (load_config, load_tokenizer):
        with pytest.raises(UserError, match="no such folder") as error:
            load(path, flag=FLAG)
        assert path in _message(error)


def test_what_the_quickstart_makes_is_told() -> None:
    with pytest.raises(UserError, match=r"no such folder; .*; `make quickstart` makes it$"):
        load_config("runs/no/quickstart/base/hf", flag=FLAG)


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(UserError, match="no such folder"):
        load_config(str(tmp_path / "model.bin"), flag=FLAG)


def test_an_empty_folder_is_no_model(tmp_path: Path) -> None:
    for load in (load_config, load_tokenizer):
        with pytest.raises(UserError, match="cannot be loaded") as error:
            load(str(tmp_path), flag=FLAG)
        assert str(tmp_path) in _message(error)


@pytest.mark.parametrize("text", ["not json", '{"model_type": "no_such_architecture"}', "{}"])
def test_a_broken_config_is_named(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(UserError) as error:
        load_config(str(folder), flag=FLAG)
    _message(error)


def test_missing_weights_are_refused_instead_of_made_up(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"lack 1 tensors \(model\.layers\.1\.mlp\.up_proj\.weight\)") as error:
        _load(folder)
    _message(error)


def test_a_cut_weight_file_is_refused(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match="cannot be loaded") as error:
        _load(folder)
    _message(error)


def test_weights_of_another_shape_are_refused(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"] = torch.zeros(3, 32)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="cannot be loaded") as error:
        _load(folder)
    _message(error)


def test_no_weights_at_all_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match="cannot be loaded") as error:
        _load(folder)
    _message(error)


def test_an_attention_that_does_not_exist_is_refused(source: Path) -> None:
    with pytest.raises(UserError, match="attn_implementation") as error:
        _load(source, attn_implementation="fast")
    _message(error)


def test_an_attention_that_drops_the_models_cap_is_refused(tmp_path: Path) -> None:
    # Gemma 2 caps its attention logits, which sdpa cannot do: it would score as another model.
    model = tiny_model("Gemma2", attn_logit_softcapping=0.5, attn_implementation="eager")
    model.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"attn_implementation sdpa.*use eager"):
        _load(tmp_path)
    batch = sequences((3, 4), (5, 2))
    eager = _load(tmp_path, attn_implementation="eager")
    assert torch.equal(eager(batch).logprobs, Policy(model)(batch).logprobs)
    tiny_model("Gemma3").save_pretrained(tmp_path)  # has the field, but no cap
    _load(tmp_path)


def test_an_attention_whose_package_is_missing_is_refused(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def needs_flash(*_, **__):
        raise ImportError("the package flash_attn is not installed.\nmore lines")

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", needs_flash)
    with pytest.raises(UserError, match="flash_attn is not installed") as error:
        _load(source)
    _message(error)


# --- tokenizer, end tokens, context -------------------------------------------------------------------------------


def test_a_tokenizer_without_padding_pads_with_its_end_token(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(str(tmp_path), flag=FLAG)
    assert loaded.pad_token_id == loaded.eos_token_id == 1


def test_a_tokenizer_without_an_end_token_is_refused(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="no end-of-sequence token") as error:
        load_tokenizer(str(tmp_path), flag=FLAG)
    _message(error)


@pytest.mark.parametrize(
    ("listed", "expected"), [(None, (1,)), (5, (1, 5)), ([7, 5], (1, 5, 7)), ([1, 5], (1, 5)), ([], (1,))]
)
def test_every_end_token_of_the_generation_config_counts(
    folder: Path, listed: int | list[int] | None, expected: tuple[int, ...]
) -> None:
    GenerationConfig(eos_token_id=listed).save_pretrained(folder)
    assert eos_token_ids(str(folder), tiny_tokenizer()) == expected


def test_without_a_generation_config_the_tokenizers_end_token_counts(folder: Path) -> None:
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "config.json").unlink()
    assert eos_token_ids(str(folder), tiny_tokenizer()) == (1,)


def test_context_length_by_either_name() -> None:
    assert context_length(tiny_model("Llama").config) == 64
    assert context_length(GPT2Config(n_positions=77)) == 77
