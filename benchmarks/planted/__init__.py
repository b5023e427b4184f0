"""The faults that benchmarks/mutants.py plants, by subject."""

from planted import data, learning, live, measuring, models, resuming, suites, times, using
from planted.mutant import Mutant

__all__ = ["MUTANTS", "Mutant"]

MUTANTS = [
    mutant
    for subject in (learning, resuming, models, measuring, data, times, using, suites, live)
    for mutant in subject.MUTANTS
]
