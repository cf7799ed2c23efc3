"""The reference's way to the policy, on small layers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from grpo_lightning.callbacks import ReferenceSync
from grpo_lightning.errors import UserError


def policy(value: float, width: int = 2, **heads: nn.Module) -> nn.ModuleDict:
    """A layer that is all ``value``, as ``.model``."""
    with torch.no_grad():
        made = nn.Linear(width, 1)
        for parameter in made.parameters():
            parameter.fill_(value)
    return nn.ModuleDict({"model": made, **heads})


def module(reference: nn.Module | None = None, **attributes: Any) -> Any:
    given = {
        "policy": policy(1.0, value_head=nn.Linear(3, 1)),  # a critic's, which the reference has none of
        "reference": reference or policy(0.0).requires_grad_(False), "adapter": None,
        "needs_reference": True, "reference_moves": False, "reference_path": "old", "policy_path": "new",
    }  # fmt: skip
    return SimpleNamespace(**(given | attributes))


def after(callback: ReferenceSync, pl_module: Any, *ends: int, begin: int = 0) -> list[float]:
    """The reference's weights after rollouts that end at these optimizer steps."""
    found = []
    for end in ends:
        callback.on_train_batch_start(SimpleNamespace(global_step=begin))  # type: ignore[arg-type]
        callback.on_train_batch_end(SimpleNamespace(global_step=end), pl_module)  # type: ignore[arg-type]
        (value,) = {float(x) for p in pl_module.reference.parameters() for x in p.flatten()}
        found.append(value)
        begin = end
    return found


def test_the_reference_goes_a_share_of_the_way_every_n_steps() -> None:
    pl_module = module()
    callback = ReferenceSync(alpha=0.6, every_n_steps=4)
    # A multiple of 4 is reached at 4, passed on the way to 9, twice on the way to 16.
    assert after(callback, pl_module, 2, 4, 6, 9, 10, 16) == pytest.approx([0, 0.6, 0.6, 0.84, 0.84, 0.936])
    assert all(not p.requires_grad for p in pl_module.reference.parameters())
    assert {float(x) for p in pl_module.policy.model.parameters() for x in p.detach().flatten()} == {1.0}
    assert after(ReferenceSync(alpha=1.0, every_n_steps=1), pl_module, 1) == [1.0]
    # A run that goes on at step 6 has its next sync where the whole run had it.
    assert after(ReferenceSync(alpha=0.5, every_n_steps=4), module(), 7, 8, begin=6) == [0.0, 0.5]


def test_only_a_fit_has_its_checkpoints_changed() -> None:
    pl_module = module()
    ReferenceSync().setup(None, pl_module, "validate")  # type: ignore[arg-type]
    assert not pl_module.reference_moves
    ReferenceSync().setup(None, pl_module, "fit")  # type: ignore[arg-type]
    ReferenceSync().on_fit_start(None, pl_module)  # type: ignore[arg-type]
    assert pl_module.reference_moves


def test_a_reference_that_cannot_move_is_refused() -> None:
    with pytest.raises(UserError, match=r"^--model\.adapter: ReferenceSync"):
        ReferenceSync().setup(None, module(adapter=object()), "fit")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"ReferenceSync: no reference is loaded.*--model\.objective\.beta"):
        ReferenceSync().setup(None, module(needs_reference=False), "fit")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^--model\.reference old: .* size of --model\.policy new"):
        ReferenceSync().on_fit_start(None, module(policy(0.0, width=3)))  # type: ignore[arg-type]
    for wrong in ({"alpha": 0.0}, {"alpha": 1.1}, {"every_n_steps": 0}):
        with pytest.raises(UserError, match=rf"ReferenceSync\.{next(iter(wrong))} {next(iter(wrong.values()))}"):
            ReferenceSync(**wrong)  # type: ignore[arg-type]
