"""The launch scripts: torchrun on two "hosts" (network namespaces), SLURM with stand-ins for its commands."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests.integration.command_line import REPOSITORY, grpo, rows, start, untimed, written

pytestmark = pytest.mark.integration

LAUNCH = REPOSITORY / "configs" / "launch"
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHON": sys.executable, "PYTHONPATH": str(REPOSITORY)}
STEPS = 5


def namespaces() -> list[str]:
    """The command that opens a network namespace, and what must follow."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *user, "--net"]


def without_namespaces() -> str:
    """Why this machine has no network namespaces; empty if it has."""
    missing = [tool for tool in ("unshare", "nsenter", "ip") if shutil.which(tool) is None]
    if missing:
        return f"{missing[0]} is not installed (Debian and Ubuntu: apt-get install iproute2 util-linux)"
    cable = ["ip", "link", "add", "cable0", "type", "veth", "peer", "name", "cable1"]
    done = subprocess.run([*namespaces(), *cable], capture_output=True, text=True, check=False)
    return f"no network namespaces here: {done.stderr.strip()}" if done.returncode else ""


@contextmanager
def running(command: list[str], log: Path, **environment: str) -> Iterator[subprocess.Popen]:
    """A command in a process group of its own, of which nothing is left afterwards."""
    with log.open("a") as output:
        process = subprocess.Popen(
            command, cwd=REPOSITORY, env=ENVIRONMENT | environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield process
    finally:
        if group_lives(process):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def ends_alone(process: subprocess.Popen, *, seconds: float = 10) -> bool:
    """True if everything that the command has started ends with it, or shortly after."""
    end = time.monotonic() + seconds
    while group_lives(process) and time.monotonic() < end:
        time.sleep(0.1)
    return not group_lives(process)


def group_lives(process: subprocess.Popen) -> bool:
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


def on_two_hosts(folder: Path, *arguments: str) -> tuple[int, list[str]]:
    """Runs torchrun.sh on both; exit code and what each host said. Nothing may be left running."""
    folder.mkdir(exist_ok=True)
    script = str(REPOSITORY / "tests" / "integration" / "two_hosts.sh")
    command = [*namespaces(), script, str(folder), str(LAUNCH / "torchrun.sh"), *arguments]
    with running(command, folder / "script.log") as process:
        code = process.wait(timeout=300)
        assert ends_alone(process)
    return code, [(folder / name).read_text() for name in ("host0.log", "host1.log")]


def weights(run: Path) -> dict[str, torch.Tensor]:
    state = torch.load(run / "checkpoints" / "last.ckpt", map_location="cpu", weights_only=True)
    return state["state_dict"]


def assert_same_run(run: Path, other: Path, *, tolerance: float = 0.0) -> None:
    """Steps in one piece, equal figures and equal weights."""
    assert [row["step"] for row in rows(run)] == [str(step) for step in range(1, STEPS + 1)]
    if tolerance == 0:
        assert untimed(run) == untimed(other)
    for ours, theirs in zip(untimed(run), untimed(other), strict=True):
        for name in ("reward", "grad_norm", "entropy"):
            assert float(ours[name]) == pytest.approx(float(theirs[name]), rel=tolerance, abs=tolerance), name
    ours, theirs = weights(run), weights(other)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=tolerance)
    assert not list(run.glob("previous-*"))


