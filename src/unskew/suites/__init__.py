"""Benchmark suites: the experiments of the paper, and more, as grids of runs that are stored and reported."""
