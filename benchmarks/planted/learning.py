"""Faults of what is learned: propensities, weights, losses, training."""

from planted.mutant import of

MUTANTS = [
    *of(
        "propensity/base.py",
        "propensity/test_propensity_views.py "
        "propensity/test_propensity_weights.py propensity/test_propensity_loss.py",
        (
            "the item view is not clipped",
            "views = self.item_view(batch), self.user_view(batch)\n        "
            "item, user = (None if view is None else view.clamp(min=self.clip) for view in views)",
            "item, user = self.item_view(batch), self.user_view(batch)\n        "
            "user = None if user is None else user.clamp(min=self.clip)",
        ),
        (
            "alpha weighs the wrong view",
            "self.alpha / item + (1 - self.alpha) / user",
            "(1 - self.alpha) / item + self.alpha / user",
        ),
        ("weights have a gradient", "@torch.no_grad()\n    def weights(", "def weights("),
    ),
    *of(
        "propensity/correction.py",
        "models/test_debiased.py propensity/test_correction.py "
        "propensity/test_correction_auto.py propensity/test_theory.py",
        (
            "an event has its neighbour's weight",
            "self._rows()[batch.event_BL]",
            "self._rows().roll(1)[batch.event_BL]",
        ),
        ("weights of rows are never refreshed", "self._of_rows = self._mean = None", "self._mean = None"),
        ("the mean of ips is never refreshed", "self._of_rows = self._mean = None", "self._of_rows = None"),
        (
            "the snips mean counts padding",
            "weight / weight[counted].mean() if bool(counted.any()) else weight",
            "weight / weight.mean()",
        ),
        ("clipped weights are not times M", "return weight * self.propensity.clip", "return weight"),
        ("ips has no mean of one", "return weight / self._typical()", "return weight"),
        (
            "the estimator reads all of a batch",
            "self._weights(batch.truncate(*self.past))",
            "self._weights(batch)",
        ),
        ("sampled negatives are weighted, too", 'once[:, 1:] = self.method == "ips"', "pass"),
        ("the logged row is weighted as a negative", "weight[:, 0] = 1", "pass"),
        ("a later moment is used", '"right") - 1, 0)', '"right"), 0)'),
        ("the moment itself is not used", 'time, "right")', 'time, "left")'),
        ("the estimator counts nothing", "self.propensity.fit_statistics(split)", "pass"),
    ),
    *of(
        "propensity/estimators.py",
        "propensity/test_propensity_views.py "
        "propensity/test_propensity_weights.py propensity/test_propensity_loss.py",
        ("the loss trains embeddings of others", "if self.trains else table(ids_BL).detach()\n", "\n"),
        (
            "ties are a past",
            "wanted.nonzero()[:, 0], past_BL[wanted]",
            "wanted.nonzero()[:, 0], (is_real(ids_BL).cumsum(1) - 1)[wanted]",
        ),
        ("the mean is over sequences", "count + int(is_real(ids).sum())", "count + len(ids)"),
        (
            "an empty view has no gradient",
            "sum((0 * parameter.sum() for parameter in self.parameters()), torch.zeros(()))",
            "torch.zeros(())",
        ),
        (
            "the bound on the normaliser decides everything",
            "undecided[of_BC[bound_BC >= least]] = True",
            "pass",
        ),
        ("frequencies are fractions", "/ counts.max()", "/ counts.sum()"),
        (
            "a sampled normaliser is not scaled up",
            " + torch.log(torch.tensor(table.known / len(spread)))",
            "",
        ),
    ),
    *of(
        "nn/losses.py",
        "nn/test_losses.py propensity/test_propensity_loss.py",
        (
            "the gradient forgets the weights",
            "slope = logits.mul_(scale / normaliser)",
            "slope = logits.mul_(1 / normaliser)",
        ),
        (
            "the target's gradient forgets them",
            "slope.scatter_add_(1, target, -scale)",
            "slope.scatter_add_(1, target, -torch.ones_like(scale))",
        ),
        ("offsets are not added", "logits.add_(offsets)", "pass"),
        ("draws are not corrected for how many they are", "others_NS - log_q", "others_NS"),
        (
            "a drawn target counts twice",
            "others_NS.masked_fill(drawn_S == targets_N[:, None], -torch.inf)",
            "others_NS",
        ),
        (
            "a pair is compared the wrong way epoch",
            "functional.softplus(negative - positive)",
            "functional.softplus(positive - negative)",
        ),
        ("a mean forgets the weights", "terms if weight is None else terms * weight)", "terms)"),
    ),
    *of(
        "training/trainer.py",
        "training/test_trainer.py evaluation/test_select_by.py "
        "training/test_run.py recommendation/test_debias.py",
        (
            "validation drops activations",
            "model = self.model.eval()\n        strengths",
            "model = self.model\n        strengths",
        ),
        (
            "the last debias is kept",
            "if metrics[METRIC] > found.get(name, {}).get(METRIC, -math.inf):",
            "if True:",
        ),
        ("no debiasing strength is kept", 'self.model.set_debias(metrics["debias"])', "pass"),
        (
            "the fastest criterion stops training",
            "max(at.best_epoch.values(), default=0)",
            "min(at.best_epoch.values(), default=0)",
        ),
        (
            "an epoch that is no better is kept",
            "if metrics[METRIC] > at.best.get",
            "if metrics[METRIC] >= at.best.get",
        ),
        (
            "one criterion's weights are restored for all",
            'below(f"best/{criterion}", tensors) for',
            'below("best/ordinary", tensors) for',
        ),
        ("moments are not restored", "moments.setdefault(int(place), {})[kind] = value", "pass"),
        (
            "gradients are not shortened",
            "nn.utils.clip_grad_norm_(parameters, self.settings.gradient_norm)",
            "pass",
        ),
        (
            "the last weights recommend",
            "        if self.select_by in self.best:\n            self.model.load",
            "        if False:\n            self.model.load",
        ),
        ("all batches of all seeds are the same", "seed = settings.seed * 1000 + place", "seed = place"),
        (
            "all models are chosen by clicks",
            'wanted = model.select_by if select_by == "auto"',
            'wanted = "ordinary" if select_by == "auto"',
        ),
        ("every step drops the same", "reseed(self.settings.seed, at.step)", "reseed(self.settings.seed)"),
    ),
]
