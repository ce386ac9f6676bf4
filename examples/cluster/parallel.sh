#!/usr/bin/env bash
# Missing shards with GNU parallel, on this machine or, with --sshlogin, on others.
#   parallel.sh PREFIX [flags of parallel]
set -euo pipefail

prefix=$1
shift
{ tokpack shards status "$prefix" --json || true; } |
  python3 -c 'import json, sys; print(*json.load(sys.stdin)["missing"], sep="\n")' |
  parallel --halt soon,fail=3 "$@" tokpack encode --plan "$prefix" --shard {} --quiet
tokpack shards status "$prefix"
