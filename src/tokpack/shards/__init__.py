"""A dataset in shards, made by many machines: a plan, the shards, a commit."""

SHARD_BYTES = 64 * 10**9  # of text in a shard, by default
