"""Tables in their three forms: what is bold and starred, and what LaTeX would take for something else. And
the tables of a family of models, with captions that say what was done."""

import json
import re
from typing import Any

import pytest

from tests.evaluation.test_compare import LADDER, shifted
from tests.evaluation.test_significance import evaluated
from unskew.evaluation.comparison import Family, compare_models
from unskew.evaluation.evaluate import Evaluation
from unskew.report.table import Cell, Table, latex_escape

STARRED = Table(
    ("model", "difference"),
    [
        ("a", "–"),
        ("b", Cell("-0.1", marks="**")),
        (Cell("c", rank=1), Cell("+0.2", "[0, 1]", "*", 1)),
    ],
    caption="what",
)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("learning_rate", r"learning\_rate"),
        ("95 % of R&D", r"95 \% of R\&D"),
        ("#1 for $5", r"\#1 for \$5"),
        ("{a}", r"\{a\}"),
        ("a\\b", r"a\textbackslash{}b"),
        ("x^2 ~ y", r"x\textasciicircum{}2 \textasciitilde{} y"),
        ("p < 0.05 > |q|", r"p $<$ 0.05 $>$ \textbar{}q\textbar{}"),
        ("* one, ** two", "$^{*}$ one, $^{**}$ two"),
        ("1 – 2 − 3", "1 -- 2 $-$ 3"),
        ("two\nlines\n\nor three", "two lines or three"),
        (r"\_%", r"\textbackslash{}\_\%"),
    ],
)
def test_what_means_something_to_latex_means_itself(text: str, written: str) -> None:
    assert latex_escape(text) == written


