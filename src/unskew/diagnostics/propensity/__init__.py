"""`unskew propensity`: the health of the propensity weights."""
