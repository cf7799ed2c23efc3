"""README and docs are true: their code runs as printed, and the files and options that they name exist."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_lightning.cli import GRPOCommandLine
from tests.integration.command_line import REPOSITORY, fit, grpo, records, rows

pytestmark = pytest.mark.integration

README = (REPOSITORY / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)


def snippet(first_words: str) -> str:
    """The one code block that starts so."""
    (found,) = [text for _, text in BLOCKS if text.startswith(first_words)]
    return found


@pytest.fixture
def beside_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the README's modules in it."""
    for name in ("my_rewards", "my_objectives", "my_advantages", "my_callbacks", "my_data"):
        (tmp_path / f"{name}.py").write_text(snippet(f"# {name}.py"))
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_reward_of_the_readme_trains(tiny: Path, beside_the_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (beside_the_run / "rewards.yaml").write_text(snippet("# rewards.yaml"))
    config = grpo(tiny, beside_the_run / "run", trainer__max_steps=1)
    fit(capsys, config, "--config", str(beside_the_run / "rewards.yaml"))
    row = rows(beside_the_run / "run")[0]
    # Completions of 8 tokens are short answers, and none of them is a boxed total.
    assert float(row["rewards/short_answer/mean"]) == 1.0
    assert float(row["rewards/math_accuracy/mean"]) == 0.0
    assert float(row["reward"]) == pytest.approx(0.1)


def test_the_objective_of_the_readme_trains(
    tiny: Path, beside_the_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = grpo(tiny, beside_the_run / "run", rollout__passes=2)
    fit(capsys, config, "--model.objective", "my_objectives.Unclipped")
    ratios = [float(row["ratio"]) for row in rows(beside_the_run / "run")]
    assert ratios[0] == 1.0
    assert ratios[1] != 1.0
    assert "clip_ratio/high_mean" not in rows(beside_the_run / "run")[0]


def test_the_advantages_and_the_callback_of_the_readme_train(
    tiny: Path, beside_the_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = grpo(tiny, beside_the_run / "run", trainer__max_steps=4, samples__every_n_rollouts=1)
    config["trainer"]["callbacks"] = [{"class_path": "my_callbacks.StopWhenSolved", "init_args": {"share": -1.0}}]
    fit(capsys, config, "--rollout.advantages", "my_advantages.ranks_in_group")
    assert [row["step"] for row in rows(beside_the_run / "run")] == ["1"]  # any share is above that one
    group = records(beside_the_run / "run" / "samples" / "rollout_000001.parquet")[:4]
    for one in group:
        beaten = sum(one["reward"] > other["reward"] for other in group)
        beaten -= sum(one["reward"] < other["reward"] for other in group)
        assert one["advantage"] == pytest.approx(beaten / 3)


def test_the_data_of_the_readme_trains(tiny: Path, beside_the_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = grpo(tiny, beside_the_run / "run", trainer__max_steps=1)
    fit(capsys, config, "--data.source", "my_data.Doubling", "--samples.every_n_rollouts", "1")
    (sample, *_) = records(beside_the_run / "run" / "samples" / "rollout_000001.parquet")
    assert sample["source"] == "doubling"
    assert int(sample["answer"]) % 2 == 0


def test_a_jsonl_file_needs_no_code(tiny: Path, beside_the_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = "".join(f'{{"question": "{n} + {n}?", "answer": "{2 * n}"}}\n' for n in range(1, 10))
    (beside_the_run / "questions.jsonl").write_text(lines)
    overlay = yaml.safe_load(snippet("# questions.yaml"))
    overlay["data"]["source"]["init_args"]["path"] = str(beside_the_run / "questions.jsonl")
    (beside_the_run / "questions.yaml").write_text(yaml.safe_dump(overlay))
    config = grpo(tiny, beside_the_run / "run", trainer__max_steps=1)
    fit(capsys, config, "--config", str(beside_the_run / "questions.yaml"))
    assert rows(beside_the_run / "run")[0]["step"] == "1"


def _commands() -> list[list[str]]:
    """Every ``python -m grpo_lightning`` command of the README, as words."""
    text = "\n".join(body for language, body in BLOCKS if language == "bash").replace("\\\n", " ")
    lines = re.findall(r"python -m grpo_lightning (.+)", text)
    return [[word.strip('"') for word in re.findall(r'"[^"]*"|\S+', line.split("#")[0])] for line in lines]


class Parsed(GRPOCommandLine):
    """Parses the command line and builds nothing."""

    def instantiate_classes(self) -> None:
        self.parsed: Any = self.config

    def _run_subcommand(self, subcommand: str) -> None:
        """Nothing."""


@pytest.mark.parametrize("words", [words for words in _commands() if words[0] != "report"], ids=" ".join)
def test_a_command_of_the_readme_parses(
    words: list[str], beside_the_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    # The quickstart's own resolved configuration exists only after a quickstart.
    words = [word.replace("runs/quickstart/grpo/config.yaml", "configs/quickstart.yaml") for word in words]
    words[0] = words[0].replace("check", "fit")  # whose options it takes
    monkeypatch.setattr(sys, "argv", ["grpo-lightning"])
    assert Parsed(words).parsed.subcommand == words[0]


def test_the_run_of_the_page_on_trl_parses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (REPOSITORY / "docs" / "from_trl.md").read_text("utf-8")
    (config,) = re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL)
    (tmp_path / "mine.yaml").write_text(config)
    (tmp_path / "my_rewards.py").write_text("def right(completions, **kwargs): ...\nshort_answer = right\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_rewards", raising=False)
    monkeypatch.setattr(sys, "argv", ["grpo-lightning"])
    parsed = Parsed(["fit", "--config", str(tmp_path / "mine.yaml")]).parsed.fit
    assert (parsed.data.prompts_per_step, parsed.rollout.group_size) == (4, 8)


@pytest.fixture(scope="module")
def known() -> str:
    """The help of every subcommand: what options there are."""
    helps = io.StringIO()
    for subcommand in ("fit", "predict"):
        with contextlib.redirect_stdout(helps), pytest.raises(SystemExit):
            GRPOCommandLine([subcommand, "--help"])
    return helps.getvalue()


@page
def test_a_page_names_only_options_that_exist(page: Path, known: str) -> None:
    named = set(re.findall(r"--(?:trainer|data|rollout|evaluation|samples|export)\.\w+", page.read_text("utf-8")))
    # What lies inside a class of the user's choice is not in the general help.
    assert {option for option in named - {"--data.source", "--trainer.logger"} if option not in known} == set()


@page
def test_what_a_page_links_exists(page: Path) -> None:
    text = page.read_text("utf-8")
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), target
    for path in re.findall(r"`(configs/[\w./]+\.yaml)`", text):
        assert (REPOSITORY / path).exists(), path


@page
def test_the_headings_that_a_page_links_exist(page: Path) -> None:
    for target, heading in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text("utf-8")):
        text = (page.parent / target).read_text("utf-8") if target else page.read_text("utf-8")
        titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
        assert heading in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, heading
