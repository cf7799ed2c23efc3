#!/usr/bin/env bash
# Train on several hosts with torchrun. Run it on every host, with the host's own number:
#
#   export HOSTS=2 MASTER_ADDR=10.0.0.1
#   NODE_RANK=0 configs/launch/torchrun.sh fit --config configs/gsm8k_qwen2.5_0.5b.yaml    # on 10.0.0.1
#   NODE_RANK=1 configs/launch/torchrun.sh fit --config configs/gsm8k_qwen2.5_0.5b.yaml    # on the other
#
# or on all of them from one terminal, where ssh asks for no password and the checkout has the same path everywhere:
#
#   hosts=(10.0.0.1 10.0.0.2)
#   for i in "${!hosts[@]}"; do
#       ssh -tt "${hosts[i]}" "cd $PWD && . .venv/bin/activate &&
#           HOSTS=${#hosts[@]} NODE_RANK=$i MASTER_ADDR=${hosts[0]} configs/launch/torchrun.sh fit --config ..." </dev/null &
#   done
#   for i in "${!hosts[@]}"; do wait -n || kill $(jobs -p) 2>/dev/null; done   # one that fails ends all
#
# Without that last line, hosts whose network tells them nothing of a lost one wait for it as long as the strategy's
# `timeout` says, which is 30 minutes by default.
#
# What stands behind the script is a command of `python -m grpo_lightning`, the same on every host; one more
# `--ckpt_path last` goes on with the run.
#
#   HOSTS        number of hosts
#   NODE_RANK    this host's number, from 0
#   MASTER_ADDR  address or name of host 0, as the others reach it
#   MASTER_PORT  a port of host 0 that is free and open to the others; default 29500
#   DEVICES      processes on this host, the same number on all; default: one for each GPU, one on a host without
#   JOIN_TIMEOUT seconds that a host waits for the others; default 600
#   PYTHON       default python
#
# Storage: rank 0, on host 0, writes the run folder, and every rank reads the checkpoint when a run goes on. So let
# --trainer.default_root_dir lie on storage that all hosts share. Without any a run works too, but before
# `--ckpt_path last` copy checkpoints/ from host 0 to the same path on every other host; sharded checkpoints cannot do
# without. Models and data must have the same paths on every host.
#
# To stop a run and go on later: `pkill -USR1 -f -- '-m grpo_lightning'` on one of the hosts. All ranks finish the
# rollout at hand, write a checkpoint and end.
#
# Network: gloo and NCCL take the interface that leads to the host's own name. Where that is the wrong one:
# GLOO_SOCKET_IFNAME=eth1, NCCL_SOCKET_IFNAME=eth1.
set -euo pipefail

refuse() {
    echo "error: $1" >&2
    exit 2
}

number() { # NAME VALUE LEAST
    if ! [[ "$2" =~ ^[0-9]+$ ]] || (($2 < $3)); then
        refuse "$1=$2: must be a whole number, at least $3"
    fi
}

for name in HOSTS NODE_RANK MASTER_ADDR; do
    [[ -n "${!name:-}" ]] ||
        refuse "$name is not set; usage: HOSTS=2 NODE_RANK=0 MASTER_ADDR=10.0.0.1 $0 fit --config ..."
done
number HOSTS "$HOSTS" 1
number NODE_RANK "$NODE_RANK" 0
((NODE_RANK < HOSTS)) ||
    refuse "NODE_RANK=$NODE_RANK: hosts are numbered from 0, so with HOSTS=$HOSTS at most $((HOSTS - 1))"
(($#)) || refuse "no command given; usage: $0 fit --config ..."

for argument; do
    case $argument in
    --trainer.devices | --trainer.devices=* | --trainer.num_nodes | --trainer.num_nodes=*)
        refuse "$argument: set DEVICES and HOSTS instead"
        ;;
    esac
done

python=${PYTHON:-python}
command -v "$python" >/dev/null || refuse "PYTHON=$python: no such program; activate the environment, or set PYTHON"
DEVICES=${DEVICES:-$("$python" -c 'import torch; print(max(1, torch.cuda.device_count()))')}
number DEVICES "$DEVICES" 1

# Threads are counted when torch is imported. More of them than cores spin for each other's core: many times slower.
if [[ -z "${OMP_NUM_THREADS:-}" ]]; then
    cores=$(getconf _NPROCESSORS_ONLN)
    cores=$(nproc 2>/dev/null || echo "$cores") # of those, the ones that this process may use
    OMP_NUM_THREADS=$((cores > DEVICES ? cores / DEVICES : 1))
fi
export OMP_NUM_THREADS

trap '' USR1 # torchrun is to live on while its ranks finish their rollout

# Ranks follow NODE_RANK: host 0 has rank 0, which writes the run folder, now and when the run goes on.
exec "$python" -m torch.distributed.run \
    --nnodes "$HOSTS" --node-rank "$NODE_RANK" --nproc-per-node "$DEVICES" \
    --master-addr "$MASTER_ADDR" --master-port "${MASTER_PORT:-29500}" \
    --rdzv-conf "timeout=${JOIN_TIMEOUT:-600}" --max-restarts 0 \
    -m grpo_lightning "$@" --trainer.num_nodes "$HOSTS" --trainer.devices "$DEVICES"
