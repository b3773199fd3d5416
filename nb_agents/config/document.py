"""Parses a YAML or JSON file, and records the line and column of each part.

`Document.place` returns the position of a path such as ``("agents", 0, "backend", "type")``. The
positions come from PyYAML's nodes. Source: `yaml.compose` and `Node.start_mark`,
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

from nb_agents.disk.names import as_on_disk
from nb_agents.errors import ConfigError
from nb_agents.unicode import well_formed

MAX_FILE_BYTES = 2_000_000
"""The maximum size of a file. Team files and recipes are written by hand and much smaller."""

MAX_NODES = 40_000
"""The maximum number of keys and values in a file: about 5,000 steps of a recipe.

Every use of an alias counts, because a few lines of aliases can expand to billions of values.
"""

# Messages leave out these names, because YAML takes a password that begins with * or ! for one.
_QUOTED = re.compile(r"(alias|anchor|tag|tag handle) '[^']*'")
_TEXT, _MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"
_JSON_ESCAPE = re.compile(r"\\.")
_BARE_TEMPLATE = re.compile(r"[:-] +\{\{")
_QUOTE_IT = 'YAML reads {{…}} without quotes as a mapping. Put the value in quotes: "{{name}}".'
VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)\}")
"""A reference to an environment variable."""
SCALAR_ERRORS = (ValueError, TypeError, AttributeError, LookupError)
"""The errors that PyYAML raises for text that only looks like a date or a number."""
_NOT_EXPANDED = ("env", "extra_body", "extra_headers", "mcp_servers")


Keys = tuple[object, ...]
"""Keys and list positions from the top of a file."""


class Position(NamedTuple):
    """A position in a file. Lines and columns start at 1."""

    line: int
    column: int


class FileKind(NamedTuple):
    """A kind of file that nb_agents parses, such as a team file or a recipe.

    Attributes:
        noun: The name of the kind in messages.
        keys: The required keys of such a file, for messages.
        expands: Whether ``${VAR}`` is replaced with the value of an environment variable.
    """

    noun: str
    keys: str
    expands: bool


TEAM_FILE = FileKind("team file", "`agents:` or `agent:`", expands=True)


class Marks(NamedTuple):
    """The positions of a value and its key. For a list item, both are the position of the value."""

    value: Position
    key: Position


@dataclass(frozen=True)
class Document:
    """A parsed file with positions. `Document()` is used for specs created in Python.

    All documents compare equal, so that specs compare equal wherever they were read.

    Attributes:
        data: The mapping at its top level.
        file: Its path, for messages.
        marks: The positions of each path.
    """

    data: Mapping[str, Any] = field(default_factory=dict, compare=False)
    file: str | None = field(default=None, compare=False)
    marks: Mapping[Keys, Marks] = field(default_factory=dict, compare=False)

    def as_written(self, path: Keys) -> Keys:
        """Return a spec's path as written in the file, where a single agent may be ``agent``."""
        if path[:2] == ("agents", 0) and "agents" not in self.data:
            return ("agent", *path[2:])
        return path

    def place(self, path: Keys, *, key: bool = False) -> Position:
        """Return the position of ``path``, or of the nearest part of it that the file contains.

        Args:
            path: Keys and list indices from the top level. Parts that are not in the file are
                skipped.
            key: Whether to return the position of the key instead of its value.
        """
        existing: Keys = ()
        for part in self.as_written(path):
            if (*existing, part) in self.marks:
                existing = (*existing, part)
        marks = self.marks[existing]
        return marks.key if key else marks.value

    def error(
        self, message: str, path: Keys, key: bool = False, code: str = "invalid", remedy: str = ""
    ) -> ConfigError:
        """Return an error at ``path``, with its position if there is a file.

        Args:
            message: What is wrong, as a sentence.
            path: The path of keys to it.
            key: Whether it is about the key instead of the value.
            code: What kind of error it is.
            remedy: What to do about it, as a sentence. It follows `message` in the message.
        """
        position = self.place(path, key=key)._asdict() if self.marks else {}
        error = ConfigError(f"{message} {remedy}".rstrip(), file=self.file, **position)
        error.code, error.remedy = code, remedy
        return error


