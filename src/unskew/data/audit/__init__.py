"""Leakage checks: whether a model could have seen the future, and whether a feature gives the label away."""
