#!/usr/bin/env bash
# Train with SLURM on one host or many: one task is one rank on one GPU. It goes on by itself when the time is over,
# when the job is preempted, and when a host fails.
#
#   sbatch configs/launch/slurm.sh fit --config configs/gsm8k_qwen2.5_0.5b.yaml --trainer.strategy fsdp2
#   sbatch --nodes=4 --time=48:00:00 configs/launch/slurm.sh fit ...        # sbatch's options win over those below
#
# Submit it from the checkout with the environment activated. What stands behind the script is a `fit` command of
# `python -m grpo_lightning`.
#
#   RUN_FOLDER  on storage that all hosts share; default runs/<job name>-<job id>. A job that is given the folder of an
#               earlier one goes on with that run.
#   PYTHON      default python
#
# How it goes on. 300 seconds before the time limit SLURM signals this script, which passes it on to the ranks: they
# finish the rollout at hand, and an evaluation if one is due or going on, write a checkpoint and end; then the job is
# queued again. A preempted job is queued again by SLURM too. Its ranks get SIGTERM, write a checkpoint after the
# rollout at hand, or of the one before if it takes longer than 20 s, and end within 28 s (`grace_seconds` of
# `grpo_lightning.callbacks.stop_signal.StopOnSignal`); shards can only wait for the rollout's end. One whose host
# failed loses what came after its last checkpoint (every 50 rollouts and after each evaluation). Started again, the
# same command goes on from the newest checkpoint. If a rollout takes longer, give it more time: sbatch
# --signal=B:USR1@1200. A job that is not ready at its limit ends there; `RUN_FOLDER=runs/<job name>-<job id> sbatch
# ...` goes on with it.
#
#SBATCH --job-name=grpo
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --signal=B:USR1@300
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
#
# One task per GPU, and every task sees all GPUs of its host: not --gpus-per-task, which hides the others.
# On hosts without GPUs: sbatch --gpus-per-node=0 --ntasks-per-node=2.
set -euo pipefail

refuse() {
    echo "error: $1" >&2
    exit 2
}

[[ -n "${SLURM_JOB_ID:-}" ]] || refuse "this is no SLURM job; submit it: sbatch $0 fit --config ..."
[[ -n "${SLURM_NTASKS_PER_NODE:-}" ]] || refuse "the job has no --ntasks-per-node; give it a host's number of GPUs"
[[ "${1:-}" == fit ]] || refuse "give a fit command: sbatch slurm.sh fit --config ...; the others need no such script"
for argument; do
    case $argument in
    --trainer.default_root_dir | --trainer.default_root_dir=*)
        refuse "$argument: set RUN_FOLDER instead, so that a job that is queued again finds its checkpoints"
        ;;
    esac
done

run=${RUN_FOLDER:-runs/${SLURM_JOB_NAME:-grpo}-$SLURM_JOB_ID}
has_checkpoint() { compgen -G "$run/checkpoints/*.ckpt" >/dev/null; }

arguments=("$@" --trainer.num_nodes "$SLURM_JOB_NUM_NODES" --trainer.devices "$SLURM_NTASKS_PER_NODE"
    --trainer.default_root_dir "$run")
if has_checkpoint; then
    arguments+=(--ckpt_path last)
fi

MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR
# Threads are counted when torch is imported. More of them than cores spin for each other's core: many times slower.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}"
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}" # srun no longer takes it from the job

# In the background: the shell hears of a signal only while it waits. srun passes SIGUSR1 on to every rank. If one rank
# fails, the others would wait for it: end them.
srun --kill-on-bad-exit=1 "${PYTHON:-python}" -u -m grpo_lightning "${arguments[@]}" &
step=$!
stopping=
interrupted=
trap 'stopping=yes interrupted=yes; kill -USR1 "$step" || true' USR1
while
    code=0
    wait "$step" || code=$?
    [[ -n "$interrupted" ]] # by the signal, which ends the waiting and not the step
do
    interrupted=
done

if [[ -z "$stopping" || $code != 0 ]]; then
    exit "$code"
fi
has_checkpoint || refuse "stopped by the time limit, but there is no checkpoint in $run/checkpoints to go on from"
echo "Time is over; queueing the job again to go on from $run/checkpoints."
scontrol requeue "$SLURM_JOB_ID"
