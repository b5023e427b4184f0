"""Faults of benchmark suites: which cells they ask for, what is done again, and what is stored."""

from planted.mutant import of

MUTANTS = [
    *of(
        "experiments/suite.py",
        "experiments/test_suites.py",
        ("the key forgets the split", '"splitting": asdict(self.splitting), ', ""),
        ("the key forgets how the model is trained", ', "training": self.training}', "}"),
        (
            "all seeds share one world",
            "seed=world.seed + seed, **size",
            "seed=world.seed, **size",
        ),
        (
            "suites come one after the other",
            "    for seed in range(most):\n        for suite in asked:",
            "    for suite in asked:\n        for seed in range(most):",
        ),
    ),
    *of(
        "experiments/bench.py",
        "experiments/test_suites.py",
        ("what is stored is done again", "if key not in results.cells]", "]"),
        ("the budget is never used up", ">= 60 * self.budget:", ">= 3600 * self.budget:"),
        (
            "the dearest come first",
            '(cell.training["seed"], expected(cell))',
            '(cell.training["seed"], -expected(cell))',
        ),
        ("a cheap second seed comes early", '(cell.training["seed"], expected(cell))', "expected(cell)"),
        ("failures are forgotten", "results.failed(earlier | state.failed)", "results.failed(earlier)"),
        ("trained runs stay", "if not self.keep_runs:", "if self.keep_runs:"),
        (
            "an error of a model ends the bench",
            "    except Exception as error:  # a model",
            "    except ArithmeticError as error:  # a model",
        ),
    ),
    *of(
        "experiments/cell_store.py",
        "experiments/test_suites.py",
        ("halves of ranks are lost", "EXACT = 2", "EXACT = 1"),
        ("a rank beyond the last is a hit", "LOWEST = max(CUTOFFS) + 1", "LOWEST = max(CUTOFFS)"),
        ("half a line stays", 'if not text.endswith(b"\\n"):', 'if text.endswith(b"\\n"):'),
        (
            "cells of another format are taken",
            'if isinstance(line, dict) and line.get("format", FORMAT) != FORMAT:',
            "if False:",
        ),
    ),
    *of(
        "experiments/cell_store.py",
        "experiments/test_report.py",
        ("what a line lacks is not looked for", "if gone := lacking(line, READ[name]):", "if gone := '':"),
        ("the line before is named", "in enumerate(lines, 1):", "in enumerate(lines):"),
        ("ranks need no means", "(RANKED, []) if", "((), []) if"),
        ("values may be missing", "(values, _kept(means))", "(values, [])"),
        ("what may be left out is asked for", "is None and key != name:", "is None and False:"),
    ),
    *of(
        "experiments/intervals.py",
        "experiments/test_report.py",
        (
            "a debiasing strength is drawn that not all runs have",
            "if all(at in strengths[key]",
            "if any(at in strengths[key]",
        ),
    ),
    *of(
        "experiments/runner.py",
        "experiments/test_suites.py",
        ("a stopped run begins again", '(folder / "config.json").is_file(), show', "False, show"),
        (
            "the ground truth is asked with ordinary weights",
            '"shown" if "shown" in model.trained.weights else None',
            "None",
        ),
    ),
    *of(
        "evaluation/evaluate_many.py",
        "evaluation/test_evaluate_many.py",
        (
            "all weights are taken for equal",
            "if by == other or _equal(weights[by], weights[other]):",
            "if True:",
        ),
        ("nothing is shared", "if by == other or _equal(weights[by], weights[other]):", "if False:"),
    ),
    *of(
        "evaluation/rolling.py",
        "evaluation/test_rolling.py",
        ("a refresh is late", "start - cut.valid_end >= pause", "start - cut.valid_end > pause"),
        ("the first windows are taken", "starts[-windows:]", "starts[:windows]"),
    ),
    *of(
        "data/log/log.py",
        "evaluation/test_named_tests.py",
        ("a border is the last row", "[self.marks[name] == 1].min()", "[self.marks[name] == 1].max()"),
    ),
]
