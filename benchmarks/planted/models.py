"""Faults of settings, of the registry of models, and of what models count before they learn."""

from planted.mutant import of

MUTANTS = [
    *of(
        "core/config.py",
        "core/test_config.py",
        ("a lower bound may be reached", "and value > self.above", "and value >= self.above"),
        ("infinity is within", "math.isfinite(value) and self.least", "self.least"),
        ("what may be None has no range", "yield from _notes(part)", "yield from ()"),
        ("settings within settings have no ranges", "            check(value)\n", "            pass\n"),
    ),
    *of(
        "core/config.py",
        "core/test_config.py",
        ("the second of one name is the model", "if other is not None and (", "if False and ("),
        (
            "a class cannot be defined again",
            "(other.__module__, other.__qualname__) != (kind.__module__, kind.__qualname__)",
            "True",
        ),
    ),
    *of(
        "api/create.py",
        "core/test_config.py",
        ("the first preset counts", "found |= presets[name]", "found = presets[name] | found"),
        (
            "a preset overrides what is given",
            "preset_of(kind, preset) | (settings or {})",
            "(settings or {}) | preset_of(kind, preset)",
        ),
    ),
    *of(
        "models/itemknn.py",
        "models/test_itemknn.py",
        ("who has an item twice counts twice", "pairs = np.unique(", "pairs = np.sort("),
        ("rare items are neighbours", "train[train] = ~rare[split.log.item[train]]", "pass"),
        ("popularity decides, not only ties", "TIE * counts", "counts"),
    ),
    *of(
        "models/ubpr.py",
        "models/test_ubpr.py",
        (
            "propensities are one",
            "self.theta_I.copy_(popularity_propensity(counts_I, self.config.exponent, self.config.clip)[0])",
            "pass",
        ),
    ),
    *of(
        "models/dice.py",
        "models/test_dice.py",
        (
            "quantiles are counts",
            'counts_I if self.config.popularity == "counts" else quantiles(counts_I)',
            "counts_I",
        ),
    ),
    *of(
        "models/debiased.py",
        "models/test_debiased.py",
        ("the backbone counts nothing", "self.backbone.fit_statistics(split)", "pass"),
        (
            "the estimator counts nothing",
            "self.backbone.fit_statistics(split)\n        self.correction.fit_statistics(split)\n",
            "self.backbone.fit_statistics(split)\n",
        ),
    ),
    *of(
        "propensity/estimators.py",
        "propensity/test_propensity_weights.py",
        (
            "frequencies of items are those of users",
            "(self.item_share, split.item_counts)",
            "(self.item_share, split.user_counts)",
        ),
        (
            "the unknown are as frequent as the first",
            "return fractions[ids.masked_fill(~known, 0)] * known",
            "return fractions[ids.masked_fill(~known, 0)]",
        ),
    ),
]
