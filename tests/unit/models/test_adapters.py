"""LoRA: what is trained, what the reference is, what the sampler gets, what is written."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model, load_peft_weights
from transformers import AutoModelForCausalLM, PreTrainedModel

from grpo_lightning.engines.skeleton import weight_shapes
from grpo_lightning.errors import UserError
from grpo_lightning.models import LoRA
from grpo_lightning.models.adapters import lora_layers, reference_adapter
from grpo_lightning.models.export import export_adapter, export_policy
from grpo_lightning.models.policy import Policy
from grpo_lightning.models.weights import named_weights
from tests.unit.models.tiny import sequences, tiny_model, tiny_tokenizer

BATCH = sequences((3, 5), (6, 2), (2, 9))
IDS = torch.arange(2, 20)[None]


def _adapted(name: str = "Llama", *, trained: bool = True, with_reference: bool = False, **options) -> Policy:
    """A policy with an adapter, whose random half alone would change nothing (B is zero) unless ``trained``."""
    model = tiny_model(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LoRA(**{"r": 4, "lora_alpha": 6} | options).attach(model, with_reference=with_reference)
    if trained:
        _move(model)
    return Policy(model)


def _move(model: PreTrainedModel, seed: int = 1) -> None:
    """As training would: every trainable number changes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)


def _trainable(policy: Policy) -> set[str]:
    return {name for name, p in policy.named_parameters() if p.requires_grad}


def test_only_the_adapter_is_trained_and_a_new_one_changes_nothing() -> None:
    policy, plain = _adapted(trained=False), Policy(tiny_model())
    assert _trainable(policy) == {n for n, _ in policy.named_parameters() if "lora_" in n}
    assert len(lora_layers(policy.model)) == 2 * 7  # four projections of attention and three of the MLP, two layers
    assert torch.equal(policy(BATCH).logprobs, plain(BATCH).logprobs)


def test_the_update_is_alpha_over_r_times_b_a() -> None:
    policy, plain = _adapted(target_modules=["o_proj"]), tiny_model()
    merged = dict(named_weights(policy))
    layer = policy.model.model.layers[0].self_attn.o_proj
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    assert (a.shape, b.shape) == ((4, 32), (32, 4))
    expected = plain.model.layers[0].self_attn.o_proj.weight + 6 / 4 * b @ a
    torch.testing.assert_close(merged["model.layers.0.self_attn.o_proj.weight"], expected, rtol=0, atol=1e-6)
    assert torch.equal(merged["model.layers.0.self_attn.q_proj.weight"], plain.model.layers[0].self_attn.q_proj.weight)


def test_rslora_divides_by_the_root_of_r() -> None:
    policy, rooted = _adapted(), _adapted(use_rslora=True)
    name, base = "model.layers.0.self_attn.o_proj.weight", tiny_model().model.layers[0].self_attn.o_proj.weight
    plain_delta, rooted_delta = dict(named_weights(policy))[name] - base, dict(named_weights(rooted))[name] - base
    torch.testing.assert_close(rooted_delta, 2 * plain_delta)  # 6 / sqrt(4) against 6 / 4


@pytest.mark.parametrize("name", ["Llama", "Qwen2", "GPT-2", "Gemma3", "Phi"])
def test_the_sampler_gets_merged_weights_under_plain_names(name: str) -> None:
    policy, plain = _adapted(name), tiny_model(name)
    before = {key: tensor.clone() for key, tensor in policy.state_dict().items()}
    sent = dict(named_weights(policy))
    assert {key: tensor.shape for key, tensor in sent.items()} == weight_shapes(plain)
    plain.load_state_dict(sent, strict=False)
    torch.testing.assert_close(plain(IDS).logits, policy.model(IDS).logits, rtol=1e-4, atol=1e-5)
    # Nothing that is trained or frozen was touched.
    assert all(torch.equal(tensor, before[key]) for key, tensor in policy.state_dict().items())