@pytest.fixture(scope="module")
def config(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("config")
    return written(grpo(tiny, folder / "unused", trainer__max_steps=STEPS), folder / "config.yaml")


@pytest.fixture(scope="module")
def on_one_host(config: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of two ranks that Lightning starts on one host."""
    run = tmp_path_factory.mktemp("one_host") / "run"
    options = ("--trainer.devices=2", "--trainer.strategy=ddp", f"--trainer.default_root_dir={run}")
    done = start("fit", "--config", config, *options)
    assert done.code == 0, done.err
    return run


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_two_hosts_train_and_go_on_like_one(config: str, on_one_host: Path, tmp_path: Path, strategy: str) -> None:
    if reason := without_namespaces():
        pytest.skip(reason)
    run = tmp_path / "run"
    command = ["fit", "--config", config, "--trainer.strategy", strategy, "--trainer.default_root_dir", str(run)]
    code, said = on_two_hosts(tmp_path / "first", *command, "--trainer.max_steps=3")
    assert code == 0, said
    code, said = on_two_hosts(tmp_path / "second", *command, "--ckpt_path=last")
    assert code == 0, said
    assert "Restored all states" in said[0]
    assert_same_run(run, on_one_host, tolerance=0.0 if strategy == "ddp" else 1e-6)


# SLURM's part on one machine. Each task claims to be alone on a host of its own.
SRUN = """#!/usr/bin/env bash
while [[ "$1" == --* ]]; do shift; done
for ((task = 0; task < SLURM_NTASKS; task++)); do
    SLURM_PROCID=$task SLURM_NODEID=$task SLURM_LOCALID=0 "$@" &
    tasks[task]=$!
done
trap 'kill -USR1 "${tasks[@]}"' USR1
code=0
for task in "${tasks[@]}"; do
    while kill -0 "$task" 2>/dev/null; do
        last=0
        wait "$task" || last=$?
    done
    ((last > code)) && code=$last
done
exit "$code"
"""
SCONTROL = """#!/usr/bin/env bash
case "$1 $2" in
"show hostnames") echo 127.0.0.1 ;;
requeue*) echo "$2" >>"$REQUEUED" ;;
esac
"""


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    """The environment of a job of two tasks on two hosts."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, script in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tools / name).write_text(script)
        (tools / name).chmod(0o755)
    return {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "REQUEUED": str(tmp_path / "requeued"),
        "SLURM_JOB_ID": str(10000 + os.getpid() % 10000),  # the port is made of it
        "SLURM_JOB_NAME": "grpo",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_NNODES": "2",
        "SLURM_JOB_NODELIST": "host[0-1]",
        "SLURM_NTASKS": "2",
        "SLURM_NTASKS_PER_NODE": "1",
        "SLURM_CPUS_PER_TASK": "1",
        "SLURM_PROCID": "0",
        "SLURM_NODEID": "0",
        "SLURM_LOCALID": "0",
    }


def test_a_job_at_its_time_limit_is_queued_again_and_goes_on(
    config: str, on_one_host: Path, tmp_path: Path, slurm: dict[str, str]
) -> None:
    run, log, requeued = tmp_path / "run", tmp_path / "job.log", tmp_path / "requeued"
    job = [str(LAUNCH / "slurm.sh"), "fit", "--config", config, "--trainer.strategy=ddp"]
    slurm["RUN_FOLDER"] = str(run)
    with running(job, log, **slurm) as process:
        end = time.monotonic() + 200
        while "16 prompts" not in log.read_text():  # the data is read, the model is not
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        process.send_signal(signal.SIGUSR1)
        assert process.wait(timeout=200) == 0, log.read_text()
        assert ends_alone(process)
    assert requeued.read_text().split() == [slurm["SLURM_JOB_ID"]]
    done = len(rows(run))
    assert 1 <= done < STEPS
    assert (run / "checkpoints" / "last.ckpt").readlink() == Path(f"step{done}.ckpt")
    assert not (run / "hf").exists()
    with running(job, log, **slurm) as process:
        assert process.wait(timeout=200) == 0, log.read_text()
        assert ends_alone(process)
    assert len(requeued.read_text().split()) == 1
    assert (run / "hf").exists()
    assert_same_run(run, on_one_host)


def refused(script: str, *arguments: str, **environment: str) -> str:
    """The one line of a script that does not start."""
    bare = {name: value for name, value in ENVIRONMENT.items() if not name.startswith("SLURM")}
    done = subprocess.run(
        [str(LAUNCH / script), *arguments], env=bare | environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    return line.removeprefix("error: ")


def test_what_is_missing_is_named() -> None:
    hosts = {"HOSTS": "2", "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    for name in hosts:
        others = {key: value for key, value in hosts.items() if key != name}
        assert refused("torchrun.sh", "fit", **others).startswith(f"{name} is not set")
    assert refused("torchrun.sh", "fit", **hosts | {"HOSTS": "two"}).startswith("HOSTS=two: must be a whole number")
    assert "at most 1" in refused("torchrun.sh", "fit", **hosts | {"NODE_RANK": "2"})
    assert "DEVICES=0" in refused("torchrun.sh", "fit", **hosts, DEVICES="0")
    assert refused("torchrun.sh", **hosts).startswith("no command given")
    assert "no such program" in refused("torchrun.sh", "fit", **hosts | {"PYTHON": "no_python"})
    assert "no SLURM job" in refused("slurm.sh", "fit")
    assert "RUN_FOLDER" in refused(
        "slurm.sh", "fit", "--trainer.default_root_dir=runs", SLURM_JOB_ID="1", SLURM_NTASKS_PER_NODE="1"
    )
