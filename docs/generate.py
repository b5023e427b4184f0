"""Pages of the site that are made of the code: models, settings, verbs, the HTTP interface, the public
functions, and the map of the packages.

`make docs` writes them into docs/generated before Sphinx reads it. They are never committed.
"""

import asyncio
import base64
import inspect
import json
import re
import tempfile
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, get_args, get_type_hints

import grimp
import httpx

import unskew
from unskew.cli import VERBS
from unskew.core.config import Range, explained, in_words
from unskew.data.log.preparation import Preparation
from unskew.data.log.split import Splitting
from unskew.data.reading.columns import ALIASES, ROLES
from unskew.experiments.paper_suites import RIVALS
from unskew.models.base import MODELS, Recommender, Training
from unskew.serve.http.app import create_app
from unskew.serve.http.middleware import Gate
from unskew.serve.http.service import Service
from unskew.serve.store.store import open_store

DOCS = Path(__file__).parent
PAGES = DOCS / "generated"
BASELINES_OF_THE_PAPER = tuple(arm.model for arm in RIVALS)
OURS = ("pulse", "pulse-zero", "neighbours-by-hand")
CELLS = DOCS.parent / "results" / "bench" / "cells.jsonl"
NOTEBOOKS = DOCS.parent / "examples" / "notebooks"
# What each model is for. The page of a model that is missing here goes without it.
PURPOSES = {
    "bert4rec": "a baseline that reads a history from both sides.",
    "bst": "a baseline that puts the candidate behind the history.",
    "cpr": "a debiasing baseline for matrix factors, without propensities.",
    "deps": "the paper's tables, and propensities from two views for any model.",
    "deps-causal": "DEPS in a fraction of its time; our variant.",
    "dice": "a debiasing baseline that separates interest from conformity.",
    "din": "a baseline whose attention depends on the candidate.",
    "ease": "a strong linear baseline where a matrix of all pairs of items fits into memory.",
    "esasrec": "a transformer baseline with gated blocks and a sampled softmax.",
    "fpmc": "the classical baseline of next-item recommendation.",
    "gru4rec": "a strong recurrent baseline, fast on short sessions.",
    "gsasrec": "SASRec with many sampled negatives, for large catalogues.",
    "hstu": "a transformer baseline without a softmax in its attention.",
    "itemknn": "a strong baseline in a second, and lists that are easily explained.",
    "lightsans": "a transformer for long histories.",
    "neighbours-by-hand": "to see what Pulse's neighbourhood is worth without learning.",
    "personal": "shops where users buy the same again.",
    "popularity": "the baseline that every model has to beat.",
    "pulse": "production: lists that follow what happens now, new users and new items, a debiasing strength.",
    "pulse-zero": "lists before any training.",
    "sasrec": "the usual transformer baseline, and the usual backbone of a debiased loss.",
    "stamp": "a baseline for short sessions.",
    "ubpr": "a debiasing baseline with unbiased pairs.",
    "uir": "a debiasing baseline with inverse propensities of items.",
    "userknn": "a strong baseline that reads what similar users took lately.",
    "usr": "a debiasing baseline for sequences, with propensities from one view.",
}


def write_pages() -> None:
    """Write all generated pages. A page that is as it was is left alone, so Sphinx reads what changed."""
    for name, text in (*models(), *reference(), *notebooks()):
        path = PAGES / f"{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


# Models


def models() -> Iterator[tuple[str, str]]:
    """A page for each model, and their list."""
    named = {name: kind for name, kind in sorted(MODELS.items()) if not name.startswith("debiased-")}
    groups = {
        "Ours": [name for name in OURS if name in named],
        "The paper": [name for name in named if name.startswith("deps")],
        "Baselines of the paper": [name for name in BASELINES_OF_THE_PAPER if name in named],
    }
    listed = {name for names in groups.values() for name in names}
    groups["Other models"] = [name for name in named if name not in listed]
    lines = [
        "# Models",
        "",
        "`unskew train DATA --model NAME` trains a model; `create_model(NAME)` makes one in Python. Every "
        "model can be trained with a corrected loss as `debiased-NAME`.",
        "",
    ]
    for title, names in groups.items():
        rows = [[f"[`{name}`]({name}.md)", _paper_of(named[name])] for name in names]
        lines += [f"## {title}", "", table(["model", "paper"], rows), ""]
    lines += [
        "```{toctree}",
        ":hidden:",
        "",
        *(name for names in groups.values() for name in names),
        "```",
        "",
    ]
    yield "models/index", "\n".join(lines)
    for name, kind in named.items():
        yield f"models/{name}", model_page(name, kind)


