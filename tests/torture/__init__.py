"""Long rounds, of faults and of ids: ``make torture``. Each has a ``main``; CI runs short ones."""
