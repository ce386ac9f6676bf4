#!/usr/bin/env bash
# Shards as a Slurm array: task i makes shard i and, if there are more shards than tasks, i + n, ...
#
#   tokpack shards plan 's3://text/*.jsonl.zst' -o s3://tokens/pile
#   sbatch --array=0-199 slurm.sh s3://tokens/pile
#   tokpack shards status s3://tokens/pile && tokpack shards commit s3://tokens/pile
#
#SBATCH --job-name=tokpack
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=16
#SBATCH --time=04:00:00
#SBATCH --requeue
set -euo pipefail

exec tokpack encode --plan "$1" --shard auto --workers "${SLURM_CPUS_PER_TASK:-1}" --log-interval 60s