def parse_document(text: str, file: str, kind: FileKind) -> Document:
    """Parse YAML or JSON. References to unset environment variables are not replaced.

    Args:
        text: The source.
        file: Its path or name, for messages.
        kind: The kind of file.

    Raises:
        ConfigError: The text is malformed, has a duplicate key, or is not a mapping.
    """
    try:
        return _parse(text, file, kind)
    except ConfigError as exc:
        error = exc
    except yaml.YAMLError as exc:
        error = _malformed(exc, text)
    except RecursionError:
        error = ConfigError(f"Nested too deeply for a {kind.noun}. Flatten it.")
    except SCALAR_ERRORS:
        error = ConfigError("Not valid YAML: a date or number is invalid. Put it in quotes.")
    error.file = file
    raise error


def _malformed(exc: yaml.YAMLError, text: str) -> ConfigError:
    if isinstance(exc, ReaderError):
        message = f"character {exc.position + 1} is not printable. Save the file as plain text."
        return ConfigError(f"Not valid YAML: {message}")
    assert isinstance(exc, yaml.MarkedYAMLError) and exc.problem and exc.problem_mark
    line, column = exc.problem_mark.line + 1, exc.problem_mark.column + 1
    if any(map(_BARE_TEMPLATE.search, text.splitlines()[line - 1 : line])):
        return ConfigError(_QUOTE_IT, line=line)
    problem = _QUOTED.sub(r"\1", exc.problem)
    return ConfigError(f"Not valid YAML: {problem}. Fix this line.", line=line, column=column)


def _parse(text: str, file: str, kind: FileKind) -> Document:
    data = _from_json(text)
    node = _compose(text if data is None else _as_yaml(text))
    if not isinstance(node, yaml.MappingNode):
        actual_type = "list" if isinstance(node, yaml.SequenceNode) else "single value"
        top = f"The file contains a {actual_type}" if node else "The file is empty"
        raise ConfigError(f"{top}; a {kind.noun} is a mapping with {kind.keys}.", line=1)
    marks: dict[Keys, Marks] = {}
    _mark(node, marks)
    data = SafeConstructor().construct_document(node) if data is None else data
    data = well_formed(data, texts_only=True)
    return Document(expand(data) if kind.expands else data, file, marks)


class _Nodes(Composer, Resolver):
    """Compose YAML nodes from a parser's events, up to `MAX_NODES`."""

    def __init__(self, parser: Any) -> None:
        Composer.__init__(self)
        Resolver.__init__(self)
        self.check_event, self.peek_event = parser.check_event, parser.peek_event
        self.get_event = parser.get_event
        self.count, self.counts = 0, dict[yaml.Node | None, int]()

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        before = self.count
        node = super().compose_node(parent, index)
        # An alias is an existing node. It counts again, with all nodes inside it.
        self.count = before + self.counts.setdefault(node, self.count - before + 1)
        if self.count > MAX_NODES:
            raise ConfigError(f"The file has more than {MAX_NODES} keys and values. Split it.")
        return node


_FAST_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _compose(text: str) -> yaml.Node | None:
    # libyaml is eight times as fast, but PyYAML's error messages are better.
    with suppress(yaml.YAMLError, UnicodeError):
        return _Nodes(_FAST_PARSER(text)).get_single_node()
    return _Nodes(yaml.SafeLoader(text)).get_single_node()


def _from_json(text: str) -> dict[str, Any] | None:
    """Parse JSON text with a JSON parser. YAML rejects tabs and splits surrogate pairs."""
    try:
        data = json.loads(text.removeprefix("\ufeff"))
    except ValueError:
        return None
    return data if isinstance(data, dict) else None


