#!/usr/bin/env bash
# Slurm: Ray on all nodes of the job, the command on the first one, Ray stopped at the end.
#   sbatch cluster/slurm.sh adapt --source /shared/source --target /shared/target --out /shared/runs/1
# Edit: the #SBATCH lines, and VENV below. Paths must be on a filesystem that all nodes mount. A job that its
# time limit cut off goes on when it is submitted again.
#SBATCH --job-name=ray-adaplr
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-node=1
#SBATCH --mem=32G
#SBATCH --time=24:00:00
#SBATCH --exclusive
#SBATCH --output=ray-adaplr-%j.log
set -euo pipefail

VENV=${VENV:-$HOME/ray-adaplr/.venv}
PATH="$VENV/bin:$PATH"

# The owner's token, made once: other users of these machines cannot reach the cluster.
RAY_AUTH_MODE=token
RAY_AUTH_TOKEN_PATH=${RAY_AUTH_TOKEN_PATH:-$HOME/.ray/auth_token}
RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=300 # the default of 30 s is short for a cold network filesystem
export PATH RAY_AUTH_MODE RAY_AUTH_TOKEN_PATH RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT
if [[ ! -s $RAY_AUTH_TOKEN_PATH ]]; then
  (umask 077 && mkdir -p "$(dirname "$RAY_AUTH_TOKEN_PATH")" &&
    python -c 'import secrets; print(secrets.token_hex(32), end="")' >"$RAY_AUTH_TOKEN_PATH")
fi

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address="$head:6379" # --exclusive above: no other Ray on these nodes

ran=$(mktemp -p "$HOME" .ray-adaplr-ran.XXXXXX)
trap 'rm -f "$ran"' EXIT

# shellcheck disable=SC2016 # $0 and $@ are the inner shell's
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" \
  ray symmetric-run --address "$address" --min-nodes "$SLURM_JOB_NUM_NODES" \
  --num-cpus="${SLURM_CPUS_PER_TASK:-1}" --num-gpus="${SLURM_GPUS_ON_NODE:-0}" --disable-usage-stats -- \
  env RAY_ADDRESS="$address" bash -c 'echo ran >"$0"; exec ray-adaplr "$@"' "$ran" "$@"

# symmetric-run ends with 0 when Ray could not start
if [[ ! -s $ran ]]; then
  echo "Ray did not start on the first node; its messages are above" >&2
  exit 1
fi
