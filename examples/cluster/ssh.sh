#!/usr/bin/env bash
# Shards on machines with ssh access and a common disk or store: each makes its share, one by one.
#   ssh.sh PREFIX HOST...
set -euo pipefail

prefix=$1
shift
count='import json, sys; print(json.load(sys.stdin)["shards"])'
shards=$({ tokpack shards status "$prefix" --json || true; } | python3 -c "$count")
hosts=("$@")
for i in "${!hosts[@]}"; do
  mine=$(seq -s, "$i" "${#hosts[@]}" $((shards - 1)))
  [[ -z $mine ]] && continue
  ssh -n -o BatchMode=yes "${hosts[$i]}" tokpack encode --plan "$(printf %q "$prefix")" --shard "$mine" --quiet &
done
wait
tokpack shards status "$prefix"
