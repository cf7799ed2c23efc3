"""Every shipped YAML parses and builds its objects, alone and with each overlay."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_lightning.cli import GRPOCommandLine
from grpo_lightning.data.tiny_model import build_tiny_model

pytestmark = pytest.mark.integration

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
RUNS = sorted(CONFIGS.glob("*.yaml"))
OBJECTIVES = sorted((CONFIGS / "objective").glob("*.yaml"))
ENGINES = sorted((CONFIGS / "engine").glob("*.yaml"))


class Built(GRPOCommandLine):
    """Builds trainer, module, data and callbacks, and runs nothing."""

    def _run_subcommand(self, subcommand: str) -> None:
        self.built = subcommand


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build_tiny_model(str(tmp_path_factory.mktemp("tiny")), hidden=32, layers=1))


def build(policy: str, root: Path, *configs: Path) -> Built:
    words = ["fit", *(word for config in configs for word in ("--config", str(config)))]
    options = ("--model.policy", policy, "--trainer.default_root_dir", str(root), "--trainer.precision", "32-true")
    return Built([*words, *options])


@pytest.mark.parametrize("config", RUNS, ids=lambda path: path.stem)
def test_a_shipped_config_builds(config: Path, policy: str, tmp_path: Path) -> None:
    cli = build(policy, tmp_path, config)
    assert cli.built == "fit"
    assert cli.model.policy_path == policy
    assert cli.trainer.default_root_dir == str(tmp_path)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda path: path.stem)
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda path: path.stem)
def test_overlays_compose(objective: Path, engine: Path, policy: str, tmp_path: Path) -> None:
    cli = build(policy, tmp_path, CONFIGS / "gsm8k.yaml", objective, engine)
    rollout = cli.config_init["fit"]["rollout"]
    expected = {
        "grpo": (0.2, 0.04, False, "group_normalized", "sequence_mean"),
        "dapo": (0.28, 0.0, True, "group_normalized", "token_mean"),
        "dr_grpo": (0.2, 0.0, True, "group_centered", "constant_length"),
    }[objective.stem]
    found = cli.model.objective
    names = (rollout.advantages.__name__, rollout.reduction.__name__)
    assert (found.epsilon_high, found.beta, found.kl_ratio, *names) == expected
    assert type(rollout.engine).__name__.lower() == f"{engine.stem}engine"
    assert cli.model.lr == 1e-6  # not lost to the overlay
