"""A model's code is run: right, wrong and hostile; nothing of it is left, and the trainer is none the worse.

Each test that matters runs with name spaces, where the system allows them, and without.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from grpo_lightning.rewards import CodeTests
from grpo_lightning.rewards.code import runs
from tests.integration.command_line import grpo, jsonl, records, rows, run, written
from tests.integration.two_ranks import LIGHTNING, Run

pytestmark = pytest.mark.integration

LINUX = sys.platform == "linux"
DOUBLE = ["assert f(1) == 2", "assert f(2) == 4", "assert f(3) == 6", "assert f(10) == 20"]
SUM = [{"input": f"{a} {b}\n", "output": f"{a + b}\n"} for a, b in ((1, 2), (5, -5), (10, 20), (7, 0))]


def block(code: str) -> str:
    return f"Here it is.\n```python\n{code}\n```\n"


def score(code: str, tests: object = None, **settings: object) -> float | None:
    (result,) = CodeTests(**{"time_limit": 10.0, **settings})([block(code)], tests=[DOUBLE if tests is None else tests])
    return result


def left_behind(mark: str) -> list[str]:
    """Command lines of live processes with the mark in them."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if mark in line and int(entry.name) != os.getpid():
            found.append(line)
    return found


def gone(mark: str, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while left_behind(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not left_behind(mark)


# --- what is paid -----------------------------------------------------------------------------------------------------

SOLUTIONS = [
    ("def f(x): return 2 * x", 1.0),
    ("def f(x): return 2 * x if x < 3 else 0", 0.5),
    ("def f(x): return 4", 0.25),
    ("def f(x): return 2 * x if x < 10 else None", 0.75),
    ("def f(x): return -x", 0.0),
    ("def f(x) return 2 * x", 0.0),
    ("def g(x): return 2 * x", 0.0),
    ("def f(x):\n    if x == 2: raise ValueError\n    return 2 * x", 0.75),
    ("import sys\ndef f(x):\n    if x == 2: sys.exit(0)\n    return 2 * x", 0.75),
]
PROGRAMS = [
    ("a, b = map(int, input().split())\nprint(a + b)", 1.0),
    ("import sys\nprint(sum(int(w) for w in sys.stdin.read().split()))\nsys.exit(0)", 1.0),
    ("print(open(0).read().split()[0])", 0.25),
    ("print(3)", 0.25),
    ("a, b = map(int, input().split())\nprint(a + b if b > 0 else 'no')", 0.5),
    ("a, b = map(int, input().split())\nprint(a + b)\nraise SystemExit(1)", 0.0),
    ("a, b = map(int, input().split())\nassert b >= 0\nprint(a + b)", 0.75),
    (
        "import threading, atexit\nr = []\natexit.register(lambda: print(*r))\n"
        "threading.Thread(target=lambda: r.append(sum(map(int, input().split())))).start()",
        1.0,
    ),
]


def test_shares_of_tests(confined):
    rows = [(code, DOUBLE, share) for code, share in SOLUTIONS] + [(code, SUM, share) for code, share in PROGRAMS]
    texts, tests = [block(code) for code, _, _ in rows], [one for _, one, _ in rows]
    assert CodeTests(time_limit=10.0)(texts, tests=tests) == [share for _, _, share in rows]
    assert CodeTests(time_limit=10.0, all_or_nothing=True)(texts, tests=tests) == [float(s == 1.0) for _, _, s in rows]


def test_calls_and_classes(confined):
    tests = {"fn_name": "add", "inputs": [[1, 2], [[1], [2]], ["a", "b"]], "outputs": [3, [1, 2], ["ab"]]}
    assert score("def add(a, b): return a + b", tests) == 1.0
    assert score("class Solution:\n    def add(self, a, b): return a + b", tests) == 1.0
    assert score("def add(a, b): return a + b if a == 1 else tuple(a + b)", tests) == pytest.approx(2 / 3)


def test_humaneval_and_messages():
    program = "def check(candidate):\n    assert candidate(1) == 2\n    assert candidate(5) == 10\n"
    texts = [
        [{"role": "assistant", "content": block("def twice(x): return 2 * x")}],
        [{"role": "assistant", "content": ""}],
    ]
    assert CodeTests()(texts, tests=[program] * 2, entry_point=["twice"] * 2) == [1.0, 0.0]


def test_values_of_many_types():
    tests = [
        "assert f() == (1, 'ä', [2.5, None], {'a': {1, 2}}, b'x', 2j, 10**30, float('inf'))",
        "assert g() == 3",
        "assert h() == {'a': 2, 'b': 1}",
        "assert p() == (1, 2)",
        "assert q() == 0.5",
        "assert r() == r()",
    ]
    code = (
        "import collections, fractions\n"
        "def f(): return (1, 'ä', [2.5, None], {'a': {2, 1}}, b'x', 2j, 10**30, float('inf'))\n"
        "def g():\n    import numpy\n    return numpy.int64(3)\n"
        "def h(): return collections.Counter('aab')\n"
        "def p(): return collections.namedtuple('P', 'x y')(1, 2)\n"
        "def q(): return fractions.Fraction(1, 2)\n"
        "class R:\n    def __eq__(self, other): return isinstance(other, R)\n"
        "r = R\n"
    )
    pytest.importorskip("numpy")
    assert score(code, tests) == 1.0


# --- tricks that must not be paid -------------------------------------------------------------------------------------

EQUAL = "class Equal:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
TRICKS = {
    "exit": "import sys\nsys.exit(0)",
    "hard exit": "import os\nos._exit(0)",
    "exit in the function": "def f(x): raise SystemExit(0)",
    "hard exit in the function": "import os\ndef f(x): os._exit(0)",
    "equal to everything": EQUAL + "def f(x): return Equal()",
    "mock": "from unittest.mock import ANY\ndef f(x): return ANY",
    "subclass": EQUAL + "class I(Equal, int): __hash__ = int.__hash__\ndef f(x): return I(7)",
    "class of another": EQUAL + "class I(Equal): __class__ = int\ndef f(x): return I()",
    "builtins": "import builtins\nbuiltins.AssertionError = SystemExit\ndef f(x): return 0",
    "markers": """
import os
for fd in range(64):
    try: os.write(fd, b"loaded\\ndone\\n[0, true, 2]\\ndone\\n")
    except OSError: pass
os._exit(0)""",
    "markers in the function": """
import os
def f(x):
    for fd in range(64):
        try: os.write(fd, b"[0, true, 2]\\ndone\\n")
        except OSError: pass
    os._exit(0)""",
    "patched json": """
import json, os
json.dumps = lambda *a, **k: "[0, true, 2]"
os.write = lambda *a: 1
def f(x): return 0""",
    "trace": "import os, sys\nsys.settrace(lambda *a: os._exit(0))\ndef f(x): return 0",
}


@pytest.mark.parametrize("trick", TRICKS)
def test_tricks_are_not_paid(trick):
    assert score(TRICKS[trick]) == 0.0


def test_constants_are_not_in_the_callers_frames():
    code = """
import sys
parts = ["79", "19"]
def f(x):
    frame = sys._getframe(1)
    while frame:
        seen = (frame.f_code.co_consts, frame.f_locals, frame.f_globals)
        if any("".join(parts) in repr(value) for value in seen): return int("".join(parts))
        frame = frame.f_back"""
    assert score(code, ["assert f(1) == 7919", "assert 7919 == f(2)", "assert f(3) in (7919, -7919)"]) == 0.0
    assert score(code, ["x = 7919\nassert f(1) == x", "assert f(1) - 7919 == 0"]) == 0.0  # not in its process either


def test_tricks_against_conditions_without_a_constant():
    tests = ["x = 2\nassert f(1) == x", "assert f(1) in {k for k in (1, 2)}", "assert all(f(i) == 2 for i in (1,))"]
    assert score("def f(x): return 2", tests) == 1.0
    assert score(EQUAL + "Equal.__hash__ = lambda self: hash(2)\ndef f(x): return Equal()", tests[:2]) == 0.0
    assert score("import builtins\nbuiltins.all = lambda _: True\ndef f(x): return 3", tests) == 0.0


def test_the_tests_cannot_be_found():
    # Looks for the expected text in all memory and files that it can see; finds its own input, never the output.
    code = (
        "import os, re\nword = input()\nfound = set()\n"
        "for pid in ['self', *filter(str.isdigit, os.listdir('/proc'))]:\n"
        "    for name in ('cmdline', 'environ'):\n"
        "        try: found.update(re.findall(rb'SECRET-\\d+', open(f'/proc/{pid}/{name}', 'rb').read()))\n"
        "        except OSError: pass\n"
        "    try:\n"
        "        with open(f'/proc/{pid}/mem', 'rb', 0) as memory:\n"
        "            for line in open(f'/proc/{pid}/maps'):\n"
        "                start, end = (int(x, 16) for x in line.split()[0].split('-'))\n"
        "                if line.split()[1][0] == 'r' and end - start < 1 << 26 and end < 1 << 47:\n"
        "                    memory.seek(start)\n"
        "                    found.update(re.findall(rb'SECRET-\\d+', memory.read(end - start)))\n"
        "    except OSError: pass\n"
        "print(*(f.decode() for f in found if f.decode() != word))"
    )
    if not LINUX or not runs.name_spaces_work():
        pytest.skip("no name spaces here")
    assert score("print(input())", [{"input": "SECRET-1", "output": "SECRET-1"}]) == 1.0
    assert score(code, [{"input": "SECRET-1", "output": "SECRET-2"}]) == 0.0
    assert score(code, [{"input": "SECRET-1", "output": ""}]) == 1.0  # it ran to its end, and found nothing


# --- limits -----------------------------------------------------------------------------------------------------------


def test_an_endless_loop_costs_its_own_test_only(confined):
    counts: dict[str, float] = {}
    code = "def f(x):\n    while x == 2: pass\n    return 2 * x"
    start = time.monotonic()
    texts = [block(code), block("while True: pass"), block("def f(x): return 2 * x")]
    scores = CodeTests(time_limit=1.5, workers=2)(texts, tests=[DOUBLE] * 3, log_count=counts.__setitem__)
    assert scores == [0.75, 0.0, 1.0]
    assert counts == {"timeouts": 2, "unreadable_tests": 0}
    assert time.monotonic() - start < 15


def test_the_total_limit_ends_a_completion():
    start = time.monotonic()
    assert score("def f(x):\n    while True: pass", time_limit=0.8, total_limit=1.0) == 0.0
    assert time.monotonic() - start < 8


HOGS = {
    "memory": "x = 'a' * (3 << 30)\ndef f(x): return 2 * x",
    "growing memory": "def f(x):\n    a = []\n    while True: a.append(bytes(1 << 20))",
    "recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef f(x): return f(x + 1)",
    "prints gigabytes": "def f(x):\n    while True: print('x' * (1 << 20))",
    "reports gigabytes": "def f(x): return 'x' * (200 << 20)",
    "files": """
def f(x):
    with open("big", "wb") as file:
        for _ in range(300): file.write(bytes(1 << 20))
    return 2 * x""",
    "signals": """
import signal, time
for number in (1, 2, 14, 15): signal.signal(number, signal.SIG_IGN)
def f(x): time.sleep(60)""",
    "stops itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
}


@pytest.mark.parametrize("hog", HOGS)
def test_hogs_get_nothing_and_end(hog, confined):
    start = time.monotonic()
    assert score(HOGS[hog], DOUBLE[:1], time_limit=1.5) == 0.0
    assert time.monotonic() - start < 15


@pytest.mark.skipif(not LINUX, reason="macOS does not limit the address space")
def test_memory_ends_at_the_limit(confined):
    code = "try: bytearray(600 << 20)\nexcept MemoryError: met = True\nelse: met = False\ndef f(x): return 2 * x * met"
    assert score(code, memory_limit_gib=0.5) == 1.0
    assert score(code, memory_limit_gib=2.0) == 0.0


def test_a_program_that_prints_gigabytes_is_cut():
    start = time.monotonic()
    assert score("while True: print('x' * 100000)", [{"input": "", "output": "x"}], time_limit=20.0) == 0.0
    assert time.monotonic() - start < 15
    assert score("print('x' * 1000000)", [{"input": "", "output": "x" * 1_000_000}]) == 1.0
    assert score("print(len(input()))", [{"input": "y" * 3_000_000, "output": "3000000"}]) == 1.0


@pytest.mark.skipif(not LINUX, reason="orphans can be caught on Linux only")
@pytest.mark.parametrize("where", ["at load", "in the function"])
def test_no_process_is_left(confined, where):
    mark = f"left-{os.getpid()}-{time.monotonic_ns()}"
    code = f"""
import os, subprocess, sys
sleeper = [sys.executable, "-c", "import time; time.sleep(300)", "{mark}"]
def start():
    for session in (True, False):
        subprocess.Popen(sleeper, start_new_session=session)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: os.execv(sys.executable, sleeper)
        os._exit(0)
{"start()" if where == "at load" else ""}
def f(x):
    {"start()" if where == "in the function" else "pass"}
    return 2 * x"""
    assert score(code) == 1.0
    assert gone(mark, 1.0)


@pytest.mark.skipif(not LINUX, reason="processes are counted on Linux only")
def test_a_fork_bomb_is_stopped(confined):
    # At most 2,000 processes, should the guard fail.
    bomb = """
import os, time
def f(x):
    for _ in range(2000):
        if os.fork() == 0: time.sleep(300)
    time.sleep(300)"""
    start = time.monotonic()
    assert score(bomb, ["assert f(1) == 1"], time_limit=5.0) == 0.0
    assert time.monotonic() - start < 4.5
    # As it doubles: ten generations at most.
    assert score("import os\ndef f(x):\n    for _ in range(10): os.fork()\n    while True: pass", time_limit=2.0) == 0.0


# --- confinement ------------------------------------------------------------------------------------------------------


def test_the_environment_is_not_the_trainers(confined, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "secret-key")
    code = "import os\nprint('SOME_API_KEY' in os.environ, 'HOME' in os.environ, len(os.listdir('.')))"
    assert score(code, [{"input": "", "output": "False False 0"}] * 2) == 1.0


def test_folders_are_empty_and_removed(confined, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code = "import os\nn = len(os.listdir())\nopen('here', 'w').write('x')\nos.makedirs('a/b')\nprint(n)"
    assert score(code, [{"input": "", "output": "0"}] * 3) == 1.0
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def cut_off() -> None:
    if not runs.name_spaces_work():
        pytest.skip("no name spaces here")


def test_there_is_no_network(confined):
    if not LINUX or os.uname().machine not in ("x86_64", "aarch64"):
        pytest.skip("the network stays here")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = (
            "import socket\ntry:\n"
            f"    socket.create_connection(('127.0.0.1', {port}), 2)\n    print('open')\nexcept OSError: print('cut')"
        )
        assert score(code, [{"input": "", "output": "cut"}]) == 1.0
    local = "import asyncio, socket\nasyncio.run(asyncio.sleep(0))\na, b = socket.socketpair()\na.send(b'x')"
    local += "\nprint(b.recv(1))"
    assert score(local, [{"input": "", "output": "b'x'"}]) == 1.0


@pytest.mark.usefixtures("cut_off")
def test_no_interface_is_seen():
    names = "import socket\nprint([name for _, name in socket.if_nameindex()])"
    assert score(names, [{"input": "", "output": "['lo']"}]) == 1.0


@pytest.mark.usefixtures("cut_off")
def test_nothing_is_written_outside(tmp_path):
    (tmp_path / "kept").write_text("x")
    tmp_path.chmod(0o777)
    code = (
        "import os, shutil, tempfile\n"
        f"for place in ('{tmp_path}/new', '{tmp_path}/kept', '/tmp/new-file', '/etc/new-file'):\n"
        "    try: open(place, 'w').write('y')\n"
        "    except OSError: pass\n"
        f"shutil.rmtree('{tmp_path}', ignore_errors=True)\n"
        f"os.system('umount -l {tmp_path}; mount -o remount,rw /; rm -rf {tmp_path}')\n"
        "tempfile.TemporaryFile().write(b'x')\n"
        "print('done')"
    )
    assert score(code, [{"input": "", "output": "done"}]) == 1.0
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept").read_text() == "x"
    assert not os.path.exists("/tmp/new-file")
    assert not os.path.exists("/etc/new-file")


@pytest.mark.usefixtures("cut_off")
def test_other_processes_are_out_of_sight():
    code = (
        "import os, signal\nfor pid in (1, os.getppid(), -1):\n"
        "    try: os.kill(pid, signal.SIGTERM) if pid != -1 else None\n    except OSError: pass\n"
        f"print(os.path.exists('/proc/{os.getpid()}'), len([p for p in os.listdir('/proc') if p.isdigit()]) < 5)"
    )
    assert score(code, [{"input": "", "output": "False True"}]) == 1.0


# --- the trainer ------------------------------------------------------------------------------------------------------


def test_it_works_from_threads_and_in_a_forked_process():
    results: dict[int, list[float | None]] = {}
    reward = CodeTests(time_limit=10.0, workers=2)

    def work(number: int) -> None:
        results[number] = reward([block(f"def f(x): return x * {number}")] * 2, tests=[DOUBLE] * 2)

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {1: [0.0, 0.0], 2: [1.0, 1.0]}


PROGRAM = """
import os, signal, sys, threading, time
from grpo_lightning.rewards import CodeTests
from grpo_lightning.rewards.code import runs
if sys.argv[1] == "plain":
    runs.name_spaces_work = lambda: False
code = '''
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", "%s"], start_new_session=True)
time.sleep(300)
''' % sys.argv[3]
reward = CodeTests(time_limit=200.0, total_limit=200.0, workers=2)
def interrupt():
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGKILL if sys.argv[2] == "kill" else signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
reward(["```python\\n" + code + "\\n```"] * 2, tests=["assert f()"] * 2)
"""


@pytest.mark.skipif(not LINUX, reason="macOS has no death signal")
@pytest.mark.parametrize("ending", ["kill", "interrupt"])
@pytest.mark.parametrize("mode", ["name spaces", "plain"])
def test_no_process_outlives_the_trainer(mode, ending, tmp_path):
    mark = f"outlives-{os.getpid()}-{time.monotonic_ns()}"
    trainer = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, mode, ending, mark],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        start_new_session=True,
    )
    deadline = time.monotonic() + 20
    while len(left_behind(f"time.sleep(300) {mark}")) < 2 and trainer.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(left_behind(f"time.sleep(300) {mark}")) == 2
    trainer.communicate("now\n", timeout=30)
    assert trainer.returncode == (-signal.SIGKILL if ending == "kill" else -signal.SIGINT)
    assert gone(mark)
    deadline = time.monotonic() + 5
    while list(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(tmp_path.iterdir()) == []


def test_the_log_says_what_holds(monkeypatch, caplog):
    refusal = runs._refusal
    refuse = lambda program, *, name_spaces: "not permitted" if name_spaces else refusal(program, name_spaces=False)  # noqa: E731
    monkeypatch.setattr(runs, "_refusal", refuse)
    assert runs.name_spaces_work.__wrapped__() is False
    assert "network, and may write files" in caplog.text
    assert "(not permitted)" in caplog.text
    assert ("run without network" in caplog.text) == (LINUX and os.uname().machine in ("x86_64", "aarch64"))


def test_a_sandbox_that_cannot_start_is_an_error(monkeypatch):
    runs.name_spaces_work()
    monkeypatch.setattr(runs, "START", "raise SystemExit")
    with pytest.raises(RuntimeError, match="could not be started"):
        score("def f(x): return 2 * x")


class OfSolutions(CodeTests):
    """Judges the rows' own solutions, whatever the model wrote."""

    def __call__(self, completions: Any, *, solution: Any = (), **columns: Any) -> list[float | None]:
        return super().__call__([block(code) for code in solution], **columns)


def configured(tiny: Path, folder: Path, solutions: list[str], reward: str, **changes: Any) -> dict[str, Any]:
    table = [{"question": "Tom has 7 apples. How many?", "solution": s, "tests": DOUBLE} for s in solutions]
    (folder / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in table), "utf-8")
    settings = {"class_path": reward, "init_args": {"time_limit": 20.0}}
    data = {
        "data__source": jsonl(folder / "rows.jsonl", answer_column="solution"),
        "data__shuffle": False,
        "data__eval_sources": [],
    }
    return grpo(tiny, folder / "run", rollout__rewards=[settings], **data, **changes)


def test_training_on_two_ranks(tiny: Path, tmp_path: Path) -> None:
    solutions = ["def f(x): return 2 * x", "def f(x): return 4", "def f(x): return x", "while True: pass"]
    reward = "tests.integration.test_code_sandbox.OfSolutions"
    changes = {"rollout__check_golds": 0, "samples__every_n_rollouts": 1, "trainer__max_steps": 1}
    config = configured(tiny, tmp_path, solutions, reward, trainer__strategy="ddp", **changes)
    config["rollout"]["rewards"][0]["init_args"] |= {"time_limit": 2.0}
    ending = Run(LIGHTNING, "fit", "--config", written(config, tmp_path / "c.yaml"), folder=tmp_path).end(timeout=200)
    assert (ending.code, ending.orphans) == (0, []), ending.err
    lines = records(tmp_path / "run" / "samples" / "rollout_000001.parquet")
    assert [line["reward"] for line in lines] == [1.0] * 4 + [0.25] * 4 + [0.0] * 8
    assert float(rows(tmp_path / "run")[0]["rewards/code_tests/timeouts"]) == 4
    assert gone(runs.START.strip()[:40], 1.0)


def test_solutions_are_run_before_training(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = "grpo_lightning.rewards.CodeTests"
    right, wrong = ["def f(x): return 2 * x"] * 4, ["def f(x): return 2 * x", "def f(x): return x"] * 2
    config = written(configured(tiny, tmp_path, right, path, trainer__max_steps=1), tmp_path / "right.yaml")
    assert run(capsys, "fit", "--config", config).code == 0
    config = written(configured(tiny, tmp_path, wrong, path), tmp_path / "wrong.yaml")
    assert "code_tests: 2 of 4 golds" in run(capsys, "fit", "--config", config).mistake
    config = written(configured(tiny, tmp_path, right, path), tmp_path / "column.yaml")
    assert (
        "column 'others'"
        in run(capsys, "fit", "--config", config, "--rollout.rewards.init_args.column", "others").mistake
    )
