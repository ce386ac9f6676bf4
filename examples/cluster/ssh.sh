#!/usr/bin/env bash
# Shards on some machines that one can log in to, and that see the same disk or store: each takes
# its share, one after the other.  usage: ssh.sh PREFIX HOST...
set -euo pipefail

prefix=$1
shift
count='import json, sys; print(json.load(sys.stdin)["shards"])'
shards=$({ tokpack status "$prefix" --json || true; } | python3 -c "$count")
hosts=("$@")
for i in "${!hosts[@]}"; do
  mine=$(seq -s, "$i" "${#hosts[@]}" $((shards - 1)))
  [[ -z $mine ]] && continue
  ssh -n -o BatchMode=yes "${hosts[$i]}" tokpack encode --plan "$(printf %q "$prefix")" --shard "$mine" --quiet &
done
wait
tokpack status "$prefix"
