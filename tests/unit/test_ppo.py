"""What PPO is asked for and refuses, who is trained at which rate, and its critic's loss by hand."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grpo_lightning import PPOModule
from grpo_lightning.errors import UserError
from grpo_lightning.token_means import TokenMeans
from grpo_lightning.types import RolloutBatch
from tests.unit.models.tiny import saved_policy, tiny_model

NAN = math.nan


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved_policy(tmp_path_factory.mktemp("policy"))


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"critic_lr": -1e-5}, "--model.critic_lr -1e-05"),
        ({"value_coef": 0.0}, "--model.value_coef 0.0"),
        ({"value_clip": 0.0}, "--model.value_clip 0.0"),
        ({"gamma": 1.5}, "gamma 1.5"),
        ({"gae_lambda": 2.0}, "--model.gae_lambda"),
        ({"critic": "/nowhere"}, "--model.critic /nowhere: no such folder"),
    ],
)
def test_what_cannot_be_is_one_line(policy: str, options: dict[str, Any], fault: str) -> None:
    with pytest.raises(UserError, match=fault):
        PPOModule(policy, **options)


def test_a_critic_must_read_the_policys_token_ids(policy: str, tmp_path: Path) -> None:
    tiny_model("Llama", vocab_size=50).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"--model.critic .* has 50 tokens and --model.policy .* has 97"):
        PPOModule(policy, critic=str(tmp_path))


def test_its_advantages_are_its_own(policy: str) -> None:
    module = PPOModule(policy, gamma=0.9, gae_lambda=0.5)
    assert (module.estimator.gamma, module.estimator.lam, module.estimator.needs_values) == (0.9, 0.5, True)
    assert not module.drops_zero_advantage


def trained(module: PPOModule) -> list[tuple[str, int, float | None]]:
    """Of each group: the prefix of its figures, its number of weights and its learning rate."""
    module._trainer = SimpleNamespace(  # type: ignore[assignment]
        precision="32-true", strategy=SimpleNamespace(root_device=torch.device("cpu"))
    )
    module.configure_model()
    return [(g.prefix, sum(p.numel() for p in g.module.parameters()), g.lr) for g in module.parameter_groups()]


def test_a_head_on_the_trunk_or_a_critic_of_its_own(policy: str, tmp_path: Path) -> None:
    size = sum(parameter.numel() for parameter in tiny_model("Qwen2").parameters())
    assert trained(PPOModule(policy, critic_lr=0.1)) == [("", size, None), ("critic/", 33, 0.1)]
    # An embedding that is no head as well: what is lost is the head alone.
    tiny_model("Llama", num_hidden_layers=1).save_pretrained(tmp_path)
    other = sum(parameter.numel() for parameter in tiny_model("Llama", num_hidden_layers=1).parameters())
    module = PPOModule(policy, critic=str(tmp_path), dtype="bfloat16")
    assert trained(module) == [("", size, None), ("critic/", other - 97 * 32 + 33, None)]
    assert {parameter.dtype for parameter in module.critic.parameters()} == {torch.float32}


def test_the_critics_loss_and_figures_by_hand(policy: str) -> None:
    """Values 0.5 and 0.1 for returns 1 and 0, where 0.4 and 0.02 were expected before; the last two are not known, or
    count for nothing. With a clip of 0.05 the first is held at 0.45: ½ · 0.55² > ½ · 0.5², and the second at 0.07.
    """
    batch = RolloutBatch(
        input_ids=torch.zeros(2, 3, dtype=torch.long),
        sequence_lengths=torch.tensor([3, 3]),
        prompt_lengths=torch.tensor([1, 1]),
        completion_mask=torch.ones(2, 2),
        loss_weights=torch.tensor([[0.2, 0.3], [0.5, 0.0]]),
        advantages=torch.zeros(2, 1),
        values=torch.tensor([[0.4, 0.02], [9.0, 9.0]]),
        returns=torch.tensor([[1.0, 0.0], [NAN, 7.0]]),
    )
    values, figures = torch.tensor([[0.5, 0.1], [9.0, 9.0]], requires_grad=True), TokenMeans()
    loss = PPOModule(policy, value_clip=0.05).critic_loss(values, batch, figures=figures)
    first, second = 0.5 * 0.55**2, 0.5 * 0.1**2
    assert loss.item() == pytest.approx(0.2 * first + 0.3 * second)
    loss.backward()
    assert values.grad is not None
    assert values.grad.flatten().tolist() == pytest.approx([0.0, 0.3 * 0.1, 0.0, 0.0])
    assert figures.result() == pytest.approx(
        {
            "critic/vf_loss": (first + second) / 2,
            "critic/vf_clipfrac": 0.5,
            "critic/vpred_mean": 0.3,
            "critic/returns/mean": 0.5,
            "critic/vf_explained_var": 1 - 0.31**2 / 0.5**2,  # errors of 0.6 and -0.02 before
        }
    )
