"""The tables and plots of the paper, and more, as suites of runs that are stored and reported."""
