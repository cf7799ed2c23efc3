"""Workers that hang, eat memory or die; hostile answers; threads, forks and a parent that is killed."""

from __future__ import annotations

import contextlib
import gc
import operator
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest

from grpo_lightning.errors import UserError
from grpo_lightning.rewards import accuracy, math_accuracy
from grpo_lightning.rewards.isolation.pool import IsolatedPool

pytestmark = pytest.mark.integration


@pytest.fixture
def pool():
    pool = IsolatedPool(workers=2)
    yield pool
    pool.close()


def test_results_come_back_in_order(pool):
    outcomes = pool.run(operator.mul, [(n, 2) for n in range(100)])
    assert [outcome.value for outcome in outcomes] == [2 * n for n in range(100)]
    assert pool.run(operator.mul, []) == []


def test_a_late_call_is_killed_and_the_others_go_on(pool):
    pool.run(time.sleep, [(0,)])
    start = time.monotonic()
    outcomes = pool.run(time.sleep, [(60,), (0,), (60,), (0,), (0,)], time_limit=0.5)
    assert [outcome.failure for outcome in outcomes] == ["timeout", None, "timeout", None, None]
    assert time.monotonic() - start < 5
    assert _children_of(pool._template.process.pid) <= 2


def test_waiting_does_not_count_towards_the_deadline(pool):
    outcomes = pool.run(time.sleep, [(0.2,)] * 10, time_limit=0.8)  # the last one starts after 0.8 s
    assert all(outcome.failure is None for outcome in outcomes)


def test_memory_crash_and_exception_are_told_apart(pool):
    assert pool.run(operator.mul, [(b"x", 1 << 32)], memory_limit=1 << 28)[0].failure == "memory"
    assert pool.run(os._exit, [(3,)])[0].failure == "crash"
    error = pool.run(operator.truediv, [(1, 0)])[0]
    assert (error.failure, error.detail) == ("error", "ZeroDivisionError: division by zero")
    assert pool.run(operator.add, [(1, 2)])[0].value == 3


def test_a_function_that_workers_cannot_import_is_refused(pool):
    with pytest.raises(UserError, match="importable module"):
        pool.run(lambda: 1, [()])


def test_one_worker_serves_all_calls_that_ask_for_one(pool):
    pids = {pool.run(os.getpid, [()], workers=1)[0].value for _ in range(3)}
    assert len(pids) == 1
    pool.run(time.sleep, [(0.1,)] * 4)
    assert pool.run(os.getpid, [()], workers=1)[0].value in pids
    assert _children_of(pool._template.process.pid) == 1
    pid = pids.pop()
    os.kill(pid, signal.SIGKILL)  # as the kernel does where memory is short
    while _alive(pid):
        time.sleep(0.01)
    assert pool.run(operator.add, [(1, 2)], workers=1)[0].value == 3


def test_a_worker_that_is_stuck_while_idle_is_replaced(pool):
    text = "".join(map(str, range(400_000)))  # 2.3 MB, more than a socket holds
    (pid,) = (outcome.value for outcome in pool.run(_leaves_a_thread_that_holds_the_interpreter, [()], workers=1))
    time.sleep(0.5)
    start = time.monotonic()
    outcomes = pool.run(_length_and_pid, [(text,)], workers=1, time_limit=60)
    assert [(outcome.failure, outcome.value[0]) for outcome in outcomes] == [(None, len(text))]
    assert outcomes[0].value[1] != pid
    assert time.monotonic() - start < 15
    assert not _alive(pid)


def test_half_an_answer_is_none(pool):
    start = time.monotonic()
    outcomes = pool.run(_half_an_answer, [()], time_limit=60)
    assert outcomes[0].failure == "timeout"
    assert time.monotonic() - start < 20


def test_large_calls_and_answers_take_their_time(pool):
    text = "ab" * 60_000_000
    assert pool.run(operator.mul, [(text, 1)], time_limit=60)[0].value == text


def test_a_call_that_no_worker_can_take_is_not_tried_for_ever(pool):
    outcomes = pool.run(len, [("ab" * 40_000_000,), ("a",)], memory_limit=1 << 25, workers=1)
    assert [(outcome.failure, outcome.value) for outcome in outcomes] == [("crash", None), (None, 1)]


