"""The public surface: Python, command line, cells, HTTP, files, events, errors."""

from __future__ import annotations

import dataclasses
import enum
import importlib.util
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FunctionType, ModuleType, UnionType
from typing import Any, Literal, get_origin

import click
import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from typer.testing import CliRunner

from docs.reference_pages import PUBLIC
from nb_agents import errors
from nb_agents import events as ev
from nb_agents.events import Event
from tests.golden.text import to_text
from tests.kit.cells import VERBS, AgentsMagics, actions_of
from tests.kit.servers import document
from tests.kit.teams import file_schema
from tests.kit.terminal import app
from tests.test_errors import ERRORS

__all__ = ["PANEL_TYPES", "SURFACE"]

PANEL_TYPES = Path("js/src/panel-types.ts")
HELP_COLUMNS = 1000
"""So many that each option has one line, however a library breaks lines."""

_ROOT = Path(__file__).parents[2]
_PROTOCOL = (
    "__aenter__", "__aexit__", "__await__", "__call__", "__contains__", "__enter__", "__exit__",
    "__getitem__", "__iter__", "__len__",
)  # fmt: skip
"""Methods with underscores that users call by Python's syntax."""


# Python --------------------------------------------------------------------------------------


def python_api() -> str:
    """Return every public name with its kind, signature and members."""
    return "\n".join(_module(importlib.import_module(name)) for name in PUBLIC)


def _module(module: ModuleType) -> str:
    blocks = ("\n".join(_described(name, getattr(module, name))) for name in module.__all__)
    return "\n\n".join([f"# {module.__name__}", *blocks]) + "\n"


def _described(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, type):
        bases = [base.__name__ for base in value.__bases__ if base is not object]
        yield f"class {name}({', '.join(bases)})" if bases else f"class {name}"
        yield from (f"    {line}" for line in _members(value))
    elif inspect.isfunction(value):
        yield f"{_function(value, name)}"
    else:
        yield f"{name} = {_shown(value)}"


def _members(cls: type[Any]) -> Iterator[str]:
    if issubclass(cls, BaseModel):
        for field, info in cls.model_fields.items():
            default = "" if info.is_required() else f" = {_shown(info.get_default())}"
            yield f"{field}: {_written(cls, field)}{default}"
    elif dataclasses.is_dataclass(cls):
        yield from map(_field, dataclasses.fields(cls))
    elif issubclass(cls, tuple):
        named: Any = cls
        defaults = named._field_defaults
        for field in named._fields:
            default = f" = {_shown(defaults[field])}" if field in defaults else ""
            yield f"{field}: {_annotation(cls.__annotations__[field])}{default}"
    elif not issubclass(cls, enum.Enum):
        yield from _constructed(cls)
    found = {name: each for base in reversed(_own(cls)) for name, each in vars(base).items()}
    for name, each in sorted(found.items()):
        if not name.startswith("_") or name in _PROTOCOL:
            yield from _member(name, each)


def _own(cls: type[Any]) -> list[type[Any]]:
    return [base for base in cls.__mro__ if base.__module__.startswith("nb_agents")]


def _member(name: str, member: Any) -> Iterator[str]:
    match member:
        case property(fget=getter) if getter is not None:
            yield f"property {name}: {_annotation(getter.__annotations__.get('return', 'Any'))}"
        case classmethod() | staticmethod():
            yield f"{type(member).__name__} {_function(member.__func__, name)}"
        case FunctionType(__module__=module) if module.startswith("nb_agents"):
            yield _function(member, name)
        case enum.Enum():
            yield f"{name} = {member.value!r}"


def _constructed(cls: type[Any]) -> Iterator[str]:
    """Yield the constructor of an ordinary class, and the attributes that it has."""
    constructors = [vars(base)["__init__"] for base in _own(cls) if "__init__" in vars(base)]
    yield from (_function(each, "__init__") for each in constructors[:1])
    for base in reversed(_own(cls)):
        declared = vars(base).get("__annotations__", {}).items()
        yield from (f"{name}: {_annotation(kind)}" for name, kind in declared if name[0] != "_")
    sources = map(inspect.getsource, constructors)
    set_there = [
        name for each in sources for name in re.findall(r"\bself\.([a-z]\w*)[^=\n]* = ", each)
    ]
    yield from (f"self.{name}" for name in dict.fromkeys(set_there))


def _function(function: Any, name: str) -> str:
    is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    return f"{'async ' if is_async else ''}{name}{_signature(function)}"


def _signature(function: Any) -> str:
    signature = inspect.signature(function)
    parameters = [
        each.replace(
            annotation=_source(each.annotation, _annotation), default=_source(each.default, _shown)
        )
        for each in signature.parameters.values()
    ]
    result = _source(signature.return_annotation, _annotation)
    return str(signature.replace(parameters=parameters, return_annotation=result))


