"""The faults that benchmarks/mutants.py plants, by subject."""

from planted import data, going_on, learning, live, measuring, models, suites, times, using
from planted.mutant import Mutant

__all__ = ["MUTANTS", "Mutant"]

MUTANTS = [
    mutant
    for subject in (learning, going_on, models, measuring, data, times, using, suites, live)
    for mutant in subject.MUTANTS
]
