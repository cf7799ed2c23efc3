"""The published objectives in ``configs/objective``: each value, written down once more by hand, and each argument."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest
import yaml

CONFIGS = Path(__file__).resolve().parents[3] / "configs" / "objective"

NO_KL = {"beta": 0.0, "kl_estimator": "k3", "kl_ratio": True, "kl_in": "loss"}
PLAIN_K3 = {"kl_estimator": "k3", "kl_ratio": False, "kl_in": "loss"}
K1_IN_REWARD = {"kl_estimator": "k1", "kl_ratio": False, "kl_in": "reward"}


def clip(low: float, high: float, **more: Any) -> dict[str, Any]:
    return {"epsilon": low, "epsilon_high": high, "delta": None, **more}


PUBLISHED: dict[str, tuple[str, dict[str, Any], str | None, str]] = {
    "grpo": ("ClippedObjective", clip(0.2, 0.2, beta=0.04, **PLAIN_K3), "group_normalized", "sequence_mean"),
    "r1": ("ClippedObjective", clip(10.0, 10.0, beta=0.001, **PLAIN_K3), "group_normalized", "sequence_mean"),
    "dr_grpo": ("ClippedObjective", clip(0.2, 0.2, **NO_KL), "group_centered", "constant_length"),
    "dapo": ("ClippedObjective", clip(0.2, 0.28, **NO_KL), "group_normalized", "token_mean"),
    "gspo": ("GSPO", clip(3e-4, 4e-4, token_gradient=False, **NO_KL), "group_normalized", "sequence_mean"),
    "luspo": ("LUSPO", clip(3e-4, 4e-4, token_gradient=False, **NO_KL), "group_normalized", "sequence_sum"),
    "cispo": ("CISPO", {"epsilon": None, "epsilon_high": 4.0, **NO_KL}, "group_normalized", "token_mean"),
    "sapo": ("SAPO", {"temperature_pos": 1.0, "temperature_neg": 1.05, **NO_KL}, "group_normalized", "sequence_mean"),
    "gmpo": ("GMPO", {"epsilon": 0.4, "epsilon_high": 0.4, **NO_KL}, "group_normalized", "sequence_mean"),
    "vespo": (
        "VESPO",
        {"k_pos": 2.0, "lambda_pos": 3.0, "k_neg": 3.0, "lambda_neg": 2.0, **NO_KL},
        "group_normalized",
        "token_mean",
    ),
    "rloo": ("RLOO", clip(0.2, 0.2, beta=0.05, **K1_IN_REWARD), "leave_one_out", "sequence_mean"),
    "reinforce_pp": (
        "ClippedObjective",
        clip(0.2, 0.2, beta=0.01, **K1_IN_REWARD),
        "ReinforcePlusPlus",
        "token_mean",
    ),
    "ppo": ("ClippedObjective", clip(0.2, 0.2, beta=0.0, **K1_IN_REWARD | {"kl_in": "loss"}), None, "token_mean"),
}
CRITIC = {"critic_lr": 1e-5, "value_coef": 0.5, "value_clip": 0.2, "gamma": 1.0, "gae_lambda": 1.0}


def overlay(name: str) -> dict[str, Any]:
    return yaml.safe_load((CONFIGS / f"{name}.yaml").read_text("utf-8"))


def by_path(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def arguments(cls: type) -> set[str]:
    """Of the class and of those that it hands its keywords on to."""
    own = [inspect.signature(c.__init__).parameters.values() for c in cls.__mro__ if "__init__" in vars(c)]
    return {p.name for parameters in own for p in parameters if p.kind is p.KEYWORD_ONLY}


def test_all_overlays_are_in_the_table() -> None:
    assert {file.stem for file in CONFIGS.glob("*.yaml")} == PUBLISHED.keys()


@pytest.mark.parametrize("name", PUBLISHED)
def test_an_overlay_has_the_published_values(name: str) -> None:
    objective, settings, estimator, reduction = PUBLISHED[name]
    found = overlay(name)
    assert found["model"]["init_args"]["objective"] == {
        "class_path": f"grpo_lightning.objectives.{objective}",
        "init_args": settings,
    }
    rollout = found["rollout"]
    chosen = rollout["advantages"]
    if isinstance(chosen, dict):
        assert chosen["init_args"] == {"gamma": 1.0, "eps": 1e-4}
        chosen = chosen["class_path"]
    assert chosen == (estimator and f"grpo_lightning.advantages.{estimator}")
    if name == "ppo":
        assert CRITIC.items() <= found["model"]["init_args"].items()
    assert rollout["reduction"] == f"grpo_lightning.functional.reduction.{reduction}"
    assert (rollout["dynamic_sampling_tries"], rollout["mask_truncated"]) == (
        (3, True) if name == "dapo" else (1, False)
    )


@pytest.mark.parametrize("name", PUBLISHED)
def test_an_overlay_leaves_no_argument_to_the_config_below_it(name: str) -> None:
    """jsonargparse carries arguments over from one class to the next where both have them."""
    chosen = overlay(name)["model"]["init_args"]["objective"]
    assert chosen["init_args"].keys() == arguments(by_path(chosen["class_path"]))
    by_path(chosen["class_path"])(**chosen["init_args"])
    estimator = overlay(name)["rollout"]["advantages"]
    if isinstance(estimator, dict):
        assert estimator["init_args"].keys() == arguments(by_path(estimator["class_path"]))
        by_path(estimator["class_path"])(**estimator["init_args"])
    elif estimator is not None:
        assert callable(by_path(estimator))
    assert callable(by_path(overlay(name)["rollout"]["reduction"]))
