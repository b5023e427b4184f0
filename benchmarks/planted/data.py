"""Faults of the way of the data: past and future, splits, windows, batches, negatives."""

from planted.mutant import of

MUTANTS = [
    *of(
        "data/log/views.py",
        "data/test_views.py data/test_sequences.py "
        "data/test_batch.py data/test_negatives.py data/test_samplers.py",
        (
            "what happens now is past",
            "self._index.wanted(entity, time))",
            'self._index.wanted(entity, time), "right")',
        ),
        (
            "what happens now is past in large look-ups",
            "self._index.keys, wanted[order])",
            'self._index.keys, wanted[order], "right")',
        ),
        ("a window begins with another user's events", "np.maximum(start, end - newest)", "end - newest"),
        (
            "what appears now exists",
            'np.asarray(time, np.int64), "left")',
            'np.asarray(time, np.int64), "right")',
        ),
        (
            "a moment goes on into the next entity",
            "new[self.offsets[:-1][np.diff(self.offsets) > 0]] = True",
            "pass",
        ),
        (
            "shared windows cut too little",
            "np.maximum(-(-(end - start - length) // half), 0)",
            "np.maximum((end - start - length) // half, 0)",
        ),
        (
            "padding is on the other side",
            "(start[:, None] if right else",
            "(start[:, None] if not right else",
        ),
    ),
    *of(
        "data/log/split.py",
        "data/test_split.py data/test_held_out.py",
        (
            "first appearances are targets",
            "(first[self.log.item] >= self.log.time)",
            "(first[self.log.item] > self.log.time)",
        ),
        (
            "the very first moment is left out",
            "(self.log.time > first.min())",
            "(self.log.time >= first.min())",
        ),
        ("repeats are targets where they are hidden", "wanted &= ~self.log.repeated", "pass"),
        (
            "training goes on into validation",
            "return np.asarray(time < self.train_end)",
            "return np.asarray(time <= self.train_end)",
        ),
        ("who has just enough is rare", "rare = counts < self.min_count", "rare = counts <= self.min_count"),
        ("counts know the future", "log.time[:positives] < train_end)", "log.time[:positives] < valid_end)"),
        (
            "repeats of the whole log decide",
            "log.repeated[:positives][train].mean()",
            "log.repeated[:positives].mean()",
        ),
        ("a border is not the nearest", "0 < first and wanted - first <= last - wanted", "0 < first"),
    ),
    *of(
        "data/batches/samplers.py",
        "data/test_sequences.py",
        (
            "an event is a target of two windows",
            "(event >= histories.first[:, None]) & self.wanted[event]",
            "self.wanted[event]",
        ),
        (
            "repeats are targets where they are hidden",
            "& self.wanted[event] & (event != PAD)",
            "& (event != PAD)",
        ),
        ("ties are a past", "view.moments[event] - start[:, None]", "event - start[:, None]"),
        ("a cut parts a moment", "cut = np.where(moment == first, first, after)", "cut = first"),
        ("windows do not overlap", "np.where(single & (overlap > 0), max(length, overlap), overlap)", "0"),
        ("what is left over is forgotten", "np.where(last, oldest, cut)))", "cut))"),
        (
            "every epoch is the same",
            "[self.seed, self.epoch_number, 100 + number]",
            "[self.seed, 100 + number]",
        ),
    ),
    *of(
        "data/batches/negatives.py",
        "data/test_negatives.py",
        ("the logged item is its own negative", "np.asarray(own | (drawn == item))", "np.asarray(own)"),
        ("past items are never negatives", "if draw.repeats:\n", "if False:\n"),
        (
            "an item next to the logged one is never drawn",
            "drawn + (drawn >= item)",
            "drawn + (drawn > item)",
        ),
    ),
    *of(
        "data/batches/samplers.py",
        "data/test_samplers.py data/test_negatives.py",
        (
            "what does not exist yet is a negative",
            "existing = np.minimum(self.log.audiences.existing(time), self.split.known_items)",
            "existing = np.full(len(time), self.split.known_items)",
        ),
        (
            "every epoch is the same",
            "[self.settings.seed, self.epoch_number, *what]",
            "[self.settings.seed, *what]",
        ),
        (
            "a drawn positive is a negative",
            "np.zeros(drawn.shape) if clean else",
            "np.zeros(drawn.shape) if True else",
        ),
        (
            "a killed step is trained twice",
            "batch is done.\n            self.step += 1\n            yield made\n",
            "batch is done.\n            yield made\n            self.step += 1\n",
        ),
    ),
    *of(
        "data/batches/samplers.py",
        "models/test_debiased.py",
        (
            "neighbours in a batch are equal",
            "self.rows[random.permutation(shuffled[at : at + size])]",
            "self.rows[shuffled[at : at + size]]",
        ),
    ),
    *of(
        "data/batches/batch.py",
        "data/test_batch.py data/test_samplers.py",
        (
            "an audience is another user's",
            "np.where(end > start, end, -1)",
            "np.where(end > start, end - start, -1)",
        ),
        (
            "a shorter past is the oldest",
            "place_NL = (self.length_N - longest).clamp(min=0)[:, None]",
            "place_NL = torch.zeros_like(self.length_N)[:, None]",
        ),
    ),
]
