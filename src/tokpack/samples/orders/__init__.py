"""The tokens of sample k: the stateless order, packings, and orders by name."""
