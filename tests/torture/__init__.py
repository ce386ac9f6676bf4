"""Long rounds of faults: ``make torture``. Each module has a ``main``; CI runs a short round."""
