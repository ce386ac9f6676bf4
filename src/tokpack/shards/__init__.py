"""A dataset in shards, made by many machines: a plan, shards that anybody makes, a commit."""