def _as_yaml(text: str) -> str:
    """Return YAML with the same positions as JSON text: tabs become spaces, escapes become "__"."""
    return _JSON_ESCAPE.sub("__", text.replace("\t", " "))


def expand(value: Any) -> Any:
    """Replace ``${VAR}`` in all strings of a nested value with the environment variable's value.

    The keys ``mcp_servers``, ``env``, ``extra_body`` and ``extra_headers`` are left unchanged,
    because the journal may contain them.
    """
    if isinstance(value, str):
        return VARIABLE.sub(lambda m: os.environ.get(m[1], m[0]), value)
    if isinstance(value, dict):
        return {k: v if k in _NOT_EXPANDED else expand(v) for k, v in value.items()}
    if isinstance(value, list):
        return [expand(v) for v in value]
    return value


def unset_variable(text: str) -> str:
    """Return the name of the first ``${VAR}`` in a string, or ""."""
    match = VARIABLE.search(text)
    return match[1] if match else ""


def read_source(path: str | os.PathLike[str], kind: FileKind) -> str:
    """Read a file's text without converting its line ends.

    Args:
        path: The file.
        kind: The kind of file, for messages.

    Raises:
        ConfigError: The file is missing, not a regular file, too large, or not UTF-8.
    """
    path = as_on_disk(Path(path))
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # reading a pipe or device may never end
            message = f"Not a file. Pass the path of a {kind.noun}."
        elif status.st_size > MAX_FILE_BYTES:
            message = f"Larger than {MAX_FILE_BYTES} bytes, too large for a {kind.noun}."
        else:
            return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        message = f"No such file (working directory: {Path.cwd()}). Check the path."
    except UnicodeDecodeError as exc:
        message = f"Not UTF-8 text: {exc.reason}."
    except OSError as exc:
        message = f"Can't be read: {exc.strerror}."
    except ValueError as exc:  # a NUL or half a surrogate pair in the path
        raise ConfigError(f"Not a valid path: {exc}.", file=repr(path)) from None
    raise ConfigError(message, file=str(path))


def _mark(
    node: yaml.Node, marks: dict[Keys, Marks], path: Keys = (), key: Position | None = None
) -> None:
    position = _position(node)
    marks[path] = Marks(position, key or position)
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _mark(item, marks, (*path, index))
    elif isinstance(node, yaml.MappingNode):
        for key_node, value_node in node.value:
            key, child, message = _position(key_node), (*path, key_node.value), ""
            if isinstance(key_node, yaml.MappingNode):
                message = _QUOTE_IT
            elif not isinstance(key_node, yaml.ScalarNode):
                message = "A key must be a string."
            elif child in marks:
                first = f"first on line {marks[child].key.line}"
                message = f"Duplicate key {key_node.value!r} ({first}). Keep one."
            if message:
                raise ConfigError(message, **key._asdict())
            if key_node.tag != _MERGE:
                key_node.tag = _TEXT  # YAML would read `on` as true
            _mark(value_node, marks, child, key)


def _position(node: yaml.Node) -> Position:
    return Position(node.start_mark.line + 1, node.start_mark.column + 1)


MAX_CHARS = 4_000
MAX_VALUE_CHARS = 1_000
_FRONT_MATTER = FileKind("front matter", "`name:` and `description:`", expands=False)
_HEAD = re.compile(r"\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)


def front_matter(text: str) -> dict[str, str]:
    r"""Return the string values of a file's front matter, or {} if it is missing or invalid.

    Args:
        text: The file's beginning.

    Example:
        >>> front_matter("---\nname: tables\ndescription: Reads tables\n---\n# How")
        {'name': 'tables', 'description': 'Reads tables'}
    """
    head = _HEAD.match(text[:MAX_CHARS])
    try:
        data = parse_document(head[1], "", _FRONT_MATTER).data if head else {}
    except ConfigError:
        return {}
    return {
        key: " ".join(value.split())[:MAX_VALUE_CHARS]
        for key, value in data.items()
        if isinstance(value, str)
    }
