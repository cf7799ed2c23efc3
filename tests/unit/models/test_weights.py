"""What is sent to the sampler."""

from __future__ import annotations

import torch

from grpo_lightning.engines.skeleton import weight_shapes
from grpo_lightning.models.policy import Policy
from grpo_lightning.models.weights import named_weights
from tests.unit.models.tiny import ARCHITECTURES, tiny_model


def test_names_and_shapes_are_those_that_a_sampler_expects() -> None:
    for name in ARCHITECTURES:
        model = tiny_model(name)
        sent = [(key, tensor.shape) for key, tensor in named_weights(Policy(model))]
        assert sent == list(weight_shapes(model).items()), name


def test_a_tied_head_is_sent_once_and_an_untied_one_too() -> None:
    for name, expected in (("Qwen2", False), ("Llama", True)):
        names = [key for key, _ in named_weights(Policy(tiny_model(name)))]
        assert len(names) == len(set(names))
        assert ("lm_head.weight" in names) == expected
        assert "model.embed_tokens.weight" in names


def test_saved_buffers_go_along() -> None:
    # Some mixture-of-experts routers keep a trained bias in a buffer; the sampler's model has it.
    model = tiny_model()
    model.model.register_buffer("router_bias", torch.tensor([1.0, 2.0]))
    model.model.register_buffer("scratch", torch.zeros(1), persistent=False)
    sent = dict(named_weights(Policy(model)))
    assert sent["model.router_bias"].tolist() == [1.0, 2.0]
    assert "model.scratch" not in sent


def test_values_are_current_and_carry_no_gradient() -> None:
    policy = Policy(tiny_model())
    with torch.no_grad():
        policy.model.lm_head.weight.fill_(0.5)
    sent = dict(named_weights(policy))
    assert sent["lm_head.weight"].unique().tolist() == [0.5]
    assert not any(tensor.requires_grad for tensor in sent.values())


def test_gradient_checkpointing_does_not_change_the_names() -> None:
    plain, checkpointed = tiny_model(), tiny_model()
    checkpointed.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    assert dict(named_weights(Policy(plain))).keys() == dict(named_weights(Policy(checkpointed))).keys()