def model_page(name: str, kind: type[Recommender]) -> str:
    """What a model is, in the words of its file, and its settings."""
    module = inspect.getmodule(kind)
    title, _, text = inspect.cleandoc((module and module.__doc__) or kind.__doc__ or "").partition("\n\n")
    path = "" if module is None else module.__name__.replace(".", "/") + ".py"
    lines = [
        f"# {name}",
        "",
        " ".join(title.split()),
        "",
        *([f"- **What it is for**: {PURPOSES[name]}"] if name in PURPOSES else []),
        f"- **Paper**: {_paper_of(kind)}",
        f"- **Code**: `src/{path}`",
        "",
        f"```text\nunskew train DATA --model {name} --out RUN\n```",
        "",
        "## Equations and decisions",
        "",
        indented_code(text),
        "",
        "## Cost",
        "",
        *cost_of(name),
        "",
        "## Settings",
        "",
        settings_table(kind.Config, {}),
        "",
        "## Training",
        "",
        "Settings of training whose defaults differ from [those of all models](../reference/settings.md):",
        "",
        table(["setting", "default"], [[f"`{key}`", f"`{value}`"] for key, value in kind.recipe.items()])
        if kind.recipe
        else "none.",
        "",
    ]
    if kind.presets:
        lines += ["## Presets", "", "`--preset NAME` changes these settings:", ""]
        rows = [
            [f"`{preset}`", ", ".join(f"`{k}={v}`" for k, v in of.items())]
            for preset, of in kind.presets.items()
        ]
        lines += [table(["preset", "settings"], rows), ""]
    return "\n".join(lines)


def cost_of(name: str) -> list[str]:
    """What trainings of a model have cost, from the stored cells of `unskew bench`."""
    rows = []
    for line in CELLS.read_text(encoding="utf-8").splitlines():
        cell = json.loads(line)
        if cell["model"] != name or cell["data"]["world"] is not None:
            continue
        cost, data = cell["cost"], cell["data"]
        epochs = max((record.get("epoch", 0) for record in cell["records"]), default=0)
        numbers = f"{data['positives']:,}", f"{data['users']:,}", f"{data['items']:,}"
        spent = f"{cost['parameters']:,}", str(epochs), f"{cost['cpu_s']:,.0f}", f"{cost['memory_mb']:,}"
        rows.append([data["name"], *numbers, *spent])
    if not rows:
        return ["No training of it is stored in `results/bench`; [speed](../../speed.md) has the others."]
    head = ["log", "positives", "users", "items", "parameters", "epochs", "CPU-s", "memory, MB"]
    dearest = {row[0]: row for row in sorted(rows, key=lambda row: float(row[6].replace(",", "")))}
    return [
        "Whole trainings with the settings of our tables on one core, evaluation included, from "
        "`results/bench/cells.jsonl`; of several settings the dearest.",
        "",
        table(head, [dearest[log] for log in sorted(dearest)]),
    ]


def _paper_of(kind: type[Recommender]) -> str:
    return kind.paper or "–"


def indented_code(text: str) -> str:
    """The text of a docstring as Markdown. What is indented is an equation, and is kept as it is."""
    blocks: list[str] = []
    for block in re.split(r"\n{2,}", text):
        if block.startswith("    "):
            blocks.append(f"```text\n{re.sub(r' {8,}', ' ' * 6, textwrap.dedent(block))}\n```")
        else:
            parts = block.split("`")  # every second one is code
            parts[::2] = [re.sub(r"([<>*_\\\[\]])", r"\\\1", part) for part in parts[::2]]
            blocks.append("`".join(parts))
    return "\n\n".join(blocks)


# Settings


