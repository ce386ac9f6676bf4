"""A thin GPT trainer on tokpack's blends. Begin to read in `loop`."""