def test_a_worker_is_forked_again_for_another_memory_limit(pool):
    assert [
        pool.run(operator.mul, [(b"x", 1 << 28)], memory_limit=1 << limit)[0].failure for limit in (26, 30, 26)
    ] == [
        "memory",
        None,
        "memory",
    ]


def test_nothing_goes_on_after_nothing_but_failures(pool):
    outcomes = pool.run(os._exit, [(0,)] * 9, give_up=3)
    failures = [outcome.failure for outcome in outcomes]
    assert failures.count("crash") in (3, 4)  # two at a time
    assert failures.count("skipped") == 9 - failures.count("crash")
    outcomes = pool.run(_exit_if_odd, [(n,) for n in (0, 1, 3, 5, 7, 9)], give_up=2, workers=1)
    assert [outcome.failure for outcome in outcomes] == [None] + ["crash"] * 5


def test_an_answer_runs_no_code_here(pool):
    outcome = pool.run(complex, [(1, 2)])[0]  # pickled as a call
    assert (outcome.value, outcome.failure, outcome.detail) == (None, "error", "builtins.complex is no plain value")


def test_a_warm_up_that_fails_is_told_and_tried_again(pool):
    for _ in range(2):
        with pytest.raises(UserError, match="cannot import what it needs: ZeroDivisionError: division by zero"):
            pool.run(operator.add, [(1, 2)], warm_up=_broken_warm_up)
    assert pool.run(operator.add, [(1, 2)])[0].value == 3


def test_any_thread_may_call_and_no_signal_is_used(pool):
    handler = signal.getsignal(signal.SIGALRM)
    results = {}

    def work(name):
        results[name] = [outcome.value for outcome in pool.run(operator.add, [(name, n) for n in range(20)])]

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == {name: [name + n for n in range(20)] for name in range(4)}
    assert signal.getsignal(signal.SIGALRM) is handler


def test_math_accuracy_off_the_main_thread():
    scores = []
    thread = threading.Thread(target=lambda: scores.extend(math_accuracy([r"\boxed{\sqrt{18}}"], [r"3\sqrt{2}"])))
    thread.start()
    thread.join(60)
    assert scores == [1.0]


