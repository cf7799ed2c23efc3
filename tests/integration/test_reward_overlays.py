"""The five published sets of rewards: every value, what replies earn by them, how they compose, and that they train."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_lightning.rewards import RewardScorer
from grpo_lightning.types import Completion, Prompt
from tests.integration.command_line import rows, run
from tests.integration.published_rewards import NAMES, OF_RECIPE, SETS, TOTALS
from tests.integration.stand_ins import CONFIGS, Built, Parsed, all_packages, build_chat_model, flat, words, write_rows

pytestmark = pytest.mark.integration


def base(name: str) -> Path:
    return CONFIGS / f"{name}.yaml"


def overlay(name: str) -> Path:
    return CONFIGS / "rewards" / f"{name}.yaml"


@pytest.fixture(scope="module", autouse=True)
def _packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with all_packages(tmp_path_factory.mktemp("packages")):
        yield


# --- values -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parser() -> Any:
    return Parsed(words([base("quickstart")]))._parser("fit")


def resolved(parser: Any, *files: Path) -> dict[str, Any]:
    """What ``config.yaml`` in the run folder would say, without the callbacks."""
    rows_of_its_own = ["--data.source.path", "rows.jsonl"] if base("logic_choice") in files else []
    parsed = parser.parse_args(words(files, *rows_of_its_own)[1:])
    return flat(yaml.safe_load(parser.dump(parsed, skip_none=False)))


def test_the_five_are_shipped() -> None:
    assert {file.stem for file in (CONFIGS / "rewards").glob("*.yaml")} >= SETS.keys() == NAMES.keys() == TOTALS.keys()


@pytest.mark.parametrize("name", SETS)
def test_an_overlay_sets_the_published_values_and_nothing_else(name: str, parser: Any) -> None:
    own = flat(yaml.safe_load(overlay(name).read_text("utf-8")))
    assert own.keys() == flat(SETS[name]).keys()
    for recipe in OF_RECIPE:
        alone, together = resolved(parser, base(recipe)), resolved(parser, base(recipe), overlay(name))
        changed = {key for key in alone.keys() | together.keys() if alone.get(key) != together.get(key)}
        assert {key for key in changed if not key.startswith(("rollout.reward", "rollout.normalize_each"))} == set()
        wanted = flat(SETS[name])
        assert {key: together.get(key, "absent") for key in wanted} == wanted
        # Nothing of the recipe's own list is left.
        listed = {key for key in together if key.startswith("rollout.rewards")}
        assert listed == {key for key in wanted if key.startswith("rollout.rewards")}


@pytest.mark.parametrize("recipe", OF_RECIPE)
def test_a_recipe_holds_the_set_of_its_overlay(recipe: str, parser: Any) -> None:
    assert resolved(parser, base(recipe)) == resolved(parser, base(recipe), overlay(OF_RECIPE[recipe]))


def test_of_two_overlays_the_later_one_counts(parser: Any) -> None:
    for first, second in zip(SETS, [*SETS][1:] + [*SETS][:1], strict=True):
        alone = resolved(parser, base("quickstart"), overlay(second))
        assert resolved(parser, base("quickstart"), overlay(first), overlay(second)) == alone, (first, second)


# --- what replies earn --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_chat_model(tmp_path_factory.mktemp("models") / "chat")


@pytest.mark.parametrize("name", SETS)
def test_replies_earn_the_published_sums(name: str, policy: Path, tmp_path: Path) -> None:
    flags = ("--model.policy", str(policy), "--trainer.default_root_dir", str(tmp_path), "--trainer.accelerator", "cpu")
    cli = Built(words([base("quickstart"), overlay(name)], *flags))
    scorer: RewardScorer = cli.config_init["fit"]["rollout"].make_scorer()
    assert scorer.names == NAMES[name]
    prompts = [Prompt(token_ids=[1], text="Q", columns=columns) for columns, _, _, _ in TOTALS[name]]
    completions = [
        [Completion(token_ids=[7] * tokens, logprobs=[0.0] * tokens, finished=True, text=reply)]
        for _, reply, tokens, _ in TOTALS[name]
    ]
    totals = [total for (total,) in scorer.score(prompts, completions).total]
    assert totals == pytest.approx([total for _, _, _, total in TOTALS[name]], abs=1e-9)


# --- training -----------------------------------------------------------------------------------------------------

ELSEWHERE: dict[str, tuple[str, str, list[str]]] = {
    "open_r1": ("gsm8k_qwen2.5_0.5b", "gsm8k", []),
    "tiered": ("gsm8k_qwen2.5_0.5b", "gsm8k", ["--data.template.answer_format", "chinese"]),
    "shaped": ("gsm8k_qwen2.5_0.5b", "gsm8k", ["--data.template.answer_format", "boxed"]),
    "logic_choice": ("logic_choice", "choice", ["--model.optimizer", "torch.optim.AdamW"]),
    "gsm8k_five": ("gsm8k_qwen2.5_1.5b", "gsm8k", ["--data.template.answer_format", "reasoning_answer"]),
}
"""A recipe that each overlay is put upon, its rows, and the layout that the rewards look for."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_rows(tmp_path_factory.mktemp("data"))


def small(policy: Path, source: Path, root: Path, passes: int) -> list[str]:
    """One rollout of 2 prompts and short completions."""
    options = {
        "model.policy": policy,
        "data.source.path": source,
        "data.eval_sources": "[]",
        "data.prompts_per_step": 2,
        "rollout.max_completion_length": 6,
        "trainer.max_steps": passes,
        "trainer.log_every_n_steps": 1,
        "trainer.accelerator": "cpu",
        "trainer.precision": "32-true",
        "trainer.enable_progress_bar": "false",
        "trainer.logger": "false",
        "trainer.val_check_interval": 1.0,
        "trainer.num_sanity_val_steps": 0,
    }
    flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [*flags, "--trainer.default_root_dir", str(root), "--trainer.logger", "true"]


@pytest.mark.parametrize("name", SETS)
def test_an_overlay_trains_on_another_recipe(
    name: str, policy: Path, data: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, source, options = ELSEWHERE[name]
    files = [base(recipe), CONFIGS / "engine" / "transformers.yaml", overlay(name)]
    passes = yaml.safe_load(base(recipe).read_text("utf-8"))["rollout"]["passes"]
    outcome = run(capsys, *words(files, *small(policy, data[source], tmp_path / "run", passes), *options))
    assert outcome.code == 0, outcome.err
    assert "all of 6 golds" in outcome.err
    row = rows(tmp_path / "run")[0]
    logged = [key.split("/")[1] for key in row if key.startswith("rewards/") and key.endswith("/mean")]
    assert sorted(logged) == sorted(NAMES[name])
    total = sum(float(row[f"rewards/{term}/mean"]) for term in NAMES[name])
    assert float(row["reward"]) == pytest.approx(total, abs=1e-5)


@pytest.mark.parametrize("name", ["tiered", "shaped", "logic_choice"])
def test_a_layout_that_the_rewards_do_not_look_for_is_refused(
    name: str, policy: Path, data: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [base("gsm8k_qwen2.5_0.5b"), CONFIGS / "engine" / "transformers.yaml", overlay(name)]
    mistake = run(capsys, *words(files, *small(policy, data["gsm8k"], tmp_path / "run", 1))).mistake
    (correctness, *_) = NAMES[name]
    assert mistake.startswith(f"--rollout.rewards {correctness}: 6 of 6 golds of gsm8k (100.0%) do not earn its best")
    assert ("(unreadable)" in mistake) == (name == "logic_choice")  # numbers are no letters
    assert not (tmp_path / "run").exists()
