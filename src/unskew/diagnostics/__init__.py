"""How biased a log is, and whether estimated propensities can be trusted; each with its page."""
