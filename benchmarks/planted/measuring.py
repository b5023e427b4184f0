"""Faults of what is measured: tests, ranks, metrics, intervals."""

from planted.mutant import of

MUTANTS = [
    *of(
        "evaluate.py",
        "test_ranks.py test_evaluate.py",
        ("a constant scorer is first", "((scores == mine[:, None]).sum(1) - 1) / 2", "0"),
        (
            "past items are hidden where they are kept",
            "if not split.repeats:\n        view",
            "if split.repeats:\n        view",
        ),
        (
            "the first item that does not exist yet is a candidate",
            ">= existing[:, None]] = -np.inf",
            "> existing[:, None]] = -np.inf",
        ),
        (
            "a mean forgets the weights",
            "float((self.values[metric] * weights).sum() / weights.sum())",
            "float(self.values[metric].mean())",
        ),
        ("the target may be drawn against itself", "others[drawn == target[:, None]] = -np.inf", "pass"),
        ("the area under the curve counts the target", "1 - (ranks - 1) / size", "1 - ranks / size"),
        ("a tie in a visit is a loss", "+ 0.5 * (theirs == mine[row])", "+ 1.0 * (theirs == mine[row])"),
    ),
    *of(
        "metrics.py",
        "test_metrics.py",
        (
            "the discount is off by one place",
            "np.log2(np.maximum(rank, 1) + 1)",
            "np.log2(np.maximum(rank, 1) + 2)",
        ),
    ),
    *of(
        "segments.py",
        "test_evaluate.py",
        (
            "an event counts at its own time",
            'np.searchsorted(times, time, "left")',
            'np.searchsorted(times, time, "right")',
        ),
        (
            "new users are called known",
            '"user": Segment(("known", "new"), (~known_user)',
            '"user": Segment(("known", "new"), (known_user)',
        ),
    ),
    *of(
        "significance.py",
        "test_significance.py",
        ("few seeds are not widened", "math.sqrt(seeds / (seeds - 1)) if seeds > 1", "1.0 if seeds > 1"),
        (
            "each model has users of its own",
            "np.random.default_rng([seed, 17]), np",
            "np.random.default_rng([seed, 17, stream, 1]), np",
        ),
        ("Holm is Bonferroni", "(len(p_values) - place) * p", "len(p_values) * p"),
        (
            "Holm is not monotone",
            "max(highest, min(1.0, (len(p_values) - place) * p))",
            "min(1.0, (len(p_values) - place) * p)",
        ),
        ("one seed has a p-value", "if min(seeds) > 1:\n        tail", "if max(seeds) > 0:\n        tail"),
        ("the test is one-sided", "2 * float(tail + 1 / draws)", "float(tail + 1 / draws)"),
        ("other rows are compared", "not _same_rows(first, each) or ", ""),
        ("means forget the weights", "np.bincount(of, values * weights_U)", "np.bincount(of, values)"),
        ("seeds are not drawn", "chosen = of_seeds.integers(0, seeds, seeds)", "chosen = np.arange(seeds)"),
    ),
    *of(
        "data/held_out.py",
        "test_held_out.py test_shown.py",
        (
            "balanced is ordinary",
            "1 / np.bincount(log.item[rows], minlength=len(log.items))[log.item[rows]]",
            "once",
        ),
        (
            "weighted is by the propensity itself",
            "rows, 1 / np.asarray(log.propensity[rows], np.float64)",
            "rows, np.asarray(log.propensity[rows])",
        ),
        ("all rows are randomised", "log.exposed[rows] == 1", "log.exposed[rows] >= 0"),
        (
            "weights come from the sample",
            "rows, weights = rows[chosen], weights[chosen]",
            "rows, weights = rows[chosen], weights[: len(chosen)]",
        ),
        (
            "what was not there yet is company",
            "candidate = item < log.audiences.existing(time)",
            "candidate = item >= 0",
        ),
        (
            "the effective size is by the largest weight",
            "weights.sum() ** 2 / (weights**2).sum()",
            "weights.sum() / weights.max()",
        ),
        (
            "what was not clicked is a positive",
            "positive = split.mask(part) & (log.label == 1)",
            "positive = split.mask(part)",
        ),
        (
            "rows of another test count",
            "self.weights[order][place], 0.0)",
            "self.weights[order][place], 1.0)",
        ),
        ("a part ends late", "positive &= log.time < until", "positive &= log.time <= until"),
        (
            "own past items are company",
            "candidate &= ~log.had_before(log.user[rows[which]], item, time)",
            "pass",
        ),
    ),
    *of(
        "catalog.py",
        "test_catalog.py",
        (
            "the patch of a block stops one tick early",
            "np.searchsorted(moments, time[-1])])",
            "np.searchsorted(moments, time[-1] - 1)])",
        ),
    ),
]