def test_merging_is_done_in_float32_whatever_the_weights_are() -> None:
    model = tiny_model().bfloat16()
    LoRA(r=4).attach(model, with_reference=False)
    _move(model)
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    layer = model.model.layers[0].self_attn.o_proj
    delta = 32 / 4 * layer.lora_B["default"].weight @ layer.lora_A["default"].weight
    merged = dict(named_weights(Policy(model)))["model.layers.0.self_attn.o_proj.weight"]
    assert merged.dtype == torch.float32
    torch.testing.assert_close(merged, layer.base_layer.weight.float() + delta)


def test_the_reference_is_the_policy_without_its_adapter() -> None:
    policy, plain = _adapted(with_reference=True), Policy(tiny_model())
    trainable, before = _trainable(policy), policy(BATCH).logprobs
    with torch.no_grad(), reference_adapter(policy.model):
        assert torch.equal(policy(BATCH).logprobs, plain(BATCH).logprobs)
    assert torch.equal(policy(BATCH).logprobs, before)
    assert not torch.equal(before, plain(BATCH).logprobs)
    assert _trainable(policy) == trainable


def test_the_adapter_comes_back_when_scoring_fails() -> None:
    policy = _adapted()
    trainable, before = _trainable(policy), policy(BATCH).logprobs
    with pytest.raises(RuntimeError, match="broken"), reference_adapter(policy.model):
        raise RuntimeError("broken")
    assert torch.equal(policy(BATCH).logprobs, before)
    assert _trainable(policy) == trainable


def test_gradients_reach_every_part_of_the_adapter_with_and_without_checkpointing() -> None:
    for checkpointing in (False, True):
        policy = _adapted().train()
        if checkpointing:
            policy.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        with torch.no_grad(), reference_adapter(policy.model):
            policy(BATCH)
        policy(BATCH).logprobs.sum().backward()
        gradients = {n: p.grad for n, p in policy.named_parameters() if p.grad is not None}
        assert gradients.keys() == _trainable(policy)
        assert all(gradient.abs().max() > 0 for gradient in gradients.values())


# --- written and read ---------------------------------------------------------------------------------------------


def test_an_exported_adapter_opens_in_peft_and_the_merged_model_in_transformers(tmp_path: Path) -> None:
    policy = _adapted()
    export_adapter(policy, tmp_path / "adapter")
    export_policy(policy, tiny_tokenizer(), tmp_path / "hf", eos_token_ids=(1,))
    expected = policy.model(IDS).logits
    by_peft = PeftModel.from_pretrained(tiny_model(), tmp_path / "adapter")
    torch.testing.assert_close(by_peft(IDS).logits, expected, rtol=1e-4, atol=1e-5)
    merged, report = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    torch.testing.assert_close(merged(IDS).logits, expected, rtol=1e-4, atol=1e-5)


def test_a_run_goes_on_from_an_exported_adapter_and_takes_it_for_its_reference(tmp_path: Path) -> None:
    first = _adapted()
    export_adapter(first, tmp_path)
    second = _adapted(trained=False, with_reference=True, path=str(tmp_path))
    start = second(BATCH).logprobs
    assert torch.equal(start, first(BATCH).logprobs)
    assert {name for name in _trainable(second) if ".reference." in name} == set()
    _move(second.model)
    with torch.no_grad(), reference_adapter(second.model):
        assert torch.equal(second(BATCH).logprobs, start)
    assert not torch.equal(second(BATCH).logprobs, start)
    # What is sent and written is the trained adapter, not the reference.
    plain = tiny_model()
    plain.load_state_dict(dict(named_weights(second)), strict=False)
    torch.testing.assert_close(plain(IDS).logits, second.model(IDS).logits, rtol=1e-4, atol=1e-5)
    export_adapter(second, tmp_path / "again")
    by_peft = PeftModel.from_pretrained(tiny_model(), tmp_path / "again")
    torch.testing.assert_close(by_peft(IDS).logits, second.model(IDS).logits, rtol=1e-4, atol=1e-5)


