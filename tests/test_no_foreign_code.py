"""Nothing from a model, a data set or a checkpoint is run: not by eval, not by pickle, not by a library's parser."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_lightning.rewards import math_accuracy

ROOT = Path(__file__).resolve().parents[1]
SOURCES = [path for folder in ("grpo_lightning", "experiments") for path in sorted((ROOT / folder).rglob("*.py"))]

SANDBOX = {"grpo_lightning/rewards/code/child.py"}
"""Runs what a model wrote: that is what it is for, in a process without rights."""
OWN_PICKLES = {f"grpo_lightning/rewards/{part}.py" for part in (
    "isolation/pool", "isolation/worker", "isolation/server", "scoring/calling", "scoring/invocation",
)}  # fmt: skip
"""Send the user's own reward functions to their processes; what comes back is read as plain values alone."""
PICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "jsonpickle"}
EVALUATES = {"eval", "exec", "compile", "sympify", "parse_expr", "parse_latex"}
TRUSTING = {"trust_remote_code", "allow_pickle"}


def faults(text: str) -> Iterator[str]:
    """What in a source file may run foreign code."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            yield from (f"imports {name}" for name in names if name.split(".")[0] in PICKLES)
        elif isinstance(node, ast.Call):
            function = ast.unparse(node.func)
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if function in EVALUATES or function.split(".")[-1] in EVALUATES - {"eval", "compile"}:
                yield f"calls {function}"
            if function == "torch.load" and given.get("weights_only", "False") == "False":
                yield "torch.load without weights_only"
            loader = " ".join([*map(ast.unparse, node.args[1:]), given.get("Loader", "")])
            if function in ("yaml.unsafe_load", "yaml.full_load") or (function == "yaml.load" and "Safe" not in loader):
                yield f"calls {function}"
            yield from (f"{name}=True" for name in TRUSTING if given.get(name) == "True")
        elif isinstance(node, ast.FunctionDef):
            arguments = [*node.args.args, *node.args.kwonlyargs]
            defaults = [*[None] * (len(node.args.args) - len(node.args.defaults)), *node.args.defaults]
            for argument, default in zip(arguments, [*defaults, *node.args.kw_defaults], strict=True):
                if argument.arg in TRUSTING and default is not None and ast.unparse(default) != "False":
                    yield f"{argument.arg} by default"


def test_the_sources_run_no_foreign_code() -> None:
    found = {}
    for path in SOURCES:
        name = path.relative_to(ROOT).as_posix()
        here = list(faults(path.read_text("utf-8")))
        if name in SANDBOX:
            here = [fault for fault in here if fault not in ("calls exec", "calls compile")]
        if name in OWN_PICKLES:
            here = [fault for fault in here if fault != "imports pickle"]
        if here:
            found[name] = here
    assert found == {}


@pytest.mark.parametrize(
    "line",
    [
        "import pickle", "from joblib import load", "eval(text)", "exec(text)", "sympy.sympify(text)", "torch.load(f)",
        "parse_expr(text)", "torch.load(f, weights_only=False)", "yaml.load(f)", "np.load(f, allow_pickle=True)",
        "AutoModel.from_pretrained(x, trust_remote_code=True)", "def f(*, trust_remote_code=True): pass",
    ],
)  # fmt: skip
def test_each_kind_is_found(line: str) -> None:
    assert len(list(faults(line))) == 1


def test_what_is_harmless_passes() -> None:
    lines = ["model.eval()", "re.compile(x)", "torch.load(f, weights_only=True)", "yaml.safe_load(f)"]
    assert list(faults("\n".join([*lines, "def f(trust_remote_code=False): pass"]))) == []


HOSTILE = [
    "__import__('os').system('touch {mark}')",
    "().__class__.__bases__[0].__subclasses__()",
    "open('{mark}', 'w').write('x')",
    "lambda: __import__('pathlib').Path('{mark}').touch()",
    "\\text{{__import__('os').system('touch {mark}')}}",
    "\\frac{{__import__('os').system('touch {mark}')}}{{2}}",
    "\\operatorname{{open}}('{mark}', 'w')",
    "exec(\"open('{mark}', 'w')\")",
    "x = __import__('os').system('touch {mark}')",
    "\\begin{{pmatrix}}open('{mark}','w') & 1 \\\\ 2 & 3\\end{{pmatrix}}",
    "sympify(\"__import__('os').system('touch {mark}')\")",
    "{{open('{mark}', 'w')}}",
    "Symbol('a').__class__",
    "\\sqrt{{x.__class__.__mro__}}",
    "f\"{{open('{mark}', 'w')}}\"",
]
PLAIN = ["3/4", "\\frac{3}{4}", "x^2+2x+1", "(1,2)", "\\{1,2\\}", "\\sqrt{18}", "5x-2y+9=0", "[0,1)", "2^{10}", "11-i"]


def test_no_text_of_a_model_is_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by sympy either, whose own parser is Python's ``eval``: what reads LaTeX here is a grammar."""
    evaluated: list[object] = []
    mark = tmp_path / "mark"
    monkeypatch.setattr(builtins, "eval", lambda code, *names: evaluated.append(code))
    texts = [text.format(mark=mark) for text in HOSTILE]
    for gold in PLAIN:
        answers = [f"\\boxed{{{text}}}" for text in [*texts, *PLAIN]]
        scores = math_accuracy(completions=answers, answer=[gold] * len(answers))
        assert max(score or 0.0 for score in scores[: len(texts)]) == 0.0
        assert scores[len(texts) + PLAIN.index(gold)] == 1.0
    assert evaluated == []
    assert not mark.exists()
