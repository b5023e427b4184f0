"""The faults that benchmarks/mutants.py plants, by subject."""

from planted import data, learning, measuring
from planted.mutant import Mutant

__all__ = ["MUTANTS", "Mutant"]

MUTANTS = [*learning.MUTANTS, *measuring.MUTANTS, *data.MUTANTS]
