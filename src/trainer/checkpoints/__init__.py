"""Weights on disk: a run's checkpoints, Hugging Face's folders, GPT-NeoX's layer files."""
