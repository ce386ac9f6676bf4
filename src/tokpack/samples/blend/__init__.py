"""Weighted blends: what is asked for, the plan, and the datasets that it opens."""