def settings_table(settings: Any, defaults: dict[str, Any]) -> str:
    """Every field of some settings, those within settings included: name, range, default and meaning."""
    rows = list(_setting_rows(settings, defaults))
    return table(["setting", "values", "default", "meaning"], rows) if rows else "This model has no settings."


def _setting_rows(settings: Any, defaults: dict[str, Any]) -> Iterator[list[str]]:
    helps, hints = explained(settings), get_type_hints(settings, include_extras=True)
    for field in fields(settings):
        bare, notes = _parts(hints[field.name])
        if is_dataclass(bare):
            yield from _setting_rows(bare, defaults)
            continue
        value = defaults.get(field.name, _default(field))
        bounds = next((f", {note}" for note in notes if isinstance(note, Range)), "")
        values = f"{in_words(bare)}{bounds}" if isinstance(bare, type) else _choices(bare)
        yield [
            f"`{field.name}`",
            values,
            "required" if value is MISSING else f"`{value}`",
            helps.get(field.name, ""),
        ]


def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type, and the notes that `Annotated` puts beside it."""
    notes: tuple[Any, ...] = ()
    while hasattr(hint, "__metadata__"):
        notes, hint = (*notes, *hint.__metadata__), get_args(hint)[0]
    return hint, notes


def _choices(hint: Any) -> str:
    words = str(
        (get_args(hint) and " or ".join(str(getattr(part, "__name__", part)) for part in get_args(hint)))
        or hint
    )
    return words.replace("NoneType", "None")


def _default(field: Any) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


# Reference


def reference() -> Iterator[tuple[str, str]]:
    """The pages of the reference."""
    yield "reference/settings", settings_page()
    yield "reference/command-line", command_line_page()
    yield "reference/columns", columns_page()
    yield "reference/http", http_page()
    yield "reference/python", python_page()
    yield "reference/packages", packages_page()


def settings_page() -> str:
    """The settings that do not belong to one model."""
    parts = {
        "Preparing a log": (Preparation, "`unskew prepare` and `unskew.prepare`."),
        "Splitting a log": (Splitting, "`unskew.split` and the verbs that train or evaluate."),
        "Training": (Training, "Every model; its own page says which defaults it changes."),
    }
    lines = ["# Settings", "", "Flags of the command line have the same names with hyphens.", ""]
    for title, (kind, words) in parts.items():
        lines += [f"## {title}", "", words, "", settings_table(kind, {}), ""]
    return "\n".join(lines)


def columns_page() -> str:
    """The columns of a log that `prepare` reads, and the names by which it finds them."""
    helps = explained(Preparation)
    rows = [
        [f"`{role}`", helps.get(role, ""), ", ".join(f"`{name}`" for name in ALIASES[role].split())]
        for role in ROLES
    ]
    return "\n".join(["# Columns of a log", "", table(["role and flag", "meaning", "usual names"], rows), ""])


def command_line_page() -> str:
    """Every verb with its flags."""
    lines = [
        "# Command line",
        "",
        "Exit codes: 0 success, 1 failure, 2 wrong usage or invalid input, 130 interrupted. `--json` prints "
        "one JSON document on standard output; everything else goes to standard error.",
        "",
    ]
    for name, verb in VERBS.items():
        lines += [f"## unskew {name}", "", *_verb(verb)]
        for part in get_args(get_type_hints(verb).get("verb")):
            if is_dataclass(part):
                lines += [f"### unskew {name} {part.__name__.lower()}", "", *_verb(part)]
    return "\n".join(lines)


def _verb(verb: Any) -> list[str]:
    docstring = inspect.cleandoc(verb.__doc__ or "").split("\n\nArgs:")[0]
    rows = [[_flag(row[0]), *row[2:]] for row in _setting_rows(verb, {}) if row[0] != "`verb`"]
    text = " ".join(docstring.split())
    return [text, "", table(["flag or argument", "default", "meaning"], rows), ""] if rows else [text, ""]


def _flag(name: str) -> str:
    return f"`--{name.strip('`').replace('_', '-')}`"


def http_page() -> str:
    """Every path of the service, from its OpenAPI document."""
    document = _openapi()
    lines = [
        "# HTTP interface",
        "",
        "A running service gives this document at `/openapi.json`, and a readable page at `/docs`. "
        "[Serving](../../serving.md) explains tokens, limits and errors.",
        "",
    ]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            lines += [f"## {method.upper()} {path}", "", *_operation(operation), ""]
    lines += ["# Objects", ""]
    for name, schema in sorted(document["components"]["schemas"].items()):
        lines += [f"## {name}", "", schema.get("description", ""), "", _properties(schema), ""]
    return "\n".join(lines)


def _openapi() -> dict[str, Any]:
    """The OpenAPI document that a service gives."""

    async def ask(app: Gate) -> dict[str, Any]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://docs") as client:
            document: dict[str, Any] = (await client.get("/openapi.json")).json()
            return document

    with tempfile.TemporaryDirectory() as scratch, open_store(Path(scratch) / "events.db") as store:
        return asyncio.run(ask(create_app(Service("run", store), hosts=None)))


def _operation(operation: dict[str, Any]) -> list[str]:
    """What an operation does, its parameters, and its body and answer."""
    lines = [operation.get("description") or operation.get("summary", ""), ""]
    parameters = [
        [f"`{of['name']}`", of["in"], _type(of["schema"]), " ".join(of.get("description", "").split())]
        for of in operation.get("parameters", ())
    ]
    if parameters:
        lines += [table(["parameter", "in", "type", "meaning"], parameters), ""]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body:
        lines += [f"Body: {_type(body)}", ""]
    answer = (
        operation["responses"].get("200", {}).get("content", {}).get("application/json", {}).get("schema")
    )
    return [*lines, f"Answer: {_type(answer)}"] if answer else lines


def _properties(schema: dict[str, Any]) -> str:
    required = schema.get("required", ())
    rows = [
        [
            f"`{name}`",
            _type(of),
            "yes" if name in required else "no",
            " ".join(of.get("description", "").split()),
        ]
        for name, of in schema.get("properties", {}).items()
    ]
    return table(["field", "type", "required", "meaning"], rows) if rows else _type(schema)


def _type(schema: dict[str, Any]) -> str:
    """The type of a value in words, with a link where it is an object of its own."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(_type(part) for part in schema[key])
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "any value"))


