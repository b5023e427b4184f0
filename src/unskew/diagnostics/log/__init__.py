"""`unskew inspect`: statistics of a log and what follows from them."""
