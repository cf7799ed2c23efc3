"""The package's shape: floors, cycles, where heavy libraries are imported, and how long a file or function may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "grpo_lightning"

# A file imports from its own floor or a lower one. The first part of its path inside the package tells its floor.
FLOORS = {
    "types": 0,
    "errors": 0,
    "ranks": 1,
    "environment": 1,
    "redaction": 1,
    "files": 1,
    "token_means": 1,
    "functional": 1,
    "advantages": 1,
    "objectives": 1,
    "rewards": 1,
    "data": 2,
    "engines": 2,
    "rollout": 3,
    "models": 3,
    "strategies": 4,
    "checkpoint_files": 4,
    "broken_steps": 4,
    "interruption": 4,
    "policy_module": 4,
    "rollout_module": 4,
    "module": 4,
    "ppo": 4,
    "sft": 4,
    "callbacks": 4,
    "evaluation": 4,
    "loggers": 4,
    "records": 4,
    "report": 4,
    "check": 5,
    "cli": 5,
    "cli_parser": 5,
    "cli_classes": 5,
    "processes": 5,
    "__main__": 5,
    "__init__": 5,  # names the public classes, so it stands above them; it imports each on first use
}
MAX_FILE_LINES = 320
MAX_FUNCTION_LINES = 70


class Tree:
    """The modules of a package folder, by dotted name (a sub-package's ``__init__`` has the sub-package's name)."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        self.paths = {self._dotted(path, folder): path for path in sorted(folder.rglob("*.py"))}
        self.syntax = {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in self.paths.items()}

    @staticmethod
    def _dotted(path: Path, folder: Path) -> str:
        parts = path.relative_to(folder.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def floor(self, module: str) -> int | None:
        """The module's floor; None if FLOORS does not say."""
        return FLOORS.get([*module.split("."), "__init__"][1])

    def imports(self, module: str) -> set[str]:
        """Dotted names that the module imports anywhere: in functions, for type checking and by ``import_module``."""
        names: set[str] = set()
        for node in ast.walk(self.syntax[module]):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = self._base(module, node)
                # `from a import b` means module a.b if there is one, else a name inside a.
                names.update(f"{base}.{a.name}" if f"{base}.{a.name}" in self.paths else base for a in node.names)
            elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "import_module":
                names.update(a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str))
        return names

    def _base(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = module.split(".")
        if self.paths[module].name != "__init__.py":
            package = package[:-1]
        package = package[: len(package) - node.level + 1]
        return ".".join([*package, node.module] if node.module else package)

    def inside(self, module: str) -> set[str]:
        """The modules of this package that a module imports."""
        return {name for name in self.imports(module) if name in self.paths and name != module}

    def upward(self) -> list[str]:
        """Imports from a higher floor."""
        found = []
        for module in self.paths:
            if module == self.name:
                continue
            for target in sorted(self.inside(module)):
                own, other = self.floor(module), self.floor(target)
                if own is not None and other is not None and other > own:
                    found.append(f"{module} (floor {own}) imports {target} (floor {other})")
        return found

    def cycle(self) -> list[str]:
        """One cycle of imports, first module repeated at the end; empty if there is none."""
        done: set[str] = set()

        def visit(module: str, path: list[str]) -> list[str]:
            if module in path:
                return [*path[path.index(module) :], module]
            if module in done:
                return []
            for target in sorted(self.inside(module) - {self.name}):
                if found := visit(target, [*path, module]):
                    return found
            done.add(module)
            return []

        return next((found for module in self.paths if (found := visit(module, []))), [])

    def importers(self, library: str) -> list[str]:
        """Modules that import a library or a part of it."""
        return [m for m in self.paths if any(name.split(".")[0] == library for name in self.imports(m))]

    def too_long(self) -> list[str]:
        """Files and functions over the limits."""
        found = []
        for module, path in self.paths.items():
            lines = len(path.read_text(encoding="utf-8").splitlines())
            if lines > MAX_FILE_LINES:
                found.append(f"{module}: {lines} lines, at most {MAX_FILE_LINES}")
            for node in ast.walk(self.syntax[module]):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    lines = (node.end_lineno or node.lineno) - node.lineno + 1
                    if lines > MAX_FUNCTION_LINES:
                        found.append(f"{module}.{node.name}: {lines} lines, at most {MAX_FUNCTION_LINES}")
        return found


@pytest.fixture(scope="module")
def tree() -> Tree:
    return Tree(PACKAGE)


def test_every_file_has_a_floor(tree: Tree) -> None:
    unknown = [module for module in tree.paths if tree.floor(module) is None]
    assert not unknown, f"give these a floor in FLOORS: {unknown}"


def test_imports_go_downward(tree: Tree) -> None:
    assert tree.upward() == []


def test_no_import_cycles(tree: Tree) -> None:
    assert tree.cycle() == []


def test_vllm_is_imported_in_one_file(tree: Tree) -> None:
    assert tree.importers("vllm") == ["grpo_lightning.engines.vllm"]


def test_rewards_load_no_torch(tree: Tree) -> None:
    """Their worker processes start fast: only a reward that is a model needs it, and imports it on first use."""
    models = ["grpo_lightning.rewards.classifier", "grpo_lightning.rewards.reward_model"]
    assert [m for m in tree.importers("torch") if m.startswith("grpo_lightning.rewards")] == models
    code = "import sys, grpo_lightning.rewards; print('torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )
    assert result.stdout == "False\n", result.stderr


def test_the_report_loads_no_torch(tree: Tree) -> None:
    """Nor Lightning: a page must be there in seconds."""
    code = (
        "import sys\n"
        "from grpo_lightning.__main__ import main\n"
        "try: main(['report', 'nowhere'])\n"
        "except SystemExit as end: print(end.code, *({'torch', 'lightning', 'transformers'} & set(sys.modules)))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )
    assert (result.stdout, result.stderr.count("\n")) == ("2\n", 1), result.stderr


def test_low_floors_stay_light(tree: Tree) -> None:
    light = [module for module in tree.paths if tree.floor(module) in (0, 1)]
    heavy = ("lightning", "pytorch_lightning", "transformers", "vllm")
    code = (
        "import importlib, sys\n"
        f"for name in {light!r}: importlib.import_module(name)\n"
        f"print(*[name for name in {heavy!r} if name in sys.modules])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [], "floors 0 and 1 import these"


def test_files_and_functions_are_short(tree: Tree) -> None:
    assert tree.too_long() == []


def test_names_say_what_is_inside(tree: Tree) -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}
    assert [module for module in tree.paths if vague & set(module.split("."))] == []


# The checks above must be able to fail: each is shown a small package that breaks its rule.


def _package(folder: Path, **files: str) -> Tree:
    for name, text in {"__init__": "", **files}.items():
        path = folder / "pkg" / (name.replace("__in__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Tree(folder / "pkg")


@pytest.mark.parametrize(
    "line",
    [
        "from pkg.module import Module",
        "from pkg import module",
        "from . import module",
        "from .module import Module",
        "import pkg.module as m",
        "def f():\n    from pkg.module import Module",
        "importlib.import_module('pkg.module')",
    ],
)
def test_an_upward_import_is_found(tmp_path: Path, line: str) -> None:
    tree = _package(tmp_path, errors=line, module="")
    assert tree.upward() == ["pkg.errors (floor 0) imports pkg.module (floor 4)"]


def test_relative_imports_start_at_the_right_folder(tmp_path: Path) -> None:
    tree = _package(
        tmp_path,
        data__in____init__="from .source import A",
        data__in__source="from ..cli import main",
        cli="from .data import A",
    )
    assert tree.inside("pkg.data") == {"pkg.data.source"}
    assert tree.inside("pkg.cli") == {"pkg.data"}
    assert tree.upward() == ["pkg.data.source (floor 2) imports pkg.cli (floor 5)"]


def test_the_package_itself_is_the_top_floor(tmp_path: Path) -> None:
    tree = _package(tmp_path, __init__="from pkg.module import M", module="", data="from pkg import M")
    assert tree.upward() == ["pkg.data (floor 2) imports pkg (floor 5)"]


def test_a_cycle_on_one_floor_is_found(tmp_path: Path) -> None:
    tree = _package(tmp_path, data="import pkg.engines", engines="def f():\n    import pkg.data")
    assert tree.upward() == []
    assert tree.cycle() == ["pkg.data", "pkg.engines", "pkg.data"]


def test_a_second_import_of_vllm_is_found(tmp_path: Path) -> None:
    tree = _package(tmp_path, engines="from vllm.sampling import S", cli="import vllm", data="import vllm_tools")
    assert tree.importers("vllm") == ["pkg.cli", "pkg.engines"]


def test_long_files_and_functions_are_found(tmp_path: Path) -> None:
    long = "def f():\n" + "    pass\n" * MAX_FUNCTION_LINES
    tree = _package(tmp_path, cli=long, data="\n" * (MAX_FILE_LINES + 1), errors="def f():\n" + "    pass\n" * 69)
    assert tree.too_long() == ["pkg.cli.f: 71 lines, at most 70", "pkg.data: 321 lines, at most 320"]
