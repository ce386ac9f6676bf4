"""Weighted blends: the request, the plan, and the datasets that it opens."""
