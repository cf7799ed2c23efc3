from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from grpo_lightning.engines.base import ModelSpec
from grpo_lightning.engines.skeleton import WeightsMismatchError, checked, empty_model, tied_aliases, weight_shapes
from grpo_lightning.errors import UserError

SHAPES = {"a": torch.Size([2]), "b": torch.Size([3])}


def spec(folder, **options) -> ModelSpec:
    return ModelSpec(name_or_path=str(folder), eos_token_ids=(1,), pad_token_id=0, max_length=32, **options)


@pytest.fixture
def config_only(tmp_path):
    """A folder with nothing in it but the configuration of a tied two-layer model."""
    config = {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "vocab_size": 19,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_skeleton_has_no_weights_but_its_buffers(config_only):
    state = torch.get_rng_state()
    model = empty_model(spec(config_only, dtype=torch.bfloat16))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.is_meta and p.dtype == torch.bfloat16 and not p.requires_grad for p in model.parameters())
    assert not any(b.is_meta for b in model.buffers())
    assert not any(module.training for module in model.modules())


def test_names_are_those_of_a_real_model_with_the_tied_head_once(config_only):
    from transformers import AutoConfig, AutoModelForCausalLM

    real = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(config_only))
    shapes = weight_shapes(empty_model(spec(config_only)))
    assert shapes == {name: p.shape for name, p in real.named_parameters()}
    assert list(shapes) == list(weight_shapes(real))
    assert tied_aliases(real) == {"lm_head.weight": "model.embed_tokens.weight"}
    assert shapes["model.embed_tokens.weight"] == (19, 16)
    assert "lm_head.weight" not in shapes


def test_saved_buffers_belong_to_the_weights():
    layer = nn.Linear(2, 2)
    layer.register_buffer("kept", torch.zeros(3))
    layer.register_buffer("derived", torch.zeros(4), persistent=False)
    assert list(weight_shapes(layer)) == ["weight", "bias", "kept"]


def test_no_such_model_is_one_line(tmp_path):
    with pytest.raises(UserError, match="cannot build the model") as caught:
        empty_model(spec(tmp_path / "nothing"))
    assert "\n" not in str(caught.value)


def test_right_tensors_pass_in_any_order():
    sent = [("b", torch.zeros(3)), ("a", torch.zeros(2))]
    assert [name for name, _ in checked(iter(sent), SHAPES)] == ["b", "a"]


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ({"a": 2}, "1 of 2 tensors were not sent: b"),
        ({"a": 2, "b": 3, "c": 1}, "'c' is unknown"),
        ({"a": 2, "b": 4}, r"'b' has shape \(4,\), .* wants \(3,\)"),
    ],
)
def test_wrong_tensors_are_an_error(sent, message):
    with pytest.raises(WeightsMismatchError, match=message):
        list(checked(((name, torch.zeros(size)) for name, size in sent.items()), SHAPES))


def test_a_tensor_sent_twice_is_an_error():
    with pytest.raises(WeightsMismatchError, match="'a' was sent twice"):
        list(checked([("a", torch.zeros(2)), ("a", torch.zeros(2))], SHAPES))
