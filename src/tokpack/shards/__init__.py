"""A dataset in shards, made by many machines: a plan, shards that anybody makes, a commit."""

SHARD_BYTES = 64 * 10**9  # of text in a shard, where nothing else is asked for
