"""A thin GPT trainer on tokpack's blends. `loop` is where to begin to read."""
