"""tokpack.trainer: a thin GPT trainer on tokpack's blends. Not written yet; nothing to import here."""