def test_a_trained_adapter_is_read_in_float32_onto_a_bfloat16_model(tmp_path: Path) -> None:
    export_adapter(_adapted(), tmp_path)
    model = tiny_model().bfloat16()
    LoRA(path=str(tmp_path)).attach(model, with_reference=True)
    policy = Policy(model)
    start = policy(BATCH).logprobs
    with torch.no_grad(), reference_adapter(model):
        assert torch.equal(policy(BATCH).logprobs, start)  # KL 0 at step 0
    own = {name: p for name, p in model.named_parameters() if "lora_" in name}
    assert {p.dtype for p in own.values()} == {torch.float32}
    for name, tensor in load_peft_weights(str(tmp_path), device="cpu").items():
        name = name.removeprefix("base_model.model.").removesuffix(".weight")
        assert torch.equal(own[f"{name}.default.weight"], tensor)
        assert torch.equal(own[f"{name}.reference.weight"], tensor)


def test_what_requires_gradients_is_the_same_inside_the_reference(tmp_path: Path) -> None:
    export_adapter(_adapted(), tmp_path)
    for policy in (_adapted(), _adapted(with_reference=True, path=str(tmp_path))):
        trainable = _trainable(policy)
        with reference_adapter(policy.model):
            assert _trainable(policy) == trainable


def test_an_adapter_made_by_peft_is_read_without_its_dropout(tmp_path: Path) -> None:
    theirs = get_peft_model(tiny_model(), LoraConfig(r=2, target_modules=["q_proj", "down_proj"], lora_dropout=0.5))
    _move(theirs)
    theirs.eval().save_pretrained(tmp_path)
    ours = _adapted(trained=False, path=str(tmp_path)).train()
    torch.testing.assert_close(ours.model(IDS).logits, theirs(IDS).logits, rtol=1e-4, atol=1e-5)


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"), [({"r": 0}, "r 0"), ({"lora_alpha": 0}, "lora_alpha 0"), ({"target_modules": []}, "layer")]
)
def test_numbers_without_meaning(options: dict, named: str) -> None:
    with pytest.raises(UserError, match=f"--model.adapter.*{named}"):
        LoRA(**options)


@pytest.mark.parametrize(("modules", "named"), [(["no_such"], "no_such"), (["lm_head"], "head"), ("lm_head", "head")])
def test_layers_that_cannot_be_adapted(modules: str | list[str], named: str) -> None:
    with pytest.raises(UserError, match=f"--model.adapter.target_modules.*{named}") as error:
        _adapted(target_modules=modules)
    assert "\n" not in str(error.value)


def test_adapters_of_another_kind_or_model_or_none_at_all(tmp_path: Path) -> None:
    kinds: dict[str, dict] = {
        "use_dora": {"use_dora": True},
        "bias": {"bias": "all"},
        "lora_bias": {"lora_bias": True},
        "init_lora_weights": {"init_lora_weights": "pissa"},
        "modules_to_save": {"modules_to_save": ["lm_head"]},
    }
    for name, options in kinds.items():
        model = get_peft_model(tiny_model(), LoraConfig(r=2, target_modules=["q_proj"], **options))
        model.save_pretrained(tmp_path / name)
        with pytest.raises(UserError, match=f"plain LoRA adapters only.* {name}"):
            _adapted(path=str(tmp_path / name))
    with pytest.raises(UserError, match="no adapter can be read there") as error:
        _adapted(path=str(tmp_path / "nothing"))
    assert "\n" not in str(error.value)
    export_adapter(_adapted(), tmp_path / "llama")
    with pytest.raises(UserError, match="does not fit the model") as error:
        _adapted("GPT-2", path=str(tmp_path / "llama"))
    assert "\n" not in str(error.value)


def test_an_adapter_for_a_model_of_another_size_is_refused(tmp_path: Path) -> None:
    export_adapter(_adapted(), tmp_path)
    model = tiny_model(hidden_size=64)
    with pytest.raises(UserError, match="does not fit the model"):
        LoRA(path=str(tmp_path)).attach(copy.deepcopy(model), with_reference=False)
