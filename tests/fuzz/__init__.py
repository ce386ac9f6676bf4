"""Coverage-guided fuzzing: ``make fuzz``. The corpus is replayed by the tests."""
