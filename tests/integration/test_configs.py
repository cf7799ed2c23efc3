"""Every shipped YAML parses and builds its objects; every overlay changes what it names, and nothing else, in each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.stand_ins import (
    CONFIGS,
    QUESTIONS,
    Built,
    Parsed,
    all_packages,
    build_chat_model,
    flat,
    words,
    write_rows,
)

pytestmark = pytest.mark.integration

RUNS = sorted(CONFIGS.glob("*.yaml"))
OVERLAYS = {kind: sorted((CONFIGS / kind).glob("*.yaml")) for kind in ("strategy", "engine", "objective", "adapter")}
DATA = {"GSM8K": "gsm8k", "CompetitionMath": "math", "JsonLines": "choice"}


@pytest.fixture(scope="module", autouse=True)
def _packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with all_packages(tmp_path_factory.mktemp("packages")):
        yield


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_chat_model(tmp_path_factory.mktemp("models") / "chat")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_rows(tmp_path_factory.mktemp("data"))


def own_rows(config: Path, data: dict[str, Path]) -> list[str]:
    """The option that makes a config read a local file, if its data come from elsewhere."""
    source = yaml.safe_load(config.read_text("utf-8"))["data"]["source"]["class_path"].rpartition(".")[2]
    return ["--data.source.path", str(data[DATA[source]])] if source in DATA else []


# --- building -----------------------------------------------------------------------------------------------------


def build(policy: Path, root: Path, configs: list[Path], *options: str) -> Built:
    """On a CPU, whatever the config was written for."""
    here = ("--trainer.accelerator", "cpu", "--trainer.devices", "1", "--trainer.precision", "32-true")
    return Built(
        words(configs, "--model.policy", str(policy), "--trainer.default_root_dir", str(root), *here, *options)
    )


@pytest.mark.parametrize("config", RUNS, ids=lambda path: path.stem)
def test_a_shipped_config_builds(config: Path, policy: Path, data: dict[str, Path], tmp_path: Path) -> None:
    cli = build(policy, tmp_path, [config], *own_rows(config, data), "--data.prompts_per_step", "2")
    assert cli.model.policy_path == str(policy)
    assert cli.trainer.default_root_dir == str(tmp_path)
    # Its data can be read, and its prompts fit.
    if own_rows(config, data):
        cli.datamodule.eval_sources = []
        cli.datamodule.tokenizer = cli.model.tokenizer
        cli.datamodule.setup("fit")
        assert len(cli.datamodule.train_prompts) == QUESTIONS


CURRICULA = sorted((CONFIGS / "curriculum").glob("*.yaml"))
OVERLAY_FILES = [file for files in OVERLAYS.values() for file in files] + sorted((CONFIGS / "rewards").glob("*.yaml"))
OVERLAY_FILES += CURRICULA


@pytest.mark.parametrize("overlay", OVERLAY_FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_an_overlay_builds(overlay: Path, policy: Path, tmp_path: Path) -> None:
    if overlay.stem == "fsdp":
        pytest.skip("Lightning refuses FSDP1 without a GPU")
    cli = build(policy, tmp_path, [CONFIGS / "gsm8k_qwen2.5_0.5b.yaml", overlay])
    assert type(cli.model).__name__ == ("PPOModule" if overlay.stem == "ppo" else "GRPOModule")
    if overlay.parent.name == "engine":
        assert type(cli.config_init["fit"]["rollout"].sampler.engine).__name__.lower() == f"{overlay.stem}engine"


# --- composing ----------------------------------------------------------------------------------------------------


def resolved(parser: Any, configs: list[Path], *options: str) -> dict[str, Any]:
    found = flat(parser.parse_args(words(configs, *options)[1:]))
    return {key: value for key, value in found.items() if key != "config"}


def differing(one: dict[str, Any], two: dict[str, Any]) -> set[str]:
    return {key for key in one.keys() | two.keys() if one.get(key, "absent") != two.get(key, "absent")}


@pytest.fixture(scope="module")
def parser() -> Any:
    """Of ``fit`` alone, without what the other commands need."""
    return Parsed(words([CONFIGS / "quickstart.yaml"]))._parser("fit")


def combinations(trains_by_rollouts: bool) -> list[list[Path]]:
    """Every strategy with every sampler and every adapter or none, each with another objective.

    Before it stands one more, which must leave nothing behind.
    """
    if not trains_by_rollouts:
        return [[file] for file in OVERLAYS["strategy"]]
    objectives = OVERLAYS["objective"]
    pairs = itertools.cycle(itertools.pairwise([*objectives, objectives[0]]))
    others = itertools.product(OVERLAYS["strategy"], OVERLAYS["engine"], [None, *OVERLAYS["adapter"]])
    found = [[*(file for file in files if file is not None), *next(pairs)] for files in others]
    assert {files[-1] for files in found} == set(objectives), "more objectives than other combinations"
    return found


@pytest.mark.parametrize("overlay", CURRICULA, ids=lambda path: path.stem)
def test_a_curriculum_changes_the_order_of_the_prompts_and_nothing_else(overlay: Path, parser: Any) -> None:
    config = CONFIGS / "math_open_r1.yaml"
    named = flat(yaml.safe_load(overlay.read_text("utf-8")))
    together = resolved(parser, [config, overlay])
    assert {key: together[key] for key in named} == named
    assert differing(resolved(parser, [config]), together) <= {*named, "data.curriculum"}


@pytest.mark.parametrize("config", RUNS, ids=lambda path: path.stem)
def test_overlays_change_what_they_name_and_nothing_else(config: Path, parser: Any) -> None:
    own = yaml.safe_load(config.read_text("utf-8"))
    path = ["--data.source.path", "rows.jsonl"] if config.stem == "logic_choice" else []
    alone = resolved(parser, [config], *path)
    for overlays in combinations(own["model"]["class_path"].endswith("GRPOModule")):
        together = resolved(parser, [config, *overlays], *path)
        replaced = overlays[-2:-1] if len(overlays) > 1 else []
        texts = [file.read_text("utf-8") for file in overlays if file not in replaced]
        named = {k: v for text in texts for k, v in flat(yaml.safe_load(text)).items()}
        assert {key: together.get(key, "absent") for key in named} == named, overlays
        # With another class come and go that class's own arguments; one that stays keeps its others.
        others = tuple(
            k.removesuffix(".class_path") for k, v in named.items() if "class_path" in k and alone.get(k) != v
        )
        changed = {key for key in differing(alone, together) - named.keys() if not key.startswith(others)}
        assert changed == set(), overlays


def test_the_comparison_sees_a_change(parser: Any) -> None:
    config = CONFIGS / "gsm8k_qwen2.5_0.5b.yaml"
    changed = differing(
        resolved(parser, [config]), resolved(parser, [config], "--model.lr", "1", "--rollout.passes", "2")
    )
    assert changed == {"model.init_args.lr", "rollout.passes"}
