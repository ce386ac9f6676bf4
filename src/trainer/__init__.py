"""A thin GPT trainer on tokpack's blends. Not written yet: there is nothing to import here."""
