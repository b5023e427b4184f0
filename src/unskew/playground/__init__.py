"""A shop that lives: simulated users react to recommended lists, and a page shows what debiasing changes."""
