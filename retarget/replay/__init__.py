"""Commands replayed in simulation, measured and judged."""
