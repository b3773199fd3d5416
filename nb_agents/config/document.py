"""A YAML or JSON file as data that remembers where each part of it stood.

PyYAML's node tree carries marks; `Document.place` finds the line of a path such as
``("agents", 0, "backend", "type")``. Source: `yaml.compose` and `Node.start_mark`,
https://pyyaml.org/wiki/PyYAMLDocumentation.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.reader import ReaderError
from yaml.resolver import Resolver

from nb_agents.errors import ConfigError
from nb_agents.unicode import well_formed

MAX_FILE_BYTES = 2_000_000
"""A file of ours is read by a person; anything larger is not one."""

MAX_NODES = 40_000
"""Keys and values in a file, aliases counted each time: a few lines of them can stand for billions.

As many as 5,000 steps of a recipe.
"""

# The names are left out of messages: a password may begin with * or !.
_QUOTED = re.compile(r"(alias|anchor|tag|tag handle) '[^']*'")
_TEXT, _MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"
_JSON_ESCAPE = re.compile(r"\\.")
_BARE_TEMPLATE = re.compile(r"[:-] +\{\{")
_QUOTE_IT = 'YAML takes {{…}} without quotes for a mapping. Put the value in quotes: "{{name}}".'
VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)\}")
"""A variable of the environment in a text."""
SCALAR_ERRORS = (ValueError, TypeError, AttributeError, LookupError)
"""What PyYAML lets out for a text that only looks like a date or a number."""
_KEPT_AS_WRITTEN = ("env", "extra_body", "extra_headers", "mcp_servers")


Keys = tuple[object, ...]
"""Keys and list positions from the top of a file."""


class Place(NamedTuple):
    """A place in a file, both from 1."""

    line: int
    column: int


class FileKind(NamedTuple):
    """What a file is for.

    Attributes:
        noun: What messages call it.
        keys: The keys that make it one.
        expands: Whether ``${VAR}`` in it stands for the environment's.
    """

    noun: str
    keys: str
    expands: bool


TEAM_FILE = FileKind("team file", "`agents:` or `agent:`", expands=True)


class Marks(NamedTuple):
    """Where a value of a file stands, and its key; an item of a list has the place of its value."""

    value: Place
    key: Place


@dataclass(frozen=True)
class Document:
    """A parsed file: where a spec was read. `Document()` is that of one made in Python.

    Any two are equal, because where a spec was read is no part of what it says.

    Attributes:
        data: The mapping at its top.
        file: Its path, for messages.
        marks: Where each part stands, by path.
    """

    data: Mapping[str, Any] = field(default_factory=dict, compare=False)
    file: str | None = field(default=None, compare=False)
    marks: Mapping[Keys, Marks] = field(default_factory=dict, compare=False)

    def as_written(self, path: Keys) -> Keys:
        """Return a spec's path as the file has it, where a lone agent is ``agent``."""
        if path[:2] == ("agents", 0) and "agents" not in self.data:
            return ("agent", *path[2:])
        return path

    def place(self, path: Keys, *, key: bool = False) -> Place:
        """Return the place of ``path``, or of its nearest part that the file has.

        Args:
            path: Keys and list positions from the top; parts that the file lacks are skipped.
            key: Whether the key itself is meant, not its value.
        """
        known: Keys = ()
        for part in self.as_written(path):
            if (*known, part) in self.marks:
                known = (*known, part)
        marks = self.marks[known]
        return marks.key if key else marks.value

    def error(self, what: str, path: Keys, key: bool = False) -> ConfigError:
        """Return the error of a fault at ``path``, with its `place` where there is a file."""
        place = self.place(path, key=key)._asdict() if self.marks else {}
        return ConfigError(what, file=self.file, **place)


def parse_document(text: str, file: str, kind: FileKind) -> Document:
    """Parse YAML or JSON.

    Args:
        text: The source.
        file: Its path or name, for messages.
        kind: What it is for.

    Returns:
        Its content with places. A variable that is not set stays as it is.

    Raises:
        ConfigError: It is malformed, has a key twice, or is not a mapping.
    """
    try:
        return _parse(text, file, kind)
    except ConfigError as exc:
        error = exc
    except yaml.YAMLError as exc:
        error = _malformed(exc, text)
    except RecursionError:
        error = ConfigError(f"Nested too deeply: not a {kind.noun}.")
    except SCALAR_ERRORS:
        error = ConfigError("Not valid YAML: a date or number can't be read. Quote it.")
    error.file = file
    raise error


def _malformed(exc: yaml.YAMLError, text: str) -> ConfigError:
    if isinstance(exc, ReaderError):
        what = f"character {exc.position + 1} can't be printed. Save it as plain text."
        return ConfigError(f"Not valid YAML: {what}")
    assert isinstance(exc, yaml.MarkedYAMLError) and exc.problem and exc.problem_mark
    line, column = exc.problem_mark.line + 1, exc.problem_mark.column + 1
    if any(map(_BARE_TEMPLATE.search, text.splitlines()[line - 1 : line])):
        return ConfigError(_QUOTE_IT, line=line)
    problem = _QUOTED.sub(r"\1", exc.problem)
    return ConfigError(f"Not valid YAML: {problem}. Fix that line.", line=line, column=column)


def _parse(text: str, file: str, kind: FileKind) -> Document:
    data = _from_json(text)
    node = _compose(text if data is None else _as_yaml(text))
    if not isinstance(node, yaml.MappingNode):
        found = "list" if isinstance(node, yaml.SequenceNode) else "single value"
        top = f"The file holds a {found}" if node else "The file is empty"
        raise ConfigError(f"{top}; a {kind.noun} is a mapping with {kind.keys}.", line=1)
    marks: dict[Keys, Marks] = {}
    _mark(node, marks)
    data = well_formed(SafeConstructor().construct_document(node) if data is None else data)
    return Document(expand(data) if kind.expands else data, file, marks)


