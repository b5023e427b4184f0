"""The faults that benchmarks/mutants.py plants, by subject."""

from planted import data, going_on, learning, measuring, models, suites, times, using
from planted.mutant import Mutant

__all__ = ["MUTANTS", "Mutant"]

MUTANTS = [
    mutant
    for subject in (learning, going_on, models, measuring, data, times, using, suites)
    for mutant in subject.MUTANTS
]
