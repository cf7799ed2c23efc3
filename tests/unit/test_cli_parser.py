"""One line for a mistake on the command line, from the parser's own messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
import torch
import yaml

from grpo_lightning.cli_parser import OneLineParser, files_first, one_line, stand_in


class Shape:
    """Base class of what ``--shape`` takes."""


class Square(Shape):
    def __init__(self, *, side: int = 1, colour: Literal["red", "blue"] = "red") -> None:
        self.side = side


class Cube(Square):
    def __init__(self, *, depth: float = 1.0, inner: Shape | None = None, **kwargs: int) -> None:
        super().__init__(**kwargs)


def _parser() -> OneLineParser:
    parser = OneLineParser()
    parser.add_argument("--config", action="config")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--exact", type=bool, default=True)
    parser.add_argument("--share", type=float | None)
    parser.add_argument("--weights", type=list[float])
    parser.add_subclass_arguments(Shape, "shape")
    parser.add_argument("--optional", type=Shape | None)
    parser.add_argument("--function", type=Callable | None)
    return parser


def _refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        _parser().parse_args(list(arguments))
    assert stopped.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("\n")
    assert err.count("\n") == 1, err
    return err.strip()


HERE = __name__
SQUARE = ("--shape", f"{HERE}.Square")
CUBE = ("--shape", f"{HERE}.Cube")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        pytest.param(("--count", "many"), "--count many: expected a whole number", id="whole number"),
        pytest.param(("--count", "1.5"), "--count 1.5: expected a whole number", id="no fraction"),
        pytest.param(("--exact", "perhaps"), "--exact perhaps: expected true or false", id="true or false"),
        pytest.param(("--share", "much"), "--share much: expected a number", id="optional number"),
        pytest.param(("--weights", "3"), "--weights 3: expected a list; write [3]", id="list"),
        pytest.param(("--weights", "[a]"), "--weights a: expected a number", id="entry of a list"),
        pytest.param(("--count",), "--count: expected one argument", id="no value"),
        pytest.param(("--cuont", "3"), "--cuont: unknown option; did you mean --count?", id="misspelt"),
        pytest.param(("--zzz=3",), "--zzz: unknown option; `--help` lists the options", id="unlike any"),
        pytest.param(("--coun", "3"), "--coun: unknown option; did you mean --count?", id="abbreviation"),
        pytest.param(("three",), "three: options begin with --; `--help` lists them", id="no dashes"),
        pytest.param(
            (*SQUARE, "--shape.sied", "3"),
            "--shape.sied: unknown option; did you mean --shape.side?",
            id="argument of the chosen class",
        ),
        pytest.param(
            (*CUBE, "--shape.init_args.sied", "3"),
            "--shape.sied: unknown option; did you mean --shape.side?",
            id="argument of its base class",
        ),
        pytest.param(
            (*SQUARE, "--shape.radius", "3"),
            "--shape.radius: unknown option; Square has side, colour",
            id="unlike any argument",
        ),
        pytest.param(
            (*CUBE, f"--shape.inner={HERE}.Square", "--shape.inner.sdie", "3"),
            "--shape.inner.sdie: unknown option; did you mean --shape.inner.side?",
            id="class in a class",
        ),
        pytest.param((*SQUARE, "--shape.side", "long"), "--shape.side long: expected a whole number", id="nested type"),
        pytest.param(
            (*SQUARE, "--shape.colour", "green"), "--shape.colour green: expected one of red, blue", id="choices"
        ),
        pytest.param(("--shape", "Circle"), "--shape Circle: expected the dotted path of a class", id="no path"),
        pytest.param(
            ("--shape", "math.Circle"),
            "--shape math.Circle: math has no Circle; write a name that it has",
            id="not in the module",
        ),
        pytest.param(
            ("--shape", f"{HERE}.Sqare"),
            f"--shape {HERE}.Sqare: {HERE} has no Sqare; did you mean Square?",
            id="nearly",
        ),
        pytest.param(
            ("--function", "task/scores.py"),
            "--function task/scores.py: write the function's dotted path: task.scores.NAME",
            id="a file for a function",
        ),
        pytest.param(
            ("--function", "./task/scores.py.best"),
            "--function ./task/scores.py.best: write the function's dotted path: task.scores.best",
            id="a function in a file",
        ),
    ],
)
def test_one_line(arguments: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _refusal(capsys, *arguments) == f"error: {line}"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("cuont: 3", "--cuont: unknown option; did you mean --count?"),
        ("count: [1", "--config {file}: Problems parsing config: while parsing a flow sequence"),
        ("- 1", "--config {file}: holds no options; write them as `key: value`"),
        ("", "--config {file}: holds no options; write them as `key: value`"),
        (
            f"shape: {{class_path: {HERE}.Square, init_args: {{sied: 2}}}}",
            "--shape.sied: unknown option; did you mean --shape.side?",
        ),
        (
            f"shape: {{class_path: {HERE}.Square, side: 2}}",
            "--shape: keys stand beside class_path, where only init_args may stand; move them to init_args",
        ),
        (
            f"optional: {{class_path: {HERE}.Square, side: 2}}",
            "--optional: keys stand beside class_path, where only init_args may stand; move them to init_args",
        ),
    ],
)
def test_one_line_about_a_file(text: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    assert _refusal(capsys, "--config", str(file)).startswith("error: " + line.format(file=file))


@pytest.mark.parametrize(
    ("program", "name"), [("/x/grpo_lightning/__main__.py", "python -m grpo_lightning"), ("bin/grpo-lightning", None)]
)
def test_the_usage_names_what_was_typed(program: str, name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [program])
    assert _parser().format_help().startswith(f"usage: {name or 'grpo-lightning'} [")


def test_a_tab_is_told_from_another_wrong_character(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bad.yaml"
    for text, ending in (("shape:\n\tside: 2", "a tab stands there"), ("count: @", "line 1, column 8")):
        file.write_text(text)
        assert _refusal(capsys, "--config", str(file)).endswith(ending)


def test_a_file_that_does_not_exist_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "none.yaml" in _refusal(capsys, "--config", "none.yaml")


def test_a_good_file_leaves_its_name_out_of_later_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "good.yaml"
    file.write_text("count: 2")
    assert _refusal(capsys, "--config", str(file), "--count", "x") == "error: --count x: expected a whole number"


# --- a class whose package is missing -----------------------------------------------------------------------------

MISSING = "optimizer: {class_path: no_such_package.Adam8bit, init_args: {betas: [0.9, 0.99], weight_decay: 0.1}}"


def _optimizer_parser() -> OneLineParser:
    parser = OneLineParser()
    parser.add_argument("--config", action="config")
    parser.add_argument("--optimizer", type=Callable[[list], torch.optim.Optimizer] | None)
    return parser


@pytest.mark.parametrize("words", [("--optimizer", "torch.optim.AdamW"), ("--optimizer=torch.optim.AdamW",)])
def test_an_option_replaces_a_class_that_is_not_installed_and_keeps_its_arguments(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "gpu.yaml"
    file.write_text(MISSING)
    optimizer = _optimizer_parser().parse_args(["--config", str(file), *words]).optimizer
    assert optimizer.class_path == "torch.optim.AdamW"
    assert tuple(optimizer.init_args.betas) == (0.9, 0.99)
    assert optimizer.init_args.weight_decay == 0.1


def test_a_class_that_is_not_installed_is_refused_where_nothing_replaces_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gpu.yaml"
    file.write_text(MISSING)
    with pytest.raises(SystemExit):
        _optimizer_parser().parse_args(["--config", str(file)])
    assert capsys.readouterr().err == (
        "error: --optimizer no_such_package.Adam8bit: cannot be imported (No module named 'no_such_package'); "
        "install it, or write its dotted path, package.module.name\n"
    )


class Outer:
    """Holds a class with an option that may be null."""

    def __init__(self, inner: Inner | None = None) -> None:
        self.inner = inner


class Inner:
    def __init__(self, bound: float | None = 2.0, name: str | None = "x") -> None:
        self.bound, self.name = bound, name


def test_null_is_null_also_in_a_class_inside_a_class() -> None:
    parser = OneLineParser()
    parser.add_argument("--outer", type=Outer)
    words = [f"--outer={__name__}.Outer", f"--outer.inner={__name__}.Inner", "--outer.inner.bound=null"]
    inner = parser.parse_args([*words, "--outer.inner.name", "null"]).outer.init_args.inner
    assert inner.init_args.bound is None
    assert inner.init_args.name is None


def test_a_stand_in_is_found_inside_classes_and_touches_nothing_else() -> None:
    content = f"model: {{class_path: a.B, init_args: {{{MISSING}}}}}\nother: {{class_path: no_such_package.C}}\n"
    changed = yaml.safe_load(stand_in(content, ["--model.optimizer", "torch.optim.SGD", "--other.x", "1"]))
    assert changed["model"]["init_args"]["optimizer"]["class_path"] == "torch.optim.SGD"
    assert changed["other"] == {"class_path": "no_such_package.C"}
    # What can be imported, and what no option names, is left as it was written.
    installed = "optimizer: {class_path: torch.optim.Adam}  # as it is"
    assert stand_in(installed, ["--optimizer", "torch.optim.SGD"]) == installed
    assert stand_in(content, ["--model.lr", "1"]) == content
    assert stand_in("a: [", ["--a", "1"]) == "a: ["


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("fit --model.lr 1e-7 --config a.yaml", "fit --config a.yaml --model.lr 1e-7"),
        ("--config a fit --x.y=1 -c b --x.z -1 -cc --config=d", "--config a fit -c b -cc --config=d --x.y=1 --x.z -1"),
        (f"fit --a.b 1 --a {__file__} --config c", f"fit --config c --a {__file__} --a.b 1"),
        (f"fit --a.b=1 --a={__file__} --a.c={__file__}", f"fit --a={__file__} --a.b=1 --a.c={__file__}"),
        ("fit --a.b 1 --a Class --l+=A --l.x=1 --l+=B", "fit --a.b 1 --a Class --l+=A --l.x=1 --l+=B"),
        ("fit --config=a stray --x.y 1 --config b", "fit --config=a stray --config b --x.y 1"),
        ("fit --x.y 1 --help --config c", "fit --help --config c --x.y 1"),
        ("fit three --x.y 1 --config", "fit three --config --x.y 1"),
        ("fit", "fit"),
    ],
)
def test_files_come_before_options(words: str, expected: str) -> None:
    assert files_first(words.split(), ["fit"]) == expected.split()


def test_an_option_wins_over_a_file_that_follows_it(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("count: 3\nexact: false\n")
    parsed = _parser().parse_args(["--count=5", "--config", str(tmp_path / "a.yaml")])
    assert (parsed.count, parsed.exact) == (5, False)


def test_required_options_lose_the_name_of_the_subcommand() -> None:
    message = "the following arguments are required: fit.data.source"
    assert one_line(message, []) == "--data.source is missing; give it as an option or in a --config file"


def test_other_messages_pass_on_one_line() -> None:
    assert one_line('Parser key "a":\n  - this\n  - that\n', []) == "--a: this that"
