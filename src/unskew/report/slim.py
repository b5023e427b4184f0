"""Drawings of matplotlib made small: what a page says once is not said at every label and tick."""

import re
import xml.etree.ElementTree as ET

SVG, LINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
PLACES = ("d", "x", "y", "transform")
# What the page's style says of all text, what ticks have already, and what is the default.
SAID = re.compile(
    r"font-size: 10px; |font-family: [^;]*; |; fill: currentColor(?=$)|; stroke-linecap: square|"
    r"; stroke-linejoin: \w+|stroke-dashoffset: 0; "
)


def slim(drawing: str) -> str:
    """The same picture in a fraction of the bytes, for a page whose style gives text its font. Nothing may be
    drawn outside of the axes, because the clipping is left away."""
    root = ET.fromstring(drawing)
    _shorten(root)
    for group in root.iter(f"{{{SVG}}}g"):
        _shared(group)
    _renamed(root)
    text = ET.tostring(root, encoding="unicode")
    text = text.replace("ns0:", "").replace("xmlns:ns0", "xmlns")
    return re.sub(r">\s+<", "><", text.replace(" />", "/>"))


def _shorten(node: ET.Element) -> None:
    """Shorten the attributes of a node and of all below it, and lift what stands in groups that say
    nothing."""
    for name, value in list(node.attrib.items()):
        if name in PLACES:
            node.set(name, _rounded(value))
        elif name == "style":
            node.set(name, SAID.sub("", f"{value}"))
        elif name == f"{{{LINK}}}href":
            del node.attrib[name]
            node.set("href", value)
        elif name in ("clip-path", "version", "width", "height") and node.tag != f"{{{SVG}}}rect":
            del node.attrib[name]
    if node.get("transform", "").startswith("rotate(-0 "):
        del node.attrib["transform"]
    if node.tag == f"{{{SVG}}}use" and "0.8" in node.get("style", "") and "#" not in node.get("style", ""):
        del node.attrib["style"]  # a tick
    kept: list[ET.Element] = []
    for child in node:
        _shorten(child)
        tag = child.tag.removeprefix(f"{{{SVG}}}")
        if tag == "clipPath" or (tag == "path" and child.get("style") == "fill: none"):
            continue
        if tag in ("g", "defs") and not child.attrib and (tag == "g" or not len(child)):
            kept.extend(child)
        else:
            kept.append(child)
    node[:] = kept


def _shared(group: ET.Element) -> None:
    """Say once for a group what all of its marks look like."""
    marks = group.findall(f"{{{SVG}}}use")
    looks = {mark.get("style", "") for mark in marks}
    if len(looks) == 1 and (look := looks.pop()):
        group.set("style", look)
        for node in (*marks, *group.iterfind(f"{{{SVG}}}defs/{{{SVG}}}path")):
            node.attrib.pop("style", None)


def _renamed(root: ET.Element) -> None:
    """Give ids that end with a hash short names instead."""
    short: dict[str, str] = {}
    for node in root.iter():
        if "id" in node.attrib:
            before = node.attrib["id"].rpartition("-")[0]
            node.set("id", short.setdefault(node.attrib["id"], f"{before}-{len(short)}"))
    for node in root.iter(f"{{{SVG}}}use"):
        node.set("href", f"#{short[node.attrib['href'][1:]]}")


def _rounded(places: str) -> str:
    """Coordinates to a tenth of a point, without the spaces that a path does not need."""
    short = re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), places)
    return re.sub(r"\s*([MLCQzZ])\s*", r"\1", short.replace("\n", " ")).strip()
