"""What tests share: builders of inputs, runners of commands, and slow twins of fast code."""
