"""Which tokens sample k has: the stateless order, packings, and orders by name."""