def test_a_forked_child_starts_workers_of_its_own(pool):
    pool.run(operator.add, [(1, 2)])
    pid = os.fork()
    if pid == 0:
        os._exit(0 if pool.run(operator.add, [(2, 3)])[0].value == 5 else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert pool.run(operator.add, [(3, 4)])[0].value == 7


def test_a_forked_child_that_closes_leaves_the_parents_workers_alone(pool):
    worker = pool.run(os.getpid, [()])[0].value
    pid = os.fork()
    if pid == 0:
        pool.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert pool.run(os.getpid, [()])[0].value == worker


def test_workers_end_once_nothing_refers_to_the_pool():
    pool = IsolatedPool(1)
    (worker,) = (outcome.value for outcome in pool.run(os.getpid, [()]))
    del pool
    gc.collect()
    assert not _alive(worker)


def test_an_exit_during_a_call_is_quiet():
    program = (
        "import contextlib, threading, time\n"
        "from grpo_lightning.rewards.isolation.pool import IsolatedPool\n"
        "pools = [IsolatedPool(1) for _ in range(4)]\n"
        "def stuck(pool):\n"
        "    with contextlib.suppress(RuntimeError):\n"
        "        pool.run(time.sleep, [(60,)])\n"
        "for pool in pools:\n"
        "    pool.run(len, [('a',)])\n"
        "    threading.Thread(target=stuck, args=(pool,), daemon=True).start()\n"
        "time.sleep(0.5)\n"
        "raise SystemExit(7)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (7, "")


@pytest.mark.parametrize("ending", ["exit", "kill"])
def test_no_process_outlives_its_owner(ending):
    program = (
        "import operator, os, signal, threading, time\n"
        "from grpo_lightning.rewards.isolation.pool import IsolatedPool\n"
        "pool = IsolatedPool(2)\n"
        "pool.run(operator.add, [(1, 2), (3, 4)])\n"
        "print(pool._template.process.pid, flush=True)\n"
        "stuck = lambda: pool.run(time.sleep, [(60,), (60,)], time_limit=60)\n"
        "threading.Thread(target=stuck, daemon=True).start()\n"
        "time.sleep(0.5)\n" + ("os.kill(os.getpid(), signal.SIGKILL)\n" if ending == "kill" else "")
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=60)
    server = int(done.stdout)
    deadline = time.monotonic() + 10
    while (_alive(server) or _in_session(server)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _alive(server)
    assert not _in_session(server)


@pytest.mark.parametrize("what", ["import", "worker"])
def test_a_killed_owner_is_noticed_in_the_middle_of(what):
    here = "tests.integration.test_reward_isolation"
    calls = {
        "import": "pool.run(len, [('a',)], warm_up=here._sleeps)",
        "worker": (
            "pool.run(here._leaves_a_thread_that_holds_the_interpreter, [()], workers=1)\n"
            "time.sleep(0.5)\n"
            "pool.run(len, [('ab' * 2_000_000,)], workers=1)"
        ),
    }
    program = (
        "import os, signal, threading, time\n"
        f"import {here} as here\n"
        "from grpo_lightning.rewards.isolation.pool import IsolatedPool\n"
        "pool = IsolatedPool(1)\n"
        "thread = threading.Thread(target=pool.run, args=(len, [('a',)]))\n"  # whose end is not the process's
        "thread.start()\n"
        "thread.join()\n"
        "print(pool._template.process.pid, pool.run(os.getpid, [()])[0].value, flush=True)\n" + calls[what]
    )
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    server, _ = (int(pid) for pid in owner.stdout.readline().split())
    time.sleep(2.0)
    owner.kill()
    owner.communicate()
    deadline = time.monotonic() + 2
    while (_alive(server) or _in_session(server)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (_alive(server), _in_session(server)) == (False, 0)


def test_workers_never_import_torch(pool):
    assert pool.run(_heavy_modules, [()], warm_up=accuracy.symbolic.warm_up)[0].value == []


HOSTILE = [
    r"\boxed{9^{9^{9^{9}}}}",
    r"\boxed{3000000!}",
    r"\boxed{\sum_{k=1}^{20000}k!}",
    r"\boxed{\binom{10^{9}}{5\cdot 10^{8}}}",
    r"\boxed{" + "(" * 2000 + "8" + ")" * 2000 + "}",
    r"\boxed{" + "{" * 2000 + "8" + "}" * 2000 + "}",
    "1 " * 60_000,
    r"\boxed{" + "9" * 100_000 + "}",
]


def test_hostile_answers_score_zero_in_time(monkeypatch):
    limit = 1.0
    pool = IsolatedPool(workers=2)
    run = pool.run
    monkeypatch.setattr(accuracy.SHARED_POOL, "run", lambda *a, **k: run(*a, **k, time_limit=limit))
    math_accuracy([r"\boxed{\sqrt{4}}"], ["2"])  # the first call starts the processes
    completions = [HOSTILE[i // 32] if i % 32 == 0 else rf"\boxed{{\sqrt{{{(i % 8) ** 2}}}}}" for i in range(256)]
    start = time.monotonic()
    scores = math_accuracy(completions, ["7"] * 256)
    elapsed = time.monotonic() - start
    pool.close()
    assert scores == [1.0 if i % 8 == 7 else 0.0 for i in range(256)]
    assert elapsed < limit * 8 / 2 + 5


def _leaves_a_thread_that_holds_the_interpreter():
    def match():
        time.sleep(0.2)
        re.match(r"(a+)+$", "a" * 40 + "b")

    threading.Thread(target=match, daemon=True).start()
    return os.getpid()


def _length_and_pid(text):
    return len(text), os.getpid()


def _half_an_answer():
    for descriptor in range(3, 30):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as channel:
            channel.send(struct.pack("!Q", 1 << 40) + b"abc")
    time.sleep(60)


def _sleeps():
    time.sleep(60)


def _exit_if_odd(number):
    if number % 2:
        os._exit(0)


def _broken_warm_up():
    return 1 / 0


def _heavy_modules():
    return [name for name in ("torch", "lightning", "vllm", "transformers") if name in sys.modules]


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _stats():
    for entry in os.listdir("/proc"):
        if entry.isdigit() and _alive(entry):
            try:
                with open(f"/proc/{entry}/stat") as file:
                    yield file.read().rpartition(")")[2].split()
            except FileNotFoundError:
                continue


def _in_session(leader):
    """Processes of the session that the server leads: itself and its workers."""
    return sum(int(fields[3]) == leader for fields in _stats())


def _children_of(pid):
    return sum(int(fields[1]) == pid for fields in _stats())