class _Source:
    """A text that `inspect.Signature` shows as it is."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _source(value: Any, show: Callable[[Any], str]) -> Any:
    return value if value is inspect.Signature.empty else _Source(show(value))


def _field(field: dataclasses.Field[Any]) -> str:
    text = f"{field.name}: {_annotation(field.type)}"
    if field.default_factory is not dataclasses.MISSING:
        return f"{text} = {_shown(field.default_factory())}"
    return text if field.default is dataclasses.MISSING else f"{text} = {_shown(field.default)}"


def _written(cls: type[Any], field: str) -> str:
    """Return the annotation of a field as the source has it."""
    known = (vars(base).get("__annotations__", {}) for base in cls.__mro__)
    return _annotation(next(each[field] for each in known if field in each))


def _annotation(annotation: Any) -> str:
    """Return an annotation as it is written, whichever version of Python has kept it how."""
    if isinstance(annotation, str):
        return annotation
    forward = getattr(annotation, "__forward_arg__", None)
    text = forward if isinstance(forward, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:typing|pathlib(?:\._local)?|collections\.abc)\.", "", text)


def _shown(value: Any) -> str:
    match value:
        case type() | FunctionType():
            return value.__qualname__
        case _ if value is PydanticUndefined:
            return "..."
        case BaseModel():
            return f"{type(value).__name__}()"
        case enum.Enum():
            return f"{type(value).__name__}.{value.name}"
    return re.sub(
        r" at 0x[0-9a-f]+", "", _annotation(value) if hasattr(value, "__origin__") else repr(value)
    )


# Command line and cells ----------------------------------------------------------------------


def command_line_help() -> str:
    """Return what ``--help`` prints, for ``nb-agents`` and each of its commands."""
    group: Any = typer.main.get_command(app)
    lines = [[], *([name] for name in sorted(group.commands))]
    return "\n".join(f"$ nb-agents {' '.join([*line, '--help'])}\n{_help(line)}" for line in lines)


def _help(line: list[str]) -> str:
    env = {"COLUMNS": str(HELP_COLUMNS), "TERMINAL_WIDTH": None, "TERM": "xterm"}
    done = CliRunner().invoke(app, [*line, "--help"], env=env, prog_name="nb-agents")
    assert done.exit_code == 0, done.output
    plain = re.sub("[─-╿]+", " ", click.unstyle(done.output))
    lines = (" ".join(each.split()) for each in plain.splitlines())
    return "".join(f"  {each}\n" for each in lines if each)


def magics_help() -> str:
    """Return what ``%%agents?``, ``%agents?`` and the verbs of ``%agents`` say."""
    line_doc = AgentsMagics.agents_line.__doc__ or ""
    about = {
        "%%agents": AgentsMagics.agents,
        **{f"%agents {n}".strip(): v for n, v in VERBS.items()},
    }
    blocks = ["%agents?", *(each.strip() for each in line_doc.splitlines() if each.strip())]
    return "\n".join([*blocks, "", *(_magic(name, each) for name, each in about.items())])


def _magic(name: str, function: Any) -> str:
    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    generated = ("::", "positional arguments:", "options:")
    doc = [" ".join(each.split()) for each in paragraphs if not each.startswith(generated)]
    rows = [
        "  ".join(filter(None, [", ".join(each.option_strings), _metavar(each), each.help]))
        for each in actions_of(function)
    ]
    return "\n".join([f"{name}?", *(f"  {line}" for line in [*doc, *rows]), ""])


def _metavar(action: Any) -> str:
    """Return the name of an option's value, or those of its values."""
    metavar = action.metavar or ""
    return " ".join(metavar) if isinstance(metavar, tuple) else str(metavar)


# HTTP and files ------------------------------------------------------------------------------


def openapi() -> str:
    """Return the server's OpenAPI document, but for the version of the package."""
    made = document("/nb-agents")
    made["info"]["version"] = "0"
    return to_text(made) + "\n"


def panel_types() -> str:
    """Return the panel's types in TypeScript."""
    script = _script(_ROOT / "js" / "panel_types.py")
    return str(script.type_script(script.SOURCE.read_text("utf-8")))


def _script(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Events and errors ---------------------------------------------------------------------------


def events() -> str:
    """Return each kind of event with its fields, then what else `nb_agents.events` has."""
    kinds = [_kind(kind, cls) for kind, cls in sorted(ev.KINDS.items())]
    others = {name: each for name, each in vars(ev).items() if name[0] != "_" and _is_part(each)}
    rest = ["\n".join(_described(name, each)) for name, each in sorted(others.items())]
    return "\n\n".join([*kinds, f"SCHEMA_VERSION = {ev.SCHEMA_VERSION}", *rest]) + "\n"


def _is_part(value: Any) -> bool:
    """Return whether a value is declared by `nb_agents.events` and is no kind of event."""
    is_choice = get_origin(value) in (Literal, UnionType)
    is_own = getattr(value, "__module__", "").startswith("nb_agents.events")
    return is_choice or (is_own and value not in (*ev.KINDS.values(), Event))


def _kind(kind: str, cls: type[Any]) -> str:
    of = ", ".join(base.__name__ for base in cls.__mro__[1:] if issubclass(base, Event))
    common = {field.name for field in dataclasses.fields(Event)}
    fields = [f"    {_field(each)}" for each in dataclasses.fields(cls) if each.name not in common]
    return "\n".join([f"{kind}: {cls.__name__}({of})", *fields])


def error_messages() -> str:
    """Return the message of each error with sample values."""
    names = [name for name in errors.__all__ if isinstance(getattr(errors, name), type)]
    blocks = [[name, *_messages(getattr(errors, name))] for name in names]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _messages(cls: type[Exception]) -> Iterator[str]:
    for error in ERRORS:
        if type(error) is cls:
            yield from (f"    {line}" for line in f"- {error}".splitlines())


SURFACE: Mapping[str, Callable[[], str]] = {
    "python.txt": python_api,
    "command-line.txt": command_line_help,
    "magics.txt": magics_help,
    "openapi.json": openapi,
    "team.schema.json": lambda: to_text(file_schema("team")) + "\n",
    "recipe.schema.json": lambda: to_text(file_schema("recipe")) + "\n",
    "events.txt": events,
    "errors.txt": error_messages,
}
"""What makes each file of ``surface/``."""
