"""Propensities: how likely it was that a pair was shown at all; estimators of it, and how good they are."""
