"""Local web pages of datasets, blends and training runs: what was made, and what a run saw."""