def test_latex_whole() -> None:
    assert STARRED.latex(label="tab:it") == "\n".join(
        [
            r"% \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            r"\caption{what}",
            r"\label{tab:it}",
            r"\begin{tabular}{lr}",
            r"\toprule",
            r"model & difference \\",
            r"\midrule",
            r"a & -- \\",
            r"b & $-$0.1$^{**}$ \\",
            r"\textbf{c} & \textbf{+0.2}$^{*}$ [0, 1] \\",
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def test_every_cell_the_head_and_the_caption_are_escaped() -> None:
    made = Table(("a_b", "c%"), [(Cell("d&e", rank=1), "f#g")], caption="h_i").latex()
    for written in (r"a\_b & c\%", r"\textbf{d\&e} & f\#g", r"\caption{h\_i}"):
        assert written in made
    commented = made.split("\n", 1)[1]
    assert not re.search(r"(?<!\\)[_%#]", commented)


def test_a_table_without_head_caption_or_label_has_none() -> None:
    made = Table(("", ""), [("a", "1")], text=(0, 1)).latex()
    assert r"\midrule" not in made
    assert r"\caption" not in made
    assert r"\label" not in made
    assert r"\begin{tabular}{ll}" in made


def test_numbers_stand_on_the_right_and_text_on_the_left() -> None:
    made = Table(("a", "b", "c"), [("x", "1", "y")], text=(0, 2))
    assert r"\begin{tabular}{lrl}" in made.latex()
    assert "| --- | ---: | --- |" in made.markdown()
    assert '<td class="n" data-name="b">1</td><td data-name="c">' in made.html()


def test_a_minus_is_one_and_a_hyphen_is_none() -> None:
    rows = [("pulse-zero", "-0.5"), ("gru-4", "[-0.5, +0.25]"), ("a 2021-06", "3 - 4"), ("rate 1e-05", "-.5")]
    made = Table(("model", ""), rows).latex()
    for written in ("pulse-zero & $-$0.5", "gru-4 & [$-$0.5, +0.25]", "a 2021-06 & 3 - 4", "1e-05 & $-$.5"):
        assert written in made


def test_a_row_that_begins_with_a_bracket_is_no_argument_of_the_row_before() -> None:
    made = Table(("a", "b"), [("x", "1"), ("[0, 1]", "2")]).latex()
    assert "\n{}[0, 1] & 2" in made
    assert "\nx & 1" in made


def test_markdown_has_stars_that_are_no_emphasis() -> None:
    assert STARRED.markdown().splitlines()[2:] == [
        "| a | – |",
        r"| b | -0.1\*\* |",
        r"| **c** | **+0.2**\* [0, 1] |",
    ]
    assert Table(("a",), [("**by hand**",)]).markdown().endswith("| **by hand** |")


def test_a_cell_means_itself_in_every_form() -> None:
    evil = Cell("x < y_z & 5 %", "[0, 2]", "*†", 2)
    table = Table((Cell("a_b"), "n"), [("1", evil)], caption="p < 0.05 * x", groups=[("", 1), ("up", 1)])
    assert table.markdown(with_caption=True).splitlines() == [
        r"p &lt; 0.05 \* x",
        "",
        r"| a\_b | up n |",
        "| --- | ---: |",
        r"| 1 | <u>x &lt; y\_z & 5 %</u>\*† [0, 2] |",
    ]
    assert r"1 & \underline{x $<$ y\_z \& 5 \%}$^{*}$$^{\dagger}$ [0, 2]" in table.latex()
    for sheet in (True, False):
        html = table.html(sheet)
        assert "<u>x &lt; y_z &amp; 5 %</u><sup>*†</sup><small>[0, 2]</small>" in html
        assert "p &lt; 0.05 * x" in html


def test_html_has_bold_and_stars() -> None:
    html = STARRED.html()
    assert '<td class="n" data-name="difference">-0.1<sup>**</sup></td>' in html
    assert "<b>c</b>" in html
    assert "<b>+0.2</b><sup>*</sup><small>[0, 1]</small>" in html
    assert html.count("<sup>") == 2
    assert 'class="stacked"' not in html
    assert 'class="stacked"' in Table(["a"] * 6, [["1"] * 6]).html()
    assert "<b></b>" not in Table(("a",), [(Cell("", rank=1),)]).html()


def test_a_sheet_has_a_foot_and_groups() -> None:
    rows = [("a", "1"), ("sum", "unskew train")]
    html = Table(
        ("", "n"), rows, caption="One. Two. Three.", foot=1, groups=[("", 1), ("up", 1)], name="x"
    ).html(sheet=True)
    assert html.startswith('<div class="wide" tabindex="0" role="group" aria-label="One. Two">')
    assert (
        '<table class="sheet" data-name="x"><caption><span>One. Two. Three.</span></caption><thead>' in html
    )
    assert (
        "<tr><td colspan=1><th scope=colgroup colspan=1>up<tr><th scope=col class=t><th scope=col>n" in html
    )
    assert "<tbody><tr><th scope=row>a<td>1<tfoot><tr><th scope=row>sum<td><code>unskew train</code>" in html


# A family of models


@pytest.fixture(scope="module")
def family() -> Family:
    about = {"repeats": "hidden", "whole_test": 90, "sample": 40, "model": "x"}
    models = {"my_base": LADDER["a"], "c%": LADDER["c"], "d&e": LADDER["d"]}
    return compare_models({name: [_with(each, about) for each in group] for name, group in models.items()})


def _with(found: Evaluation, about: dict[str, Any]) -> Evaluation:
    return Evaluation(
        "full", "balanced", found.user, found.values, found.weights, rows=found.rows, about=about
    )


def test_a_table_has_a_row_per_model(family: Family) -> None:
    made = family.table()
    assert list(made.head[:5]) == ["model", "seeds", "NDCG@10", "95 % interval", "difference"]
    assert [row[0].text for row in made.cells] == ["my_base", "c%", "d&e"]
    mean, pair = family.means["c%"], family.pairs[0]
    assert [cell.text for cell in made.cells[1]] == [
        "c%",
        "3",
        f"{mean.mean:.4f}",
        f"[{mean.low:.4f}, {mean.high:.4f}]",
        f"{pair.comparison.difference:+.4f}",
        f"[{pair.comparison.low:+.4f}, {pair.comparison.high:+.4f}]",
        f"{100 * pair.comparison.difference / family.means['my_base'].mean:+.1f} %",
        "<0.0001",
        "<0.0001",
    ]
    assert list(made.rows[0][4:]) == ["–"] * 5
    assert [cell.rank for cell in made.cells[1][:4]] == [1, 0, 1, 0]  # the best one
    assert not any(cell.rank for row in (0, 2) for cell in made.cells[row])
    assert [row[4].marks for row in made.cells] == ["", *("*" * pair.stars for pair in family.pairs)]
    assert family.pairs[0].stars == 2
    assert family.tables()[0].rows == made.rows


def test_a_caption_says_what_was_done(family: Family) -> None:
    said = family.table().caption
    for words in (
        "NDCG@10 on the balanced test, protocol full: 40 of 90 rows by 40 users, repeats hidden, "
        "3 training seeds per model.",
        "Intervals cover 95 % and are those of Student's t over training seeds and users.",
        "Differences to my_base are paired, on the same rows; relative is in per cent of its mean.",
        "p (rows) is by the paired t-test over rows, which ignores the chance due to training seeds",
        "p (seeds) by Student's t over training seeds and users; both are two-sided and corrected by Holm "
        "over 2 comparisons. By p (seeds): * p < 0.05, ** p < 0.01.",
    ):
        assert words in said


def test_a_caption_says_what_is_not_known() -> None:
    single = compare_models({"a": shifted(0.0), "b": shifted(0.1)}).table().caption
    assert "1 training seed per model" in single
    assert "over users only: with a single seed the chance due to the seed is unknown" in single
    assert "only where both models have several seeds" in single
    assert "*" not in single
    assert "p (seeds) by" not in single
    assert "over 1 comparison." in single
    mixed = compare_models({"a": shifted(0.0, 2), "b": shifted(0.1, 3), "c": shifted(0.1)}).table().caption
    assert "1 to 3 training seeds per model" in mixed
    assert "where a model has a single seed, of a bootstrap over users only" in mixed
    assert "only where both models have several seeds. By p (seeds): *" in mixed
    best = compare_models(LADDER, against="best", draws=10).table().caption
    assert "over all 6 pairs, because the best was found on the same rows" in best
    assert "Differences to c are" in best
    pooled = {name: evaluated([0.1, 0.3], protocol="authors") for name in "ab"}
    assert "protocol authors: 2 users, 1 training" in compare_models(pooled).table().caption
    assert "t-test over users" in compare_models(pooled).table().caption


def test_latex_and_markdown_of_a_family(family: Family) -> None:
    latex, markdown = family.latex(), family.markdown()
    assert r"\begin{tabular}{lrrrrrrrr}" in latex
    assert r"my\_base & 3 &" in latex
    assert r"\textbf{c\%} & 3 & \textbf{" in latex
    assert r"d\&e & 3" in latex
    assert latex.count("$^{**}$") == sum(pair.stars == 2 for pair in family.pairs) + 1  # and in the caption
    assert r"Differences to my\_base are paired" in latex
    assert markdown.startswith("NDCG@10 on the balanced test")
    assert r"Differences to my\_base are" in markdown
    assert r"| my\_base | 3 |" in markdown
    assert r"\* p &lt; 0.05, \*\* p &lt; 0.01" in markdown
    assert "\n\n| model | seeds | NDCG@10 |" in markdown
    assert "| **c%** | 3 |" in markdown


def test_the_matrix_is_of_rows_minus_columns() -> None:
    family = compare_models(LADDER, against="all")
    made = family.matrix()
    assert made.titles == ["", "a", "b", "c", "d"]
    means = [mean.mean for mean in family.means.values()]
    for row, cells in enumerate(made.cells):
        assert cells[0].text == "abcd"[row]
        for column in range(4):
            expected = "–" if row == column else f"{means[row] - means[column]:+.4f}"
            assert cells[column + 1].text == expected
            assert cells[column + 1].marks == made.cells[column][row + 1].marks
    assert made.cells[0][3].marks == "**"
    tables = family.tables()
    assert [len(table.rows) for table in tables] == [4, 4, 6]
    assert tables[2].cells[0][0].text == "b − a"
    assert [row[1].marks for row in tables[2].cells] == ["*" * pair.stars for pair in family.pairs]
    assert family.latex().count(r"\begin{table}") == family.markdown().count("\n| --- ") == 3


def test_the_document_is_plain_json(family: Family) -> None:
    found = json.loads(json.dumps(family.document(), allow_nan=False))
    assert {name: found[name] for name in ("metric", "test", "protocol", "units", "users", "against")} == {
        "metric": "ndcg@10",
        "test": "balanced",
        "protocol": "full",
        "units": 40,
        "users": 40,
        "against": "first",
    }
    assert (found["reference"], found["best"], found["corrected_over"]) == ("my_base", "c%", 2)
    assert (found["repeats"], found["whole_test"], found["sample"]) == ("hidden", 90, 40)
    assert found["models"]["c%"]["seeds"] == 3
    low, high = found["models"]["c%"]["interval"]
    assert low < found["models"]["c%"]["mean"] < high
    first, pair = found["comparisons"][0], family.pairs[0]
    assert (first["model"], first["reference"], first["stars"]) == ("c%", "my_base", 2)
    assert (first["p_rows"], first["p_rows_holm"]) == (pair.comparison.p_rows, pair.p_rows)
    assert (first["p_seeds"], first["p_seeds_holm"]) == (pair.comparison.p_seeds, pair.p_seeds)
    assert (first["low"], first["relative"]) == (pair.comparison.low, pair.relative)
    assert first["interval_over"] == "users and seeds"


def test_a_share_of_nothing_is_a_dash() -> None:
    family = compare_models({"none": evaluated([0, 0]), "some": evaluated([0.1, 0.2])})
    assert family.listed().rows[0][3] == "–"
    assert family.document()["comparisons"][0]["relative"] is None