def python_page() -> str:
    """What `import unskew` gives, by autodoc."""
    lines = ["# Python", "", "Everything below is imported from `unskew`.", ""]
    for name in unskew.__all__:
        kind = getattr(unskew, name)
        directive = "autoclass" if inspect.isclass(kind) else "autofunction"
        members = [":members:", ":inherited-members: Exception,object"] if inspect.isclass(kind) else []
        lines += [
            "```{eval-rst}",
            f".. {directive}:: unskew.{name}",
            *(f"   {part}" for part in members),
            "```",
            "",
        ]
    return "\n".join(lines)


def packages_page() -> str:
    """The packages by their layers, from the import contract in pyproject.toml, and who imports whom."""
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))
    layers = [layer.split(" : ") for layer in project["tool"]["importlinter"]["contracts"][0]["layers"]][::-1]
    graph = grimp.build_graph("unskew", cache_dir=None)
    imports = {
        name: [
            other
            for other in chain(*layers)
            if other != name
            and graph.direct_import_exists(
                importer=f"unskew.{name}", imported=f"unskew.{other}", as_packages=True
            )
        ]
        for name in chain(*layers)
    }
    rows = [
        [
            str(number),
            f"`{name}`",
            " ".join((import_module(f"unskew.{name}").__doc__ or "").split()),
            ", ".join(imports[name]),
        ]
        for number, layer in enumerate(layers)
        for name in layer
    ]
    return "\n".join(
        [
            "# Architecture",
            "",
            "The data goes one way. A file is read into a log, a log is split, batches of its views go "
            "through a loss into a trained run, and a run ranks items for a request. A service adds events "
            "to a store and to a live log, which has the same views as a prepared one, so that training, "
            "evaluation and service read the past by the same code.",
            "",
            "The picture is drawn from the imports in the code. A package imports only from packages with a "
            "smaller number; `make check` enforces it. "
            "`CONTRIBUTING.md` says in which file each idea is.",
            "",
            "```{raw} html",
            import_graph(layers, imports),
            "```",
            "",
            table(["layer", "package", "what it holds", "imports"], rows),
            "",
        ]
    )


