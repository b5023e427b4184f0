"""A world whose true preferences and exposure probabilities are known, and what can be proven in it."""
