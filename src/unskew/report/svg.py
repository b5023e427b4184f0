"""The SVG that matplotlib writes, as an element that can stand in a page beside others, and small.

matplotlib has no setting for any of this: it repeats the font at every label and the colours at every mark,
writes six decimals, wraps everything in groups, and adds style rules that would hold for the whole page.
"""

import re
import xml.etree.ElementTree as ET
from collections import defaultdict

from markupsafe import Markup

NAMESPACE, LINK = "http://www.w3.org/2000/svg", "{http://www.w3.org/1999/xlink}href"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"
COORDINATES = ("d", "x", "y", "width", "height", "transform")
# What the root says for all, and what is the default of SVG.
OMITTED = re.compile(
    r"font-family: .*|font-size: 10px|fill: currentColor|text-anchor: start|stroke-dashoffset: 0"
)


def compact(drawing: str, name: str, alt: str, rules: str = "") -> Markup:
    """The same picture in a fraction of the bytes. It looks like the text around it.

    name: what its ids begin with; unique in the page.
    alt: what is seen, for people who do not see it.
    rules: a style sheet for a picture that stands alone.
    """
    root = ET.fromstring(drawing)
    shapes = {node.attrib["id"]: node for node in root.iterfind(".//{*}defs/*[@id]")}
    names = {identity: f"{name}-{at}" for at, identity in enumerate(shapes)}
    uses = defaultdict(list)
    for node in root.iter():
        _shorten(node)
        identity = node.attrib.pop("id", "")
        if identity in names:
            node.set("id", names[identity])
        elif identity.startswith("series-"):
            node.set("data-series", identity.removeprefix("series-"))
        if LINK in node.attrib:
            target = node.attrib.pop(LINK)[1:]
            node.set("href", f"#{names[target]}")
            uses[target].append(node)
        if "clip-path" in node.attrib:
            node.set("clip-path", f"url(#{names[node.attrib['clip-path'][5:-1]]})")
    for target, nodes in uses.items():
        looks = {node.get("style", "") for node in nodes}
        if len(looks) == 1 and (look := looks.pop()):  # the shape has the look of all its marks
            shapes[target].set("style", look)
            for node in nodes:
                del node.attrib["style"]
    _flatten(root)
    root.attrib = {
        "xmlns": NAMESPACE,
        "viewBox": root.attrib["viewBox"],
        "data-chart": name,
        "role": "img",
        "aria-label": alt,
        "fill": "currentColor",
        "font-family": FONT,
        "font-size": "10",
        "stroke-linejoin": "round",
    }
    if rules:
        sheet = ET.Element("style")
        sheet.text = rules
        root.insert(0, sheet)
    return Markup(ET.tostring(root, encoding="unicode").replace(" />", "/>"))


def _shorten(node: ET.Element) -> None:
    node.tag = node.tag.rpartition("}")[2]
    node.tail = None
    if node.tag != "text":
        node.text = None
    for key in COORDINATES:
        if key in node.attrib:
            node.set(key, _rounded(node.attrib[key]))
    if node.get("transform", "").startswith("rotate(-0 "):
        del node.attrib["transform"]
    if "style" in node.attrib:
        declarations = node.attrib.pop("style").split("; ")
        if kept := [part for part in declarations if not OMITTED.fullmatch(part)]:
            node.set("style", "; ".join(kept))


def _rounded(coordinates: str) -> str:
    """Coordinates to a tenth of a point, without the spaces that a path does not need."""
    text = re.sub(r"-?\d+\.\d+", lambda match: f"{float(match[0]):.1f}".removesuffix(".0"), coordinates)
    return re.sub(r"\s*([MLCQzZ])\s*", r"\1", text).strip()


def _flatten(node: ET.Element) -> None:
    """Replace groups without attributes by what is in them, and leave out style rules and what is empty."""
    children: list[ET.Element] = []
    for child in node:
        _flatten(child)
        if child.tag == "g" and not child.attrib:
            children.extend(child)
        elif child.tag not in ("style", "metadata") and (child.tag != "defs" or len(child)):
            children.append(child)
    node[:] = children