def import_graph(layers: list[list[str]], imports: dict[str, list[str]]) -> str:
    """The packages as a picture: the lowest layer at the bottom, and a line for each import."""
    step, wide, high = 62, 150, 34
    height = step * len(layers)
    middle = {
        name: (360 + (place - (len(layer) - 1) / 2) * (wide + 60), height - step * number - step / 2)
        for number, layer in enumerate(layers)
        for place, name in enumerate(layer)
    }
    lines = [
        f'<svg viewBox="0 0 720 {height}" role="img" aria-label="Imports between the packages" '
        'style="max-width: 100%; font: 14px system-ui, sans-serif">'
    ]
    for name, others in imports.items():
        for other in others:
            (x, y), (end_x, end_y) = middle[name], middle[other]
            bend = (x + end_x) / 2 + (end_y - y) * (0.35 if hash_of(name) % 2 else -0.35)
            lines.append(
                f'<path d="M{x} {y}Q{bend:.0f} {(y + end_y) / 2} {end_x} {end_y}" fill="none" '
                'stroke="#94a3b8" stroke-opacity=".45"/>'
            )
    for name, (x, y) in middle.items():
        lines.append(
            f'<rect x="{x - wide / 2}" y="{y - high / 2}" width="{wide}" height="{high}" rx="7" '
            f'fill="#2563eb"/><text x="{x}" y="{y + 5}" text-anchor="middle" fill="#fff">{name}</text>'
        )
    return "\n".join([*lines, "</svg>"])


def hash_of(name: str) -> int:
    """A number of a name that is the same in every process."""
    return sum(map(ord, name))


# Notebooks


def notebooks() -> Iterator[tuple[str, str]]:
    """A page for each notebook, as it was executed, and their list."""
    paths = sorted(NOTEBOOKS.glob("*.ipynb"))
    lines = [
        "# Notebooks",
        "",
        "Each notebook runs in a minute or two on one core. `make notebooks` executes them all; they are in "
        "`examples/notebooks`, with the outputs that are shown here.",
        "",
        "```{toctree}",
        ":maxdepth: 1",
        "",
        *(path.stem for path in paths),
        "```",
        "",
    ]
    yield "notebooks/index", "\n".join(lines)
    for path in paths:
        yield f"notebooks/{path.stem}", notebook_page(path)


def notebook_page(path: Path) -> str:
    """The cells of a notebook and their outputs as Markdown. Pictures are written beside the page."""
    folder = PAGES / "notebooks"
    folder.mkdir(parents=True, exist_ok=True)
    blocks = []
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            blocks.append(
                source.replace("](../../docs/", "](../../").replace("](../../README.md)", "](../../start.md)")
            )
            continue
        language = "text" if re.search(r"^[!%]", source, re.MULTILINE) else "python"  # a line of shell
        blocks.append(f"```{language}\n{source}\n```")
        for place, output in enumerate(cell["outputs"]):
            blocks.append(_output(output, folder / f"{path.stem}-{number}-{place}.png"))
    return "\n\n".join(filter(None, blocks)) + "\n"


def _output(output: dict[str, Any], picture: Path) -> str:
    """An output of a cell as Markdown."""
    data = output.get("data", {})
    if "image/png" in data:
        picture.write_bytes(base64.b64decode("".join(data["image/png"])))
        return f"![A figure of the cell above]({picture.name})"
    if "text/markdown" in data:
        return re.sub(r"^#+ (.*)$", r"**\1**", "".join(data["text/markdown"]), flags=re.MULTILINE)
    if "text/html" in data:
        bare = re.sub(r"<style.*?</style>", "", "".join(data["text/html"]), flags=re.DOTALL)
        return f"```{{raw}} html\n{bare}\n```"
    text = "".join(output.get("text", data.get("text/plain", "")))
    return f"```text\n{text.rstrip()}\n```"


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; a bar in a cell is escaped."""
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *cells))
