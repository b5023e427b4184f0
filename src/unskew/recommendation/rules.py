"""Business rules about lists, as text: which items may be recommended, how many of a kind, and where.

    rule       = [ "include" ] condition                  only items for which it holds
               | "exclude" condition                      no item for which it holds
               | "at" "most" NUMBER "per" FEATURE         items of a list with the same value
               | "at" "least" NUMBER [ "%" ] condition    items of a list for which it holds
               | "pin" ITEM "at" POSITION                 this item, counted from 1
    condition  = both { "or" both }
    both       = negation { "and" negation }
    negation   = "not" negation | "(" condition ")" | comparison
    comparison = FEATURE ( "=" | "!=" | "<" | "<=" | ">" | ">=" ) VALUE
               | FEATURE [ "not" ] "in" "[" VALUE { "," VALUE } "]"
               | FEATURE "is" [ "not" ] "missing"

A value is a number, `true`, `false`, a word, or text in quotes; a name with blanks stands in quotes too. What
follows a # is a comment. The name `item_id` is the id itself, unless a feature is called so.

All rules of a list hold together. What they mean for the items of a log is in `rule_masks.py`.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal, NoReturn

from unskew.core.config import did_you_mean, parse_json
from unskew.core.errors import BadInput

ITEM_ID = "item_id"
DEFAULT_SET = "default"  # the rule set of requests that name none
MOST_RULES = 100  # of one list
LONGEST_RULE = 10_000  # characters
LONGEST_RULES = 200_000  # characters of all rules of one list together
MOST_COMPARISONS = 1000  # in all rules of one list, each of which is made with every item
MOST_VALUES = 10_000  # in all of them
DEEPEST = 50  # conditions within conditions

Operator = Literal["=", "!=", "<", "<=", ">", ">="]
OPERATORS: tuple[Operator, ...] = ("=", "!=", "<", "<=", ">", ">=")
KEYWORDS = ("include", "exclude", "at", "pin", "and", "or", "not", "in", "is")

TOKEN = re.compile(
    r"""(?P<blank>[^\S\n]+|\#[^\n]*)
    |(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<sign><=|>=|!=|[=<>\[\](),%])
    |(?P<word>[^\s\[\](),=<>!"'%#]+)
    |(?P<wrong>.)""",
    re.VERBOSE,
)
NUMBER = re.compile(r"[+-]?(\d+([.]\d*)?|[.]\d+)([eE][+-]?\d+)?")


class BadRule(BadInput):
    """A rule cannot be read, or does not fit the items of the log."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}", field="rules")


@dataclass(frozen=True)
class Name:
    """The name of a feature, and where it stands, for messages."""

    text: str
    where: str = field(compare=False)


@dataclass(frozen=True)
class Value:
    """A value as it is written, and where. `true` and 5 in quotes are text."""

    text: str
    where: str = field(compare=False)
    quoted: bool = False

    @property
    def number(self) -> float | None:
        """The number, if it is one."""
        return float(self.text) if not self.quoted and NUMBER.fullmatch(self.text) else None

    @property
    def truth(self) -> bool | None:
        """True or false, if it is one of them."""
        return None if self.quoted else {"true": True, "false": False}.get(self.text.lower())


@dataclass(frozen=True)
class Compare:
    """A feature in an order to a value."""

    name: Name
    operator: Operator
    value: Value


@dataclass(frozen=True)
class Among:
    """A feature has one of some values."""

    name: Name
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Missing:
    """Nothing is known of a feature."""

    name: Name


@dataclass(frozen=True)
class Not:
    """A condition does not hold."""

    condition: "Condition"


@dataclass(frozen=True)
class All:
    """Some conditions hold together."""

    conditions: tuple["Condition", ...]


@dataclass(frozen=True)
class Either:
    """At least one of some conditions holds."""

    conditions: tuple["Condition", ...]


Condition = Compare | Among | Missing | Not | All | Either


@dataclass(frozen=True)
class AtMost:
    """So many items of a list may have the same value of a feature."""

    count: int
    name: Name


@dataclass(frozen=True)
class AtLeast:
    """So many items of a list, or this fraction of it, are such that a condition holds."""

    count: int
    fraction: float
    condition: Condition


@dataclass(frozen=True)
class Pin:
    """An item at a position, counted from 1."""

    item: Value
    position: int


Rule = Condition | AtMost | AtLeast | Pin


@dataclass(frozen=True)
class Rules:
    """All rules of a list.

    Attributes
    ----------
    conditions
        What must hold for every item that is recommended.
    at_most, at_least, pins
        What must hold for the list as a whole.
    """

    conditions: tuple[Condition, ...] = ()
    at_most: tuple[AtMost, ...] = ()
    at_least: tuple[AtLeast, ...] = ()
    pins: tuple[Pin, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.conditions) or self.shapes_lists

    @property
    def shapes_lists(self) -> bool:
        """Whether more than the conditions decides what a list holds."""
        return bool(self.at_most or self.at_least or self.pins)


def parse_rules(texts: Sequence[str], source: str = "") -> Rules:
    """Read rules.

    Parameters
    ----------
    texts
        The rules. A text may have several lines, with a rule on each.
    source
        Where they come from, for messages.

    Returns
    -------
    Rules
        The rules, which may be used with any log whose items have these features.

    Raises
    ------
    BadRule
        If a rule does not follow the grammar. The message names the rule, the line, the column, and what was
        expected there.
    """
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise BadRule(source or "rules", "expected a list of rules, such as ['price < 50']")
    _limit(source, MOST_RULES, "rules", len(texts))
    _limit(source, LONGEST_RULES, "characters in all rules together", sum(map(len, texts)))
    return _parse_rules(tuple(texts), source)


def conditions_of(texts: Sequence[str]) -> tuple[str, ...]:
    """The rules about single items, without those about the whole list."""
    lines = (line for text in texts for line in text.split("\n"))
    return tuple(line for line in lines if parse_rules((line,)).conditions)


def _limit(source: str, most: int, what: str, found: int) -> None:
    if found > most:
        raise BadRule(source or "rules", f"expected at most {most:,} {what}, found {found:,}")


@lru_cache(maxsize=256)
def _parse_rules(texts: tuple[str, ...], source: str) -> Rules:
    rules: list[Rule] = []
    comparisons = values = 0
    for number, text in enumerate(texts, 1):
        label = f"{source}, rule {number}" if source else f"rule {number}"
        if len(text) > LONGEST_RULE:
            raise BadRule(label, f"expected at most {LONGEST_RULE:,} characters, found {len(text):,}")
        lines = text.split("\n")
        for line_number, line in enumerate(lines, 1):
            parser = _Parser(line, f"{label}, line {line_number}" if len(lines) > 1 else label)
            rules += parser.rules()
            comparisons, values = comparisons + parser.comparisons, values + parser.values
            _limit(source, MOST_COMPARISONS, "comparisons in all rules together", comparisons)
            _limit(source, MOST_VALUES, "values in all rules together", values)
    pins = tuple(rule for rule in rules if isinstance(rule, Pin))
    for place, pin in enumerate(pins):
        for other in pins[:place]:
            if pin.position == other.position or pin.item == other.item:
                raise BadRule(pin.item.where, "this item or this position is pinned already")
    return Rules(
        tuple(rule for rule in rules if not isinstance(rule, AtMost | AtLeast | Pin)),
        tuple(rule for rule in rules if isinstance(rule, AtMost)),
        tuple(rule for rule in rules if isinstance(rule, AtLeast)),
        pins,
    )


@dataclass(frozen=True)
class _Token:
    kind: str  # text, sign, word, or end
    text: str
    where: str

    def __str__(self) -> str:
        return "the end of the rule" if self.kind == "end" else repr(self.text)


class _Parser:
    """Reads the rule of one line, from left to right, with a method for each line of the grammar."""

    def __init__(self, line: str, label: str) -> None:
        self._label, self._next, self._depth = label, 0, 0
        self.comparisons = self.values = 0  # that were read
        self._tokens: list[_Token] = []
        for match in TOKEN.finditer(line):
            kind, where = str(match.lastgroup), f"{label}, column {match.start() + 1}"
            if kind == "wrong":
                reason = (
                    "a quotation mark without its other one" if match[0] in "\"'" else "no part of a rule"
                )
                raise BadRule(where, f"{match[0]!r} is {reason}")
            if kind == "text":
                self._tokens.append(_Token(kind, re.sub(r"\\(.)", r"\1", match[0][1:-1]), where))
            elif kind != "blank":
                self._tokens.append(_Token(kind, match[0], where))
        self._tokens.append(_Token("end", "", f"{label}, column {len(line) + 1}"))

    def rules(self) -> list[Rule]:
        """The rule, or none on a line without one."""
        if self._token.kind == "end":
            return []
        rule = self._rule()
        if self._token.kind != "end":
            self._refuse("and, or, or the end of the rule")
        return [rule]

    def _rule(self) -> Rule:
        # A feature may be called like the first word of a rule: then an operator follows it.
        first = self._token.text if not self._names_feature() and self._token.kind == "word" else ""
        if first == "at":
            self._skip()
            return self._list_rule()
        if first == "pin":
            self._skip()
            item = self._value("the id of an item")
            self._expect("at")
            return Pin(item, self._count("a position, counted from 1"))
        if first in ("include", "exclude"):
            self._skip()
        condition = self._condition()
        return Not(condition) if first == "exclude" else condition

    def _list_rule(self) -> AtMost | AtLeast:
        if self._accept("most"):
            count = self._count("how many items, at least 1")
            self._expect("per")
            return AtMost(count, self._name())
        if not self._accept("least"):
            self._refuse("most or least")
        where = self._token.where
        number = self._value("how many items, or a percentage").number
        if self._accept("%"):
            if number is None or not 0 < number <= 100:
                raise BadRule(where, "expected a percentage above 0 and at most 100")
            return AtLeast(0, number / 100, self._condition())
        if number is None or number < 1 or not number.is_integer():
            raise BadRule(where, "expected a whole number of at least 1, or a percentage such as 30%")
        return AtLeast(int(number), 0.0, self._condition())

    def _condition(self) -> Condition:
        conditions = [self._both()]
        while self._accept("or"):
            conditions.append(self._both())
        return conditions[0] if len(conditions) == 1 else Either(tuple(conditions))

    def _both(self) -> Condition:
        conditions = [self._negation()]
        while self._accept("and"):
            conditions.append(self._negation())
        return conditions[0] if len(conditions) == 1 else All(tuple(conditions))

    def _negation(self) -> Condition:
        self._depth += 1
        if self._depth > DEEPEST:
            raise BadRule(self._token.where, f"expected at most {DEEPEST} conditions within each other")
        try:
            if not self._names_feature() and self._accept("not"):
                return Not(self._negation())
            if self._accept("("):
                condition = self._condition()
                self._expect(")")
                return condition
            return self._comparison()
        finally:
            self._depth -= 1

    def _comparison(self) -> Condition:
        name = self._name()
        self.comparisons += 1
        for operator in OPERATORS:
            if self._accept(operator):
                return _compared(name, operator, self._value("a value"))
        if self._accept("is"):
            negated = self._accept("not")
            self._expect("missing")
            return Not(Missing(name)) if negated else Missing(name)
        negated = self._accept("not")
        if not self._accept("in"):
            self._refuse("in" if negated else f"{', '.join(OPERATORS)}, in, not in, or is")
        among = Among(name, self._values())
        return Not(among) if negated else among

    def _values(self) -> tuple[Value, ...]:
        self._expect("[")
        values = [self._value("a value")]
        while self._accept(","):
            values.append(self._value("a value"))
        if not self._accept("]"):
            self._refuse("a comma or ]")
        return tuple(values)

    # Single tokens

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _skip(self) -> _Token:
        self._next += 1
        return self._tokens[self._next - 1]

    def _names_feature(self) -> bool:
        """Whether the next token is a name, because an operator follows it."""
        token, after = self._tokens[self._next], self._tokens[min(self._next + 1, len(self._tokens) - 1)]
        is_operator = after.kind == "sign" and after.text in OPERATORS
        return token.kind in ("word", "text") and (is_operator or after.text == "in")

    def _accept(self, text: str) -> bool:
        """Skip a word or a sign if it comes next. Text in quotes is neither."""
        is_next = self._token.kind in ("word", "sign") and self._token.text == text
        self._next += is_next
        return is_next

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            self._refuse(text)

    def _name(self) -> Name:
        token = self._token
        if token.kind not in ("word", "text") or (token.text in KEYWORDS and not self._names_feature()):
            self._refuse("the name of a feature")
        return Name(self._skip().text, token.where)

    def _value(self, expected: str) -> Value:
        token = self._token
        if token.kind not in ("word", "text"):
            self._refuse(expected)
        self._skip()
        self.values += 1
        return Value(token.text, token.where, token.kind == "text")

    def _count(self, expected: str) -> int:
        token = self._token
        if token.kind != "word" or not re.fullmatch(r"0*[1-9]\d{0,8}", token.text):
            self._refuse(expected)
        return int(self._skip().text)

    def _refuse(self, expected: str) -> NoReturn:
        token = self._token
        near = did_you_mean(token.text, KEYWORDS) if token.kind == "word" else ""
        raise BadRule(token.where, f"expected {expected}, found {token}{near}")


def _compared(name: Name, operator: Operator, value: Value) -> Condition:
    """Equality is one value among one."""
    if operator == "=":
        return Among(name, (value,))
    return Not(Among(name, (value,))) if operator == "!=" else Compare(name, operator, value)


# Rule sets


@dataclass(frozen=True)
class RuleSets:
    """Named rule sets. That of the name `default` is for requests that name none."""

    sets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    source: str = ""

    def named(self, name: str | None) -> tuple[str, ...]:
        """The rules of a set; with None those of `default`, or none."""
        if name is None:
            return self.sets.get(DEFAULT_SET, ())
        if name not in self.sets:
            listed = f"there are: {', '.join(map(repr, self.sets)) or 'none'}"
            near = did_you_mean(name, self.sets)
            raise BadInput(f"rule_set: there is no rule set {name!r}{near}; {listed}", field="rule_set")
        return self.sets[name]

    def parse(self, name: str) -> Rules:
        """The rules of a set, which know their file and their name for messages."""
        return parse_rules(self.sets[name], f"{self.source}, {name}")


def read_rule_sets(file: Path) -> RuleSets:
    """Read a file of named rule sets and check each rule.

    Parameters
    ----------
    file
        TOML, or JSON if its name ends with .json: a list of rules for each name, such as
        `front_page = ["in_stock = true", "at most 2 per brand"]`.

    Returns
    -------
    RuleSets
        The rules by the name of their set.
    """
    try:
        text = file.read_text(encoding="utf-8")
        document = parse_json(text) if file.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise BadInput(f"{file}: cannot be read ({error.strerror})", field="rules") from None
    except ValueError as error:
        kind = "JSON" if file.suffix == ".json" else "TOML"
        raise BadInput(f"{file}: is no {kind} ({error})", field="rules") from None
    if not isinstance(document, dict):
        raise BadInput(f"{file}: expected a list of rules for each name", field="rules")
    for name, rules in document.items():
        if not isinstance(rules, list):
            raise BadRule(f"{file}, {name}", f"expected a list of rules, found {type(rules).__name__}")
    sets = RuleSets({name: tuple(rules) for name, rules in document.items()}, str(file))
    for name in sets.sets:
        sets.parse(name)
    return sets