class _Nodes(Composer, Resolver):
    """Makes nodes of what a parser reads; gives up before they are more than is allowed."""

    def __init__(self, parser: Any) -> None:
        Composer.__init__(self)
        Resolver.__init__(self)
        self.check_event, self.peek_event = parser.check_event, parser.peek_event
        self.get_event = parser.get_event
        self.count, self.counts = 0, dict[yaml.Node | None, int]()

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        before = self.count
        node = super().compose_node(parent, index)
        # An alias is a node that was made before, and counts with all that is in it.
        self.count = before + self.counts.setdefault(node, self.count - before + 1)
        if self.count > MAX_NODES:
            raise ConfigError(f"More than {MAX_NODES} keys and values in one file. Split it.")
        return node


_FAST_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _compose(text: str) -> yaml.Node | None:
    # libyaml is eight times as fast, and PyYAML's own errors say more.
    with suppress(yaml.YAMLError, UnicodeError):
        return _Nodes(_FAST_PARSER(text)).get_single_node()
    return _Nodes(yaml.SafeLoader(text)).get_single_node()


def _from_json(text: str) -> dict[str, Any] | None:
    """Read JSON as JSON: YAML knows no tabs, and takes an escaped pair of surrogates for two."""
    try:
        data = json.loads(text.removeprefix("\ufeff"))
    except ValueError:
        return None
    return data if isinstance(data, dict) else None


def _as_yaml(text: str) -> str:
    """Return JSON as YAML with the same positions: tabs become spaces, escapes are resolved."""
    return _JSON_ESCAPE.sub("__", text.replace("\t", " "))


def expand(value: Any) -> Any:
    """Replace ``${VAR}`` in every string of a nested value by the environment's.

    Not in what may be journalled: ``mcp_servers``, ``env``, ``extra_body`` and ``extra_headers``.
    """
    if isinstance(value, str):
        return VARIABLE.sub(lambda m: os.environ.get(m[1], m[0]), value)
    if isinstance(value, dict):
        return {k: v if k in _KEPT_AS_WRITTEN else expand(v) for k, v in value.items()}
    if isinstance(value, list):
        return [expand(v) for v in value]
    return value


def unset_variable(text: str) -> str:
    """Return the first ``${VAR}`` that `expand` left in a string, or ""."""
    found = VARIABLE.search(text)
    return found[1] if found else ""


def read_source(path: str | os.PathLike[str], kind: FileKind) -> str:
    """Read a file's exact text.

    Args:
        path: The file.
        kind: What it is for.

    Returns:
        The text, its line ends as they are.

    Raises:
        ConfigError: It is missing, no regular file, too large, or not UTF-8.
    """
    path = Path(path)
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # a pipe or device may never end
            what = f"Not a file. Give the path of a {kind.noun}."
        elif found.st_size > MAX_FILE_BYTES:
            what = f"Larger than {MAX_FILE_BYTES} bytes: not a {kind.noun}."
        else:
            return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        what = f"No such file (looked from {Path.cwd()}). Check the path."
    except UnicodeDecodeError as exc:
        what = f"Not UTF-8 text: {exc.reason}."
    except OSError as exc:
        what = f"Can't be read: {exc.strerror}."
    except ValueError as exc:  # a NUL or half a surrogate pair in the path
        raise ConfigError(f"Not a path: {exc}.", file=repr(path)) from None
    raise ConfigError(what, file=str(path))


def _mark(
    node: yaml.Node, marks: dict[Keys, Marks], path: Keys = (), key: Place | None = None
) -> None:
    place = _place(node)
    marks[path] = Marks(place, key or place)
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _mark(item, marks, (*path, index))
    elif isinstance(node, yaml.MappingNode):
        for key_node, value_node in node.value:
            key, child, what = _place(key_node), (*path, key_node.value), ""
            if isinstance(key_node, yaml.MappingNode):
                what = _QUOTE_IT
            elif not isinstance(key_node, yaml.ScalarNode):
                what = "A key must be a word."
            elif child in marks:
                first = f"first on line {marks[child].key.line}"
                what = f"Key {key_node.value!r} occurs twice ({first}). Keep one."
            if what:
                raise ConfigError(what, **key._asdict())
            if key_node.tag != _MERGE:
                key_node.tag = _TEXT  # as in JSON: YAML takes `on` for true
            _mark(value_node, marks, child, key)


def _place(node: yaml.Node) -> Place:
    return Place(node.start_mark.line + 1, node.start_mark.column + 1)


MAX_CHARS = 4_000
MAX_VALUE_CHARS = 1_000
_FRONT_MATTER = FileKind("front matter", "`name:` and `description:`", expands=False)
_HEAD = re.compile(r"\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)


def front_matter(text: str) -> dict[str, str]:
    r"""Return the texts that a file's front matter names; {} where there is none that can be read.

    Args:
        text: The file's beginning.

    Example:
        >>> front_matter("---\nname: tables\ndescription: Reads tables\n---\n# How")
        {'name': 'tables', 'description': 'Reads tables'}
    """
    head = _HEAD.match(text[:MAX_CHARS])
    try:
        found = parse_document(head[1], "", _FRONT_MATTER).data if head else {}
    except ConfigError:
        return {}
    return {
        key: " ".join(value.split())[:MAX_VALUE_CHARS]
        for key, value in found.items()
        if isinstance(value, str)
    }
