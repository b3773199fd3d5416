"""The reference, generated from the code: magics, command line, REST, files, events, errors, API.

`write` generates the pages at each build of the site, so every name, key, option, event and error
of the code is on its page. `tests/docs/test_reference.py` finds the ones without a description.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from nb_agents import errors
from nb_agents.cli import app
from nb_agents.config.faults import specs_in
from nb_agents.config.spec import Spec
from nb_agents.config.team import TeamSpec
from nb_agents.errors import NbAgentsError
from nb_agents.events import KINDS
from nb_agents.extensions.recipes.recipe import Recipe
from nb_agents.jupyter.magic import AgentsMagics
from nb_agents.jupyter.verbs import VERBS
from nb_agents.server.openapi import FACTS, document
from nb_agents.view.receipt import receipt
from nb_agents.view.run_view import RunView

__all__ = [
    "PAGES",
    "PUBLIC",
    "field_says",
    "options_of",
    "data_says",
    "sentences_of",
    "spec_keys",
    "write",
]

PUBLIC = (
    "nb_agents",
    "nb_agents.options",
    "nb_agents.recipes",
    "nb_agents.errors",
    "nb_agents.client",
    "nb_agents.testing",
    "nb_agents.extend",
    "nb_agents.plugins",
)
"""The public modules on the page of the Python API. Events have their own page."""

_COMMON = {
    "answer": "The full answer.",
    "attempt": "Number of the attempt, starting at 1.",
    "call_id": "ID of the tool call.",
    "channel": "Kind of text.",
    "error": "Description of the error.",
    "target": "The agent voted for.",
    "text": "The text.",
    "tool": "The tool's name.",
    "usage": "Tokens and cost of the call.",
    "votes": "Number of votes for each agent.",
}
"""Descriptions of event fields that their own class does not describe."""

_HTTP = ("get", "post", "put", "delete", "patch")
_STEPS = "steps"


def write(folder: Path) -> None:
    """Write each page whose content has changed.

    Args:
        folder: The directory of the pages.
    """
    for name, make in PAGES.items():
        page, text = folder / f"{name}.md", make()
        if not page.exists() or page.read_text("utf-8") != text:
            page.write_text(text, "utf-8")


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return _rows(heads, [[*map(_cell, row)] for row in rows])


def _rows(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose cells are Markdown already, or nothing without rows."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n" if rows else ""


def _cell(text: str) -> str:
    return " ".join(text.replace("``", "`").split()).replace("|", "\\|").replace("<", "\\<")


def _literal(text: str) -> str:
    """Return plain text as Markdown that shows each of its characters."""
    return re.sub(r"([\\`*_{}\[\]<>#|~$])", r"\\\1", " ".join(text.split()))


def _help(text: str) -> str:
    """Return the help of a command: sentences as paragraphs, and examples as they are."""
    parts = [inspect.cleandoc(part) for part in text.strip().split("\n\n")]
    return "".join(f"{_help_part(part)}\n\n" for part in parts)


def _help_part(part: str) -> str:
    if re.search(r"^\s", part, re.MULTILINE):
        return f"```text\n{part}\n```"
    joined = re.sub(r"\n(?=[a-z])", " ", part)  # a line that continues the one before
    return "\\\n".join(map(_literal, joined.splitlines()))


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


# Magics


def magics_page() -> str:
    """Return the page of ``%%agents`` and the verbs of ``%agents``."""
    cell = AgentsMagics.agents
    text = "# Magics\n\n`%load_ext nb_agents` loads them.\n\n## %%agents\n\n"
    text += _help(prose_of(cell)) + _magic_options(cell)
    text += (
        "`RUN` is a run's ID, the name of a session in this session root, or the name of a live "
        "run in any other root. Without `RUN`, a command uses the latest run of this kernel, or "
        "the only live run that this notebook started.\n\n"
    )
    for name, verb in VERBS.items():
        text += f"## %agents {name}".rstrip() + "\n\n"
        text += _help(prose_of(verb)) + _magic_options(verb)
    return text


def prose_of(function: Any) -> str:
    """Return a magic's docstring without the usage that IPython inserts.

    Args:
        function: A magic, or one of `VERBS`.
    """
    parts = re.split(r"\n\n(?=\S)", function.__doc__ or "")
    usage = ("::", "positional arguments:", "options:")
    return "\n\n".join(part for part in parts if not part.startswith(usage)).strip()


def _magic_options(function: Any) -> str:
    rows = [
        (_code(name.replace("|", "\\|")), _code(metavar.replace("|", "\\|")), _literal(help_))
        for name, metavar, help_ in options_of(function)
    ]
    return _rows(("option", "value", "description"), rows)


def _metavar(action: Any) -> str:
    """Return the name of an option's value, or those of its values."""
    metavar = action.metavar or ""
    return " ".join(metavar) if isinstance(metavar, tuple) else str(metavar)


def options_of(function: Any) -> list[tuple[str, str, str]]:
    """Return the arguments of a magic as (names, value, description).

    Args:
        function: A magic, or one of `VERBS`.
    """
    return [
        (
            ", ".join(action.option_strings) or str(action.metavar or action.dest),
            _metavar(action) if action.option_strings and action.nargs != 0 else "",
            action.help or "",
        )
        for action in function.parser._actions
        if action.dest != "help"
    ]


# The command line


def cli_page() -> str:
    """Return the page of ``nb-agents``."""
    text = "# Command line\n\nExit codes: 0 complete, 1 failed, 2 misused, 3 incomplete, "
    text += "130 interrupted before it began.\n\n"
    for name, command in sorted(commands().items()):
        text += f"## nb-agents {name}\n\n{_help(command.help or '')}"
        rows = [
            (
                _code(", ".join(p.opts) if p.param_type_name == "option" else p.name.upper()),
                _literal(getattr(p, "help", None) or ""),
            )
            for p in command.params
        ]
        text += _rows(("option", "description"), rows)
    return text


def commands() -> Mapping[str, Any]:
    """Return the commands of ``nb-agents`` by name."""
    group: Any = typer.main.get_command(app)
    found: Mapping[str, Any] = group.commands
    return found


# REST


def rest_page() -> str:
    """Return the page of the routes under ``/nb-agents``."""
    text = "# REST\n\nThe Jupyter server has these routes under `/nb-agents`. Each request needs "
    text += "the server's token in the header `Authorization: token …`. "
    text += "`GET /nb-agents/openapi.json` returns this page as OpenAPI 3.1.\n\n"
    for path, item in document("").get("paths", {}).items():
        for method in _HTTP:
            if method in item:
                text += _operation(method.upper(), path, item[method])
    for facts in FACTS:
        text += f"## {facts.__name__}\n\n{_summary(facts)}\n\n"
        text += _table(("field", "type", "meaning"), _field_rows(facts))
    return text


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    text = f"## {method} {path}\n\n{operation.get('summary', '')}\n\n"
    given = [
        (_code(each["name"]), each.get("in", ""), each.get("description", ""))
        for each in operation.get("parameters", ())
    ]
    text += _table(("parameter", "in", "meaning"), given)
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    keys = [
        (_code(name), _code(_json_type(of)), _code(_json(of)), of.get("description", ""))
        for name, of in content.get("schema", {}).get("properties", {}).items()
    ]
    text += _table(("key of the body", "type", "default", "meaning"), keys)
    replies = [(code, of["description"]) for code, of in operation["responses"].items()]
    return text + _table(("status", "meaning"), replies)


def _json_type(schema: dict[str, Any]) -> str:
    kinds = [each.get("type", "") for each in schema.get("anyOf", (schema,))]
    if "enum" in schema:
        return " or ".join(map(json.dumps, schema["enum"]))
    return " or ".join(filter(None, kinds))


def _json(schema: dict[str, Any]) -> str:
    return json.dumps(schema["default"]) if "default" in schema else ""


# Files


def team_page() -> str:
    """Return the page of a team file's keys."""
    text = "# Team file\n\nA team file is YAML or JSON in MassGen's format. `callable_agents` have "
    text += (
        "the same keys as `agents`. [MassGen keys](../massgen-keys.md) lists what nb_agents does "
    )
    text += "with each key of MassGen.\n\n"
    return text + _spec_tables(TeamSpec, "Top level", skip={"callable_agents"})


def recipe_page() -> str:
    """Return the page of a recipe's keys."""
    text = "# Recipe language\n\nA recipe is YAML in Amplifier's format. Steps can contain "
    text += "`steps`. [The recipes notebook](../notebooks/recipes.ipynb) ends with the differences "
    text += f"from Amplifier.\n\n{_spec_tables(Recipe, 'Top level', skip=set())}"
    return text


def _spec_tables(spec: type[Spec], title: str, skip: set[str]) -> str:
    text = ""
    for place, each in _sections(spec, skip):
        text += f"## {_code(place) or title}\n\n"
        rows = [
            (_code(key), _code(kind), _code(default), said)
            for key, kind, default, said in spec_keys(each)
        ]
        text += _table(("key", "type", "default", "meaning"), rows)
    return text


def _sections(
    spec: type[Spec], skip: set[str], place: str = "", seen: tuple[type[Spec], ...] = ()
) -> Iterator[tuple[str, type[Spec]]]:
    yield place, spec
    for key, (inner, _) in specs_in(spec).items():
        if key in skip or inner in (spec, *seen) or (not place and key == _STEPS):
            continue
        yield from _sections(inner, skip, f"{place}.{key}".strip("."), (spec, *seen))


def spec_keys(spec: type[BaseModel]) -> list[tuple[str, str, str, str]]:
    """Return the keys of a section as (name, type, default, meaning).

    Args:
        spec: The model that parses the section.
    """
    return [
        (field.alias or name, _type(field.annotation), _default(field), about(spec, name))
        for name, field in spec.model_fields.items()
        if not field.exclude
    ]


_PLAIN = {str: "text", float: "number", int: "whole number", bool: "true or false", Any: "any"}


def _type(annotation: Any) -> str:
    """Return a field's type in the terms of YAML."""
    annotation = getattr(annotation, "__value__", annotation)  # of a `type` statement
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(args[0])
    if origin is Literal:
        return " or ".join(map(str, args))
    if origin in (Union, UnionType):
        kinds = [_type(each) for each in args if each is not type(None)]
        return " or ".join(dict.fromkeys(kinds))
    if origin in (tuple, list):
        return f"list of {_type(args[0])}"
    if origin in (dict, Mapping):
        return "mapping"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "mapping"
    return _PLAIN.get(annotation, "text")


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if value is PydanticUndefined or isinstance(value, BaseModel):
        return ""
    if value in (None, "", ()):
        return ""
    return json.dumps(value, default=str)


@cache
def about(spec: type[Any], field: str) -> str:
    """Return the description of a field from the docstring of a class or of its bases."""
    for each in spec.__mro__:
        _, _, listed = inspect.cleandoc(each.__dict__.get("__doc__") or "").partition("Attributes:")
        for found in re.finditer(r"^    (\w[\w,\s]*?): ((?:.|\n(?=     ))*)", listed, re.MULTILINE):
            if field in re.split(r",\s+", found[1]):
                return " ".join(found[2].split())
    return ""


# Events


def events_page() -> str:
    """Return the page of all events, by kind."""
    text = "# Events\n\nEach line of `events.jsonl` is one event as JSON. Each event has `seq` (its"
    text += " position, starting at 1), `at` (Unix time in seconds) and `kind`. "
    text += "`nb_agents.follow(path)` yields events as objects of `nb_agents.events`.\n\n"
    for kind, cls in sorted(KINDS.items()):
        text += f"## {kind}\n\n{_summary(cls)}\n\n"
        rows = _field_rows(cls, skip=("seq", "at", "kind"))
        text += _table(("field", "type", "meaning"), rows)
    return text


def _field_rows(cls: type[Any], skip: Collection[str] = ()) -> list[tuple[str, str, str]]:
    own = [f for f in dataclasses.fields(cls) if f.name not in skip]
    return [(_code(f.name), _code(_field_type(f.type)), field_says(cls, f.name)) for f in own]


def field_says(cls: type[Any], field: str) -> str:
    """Return the description of an event's field, or "" if there is none."""
    return about(cls, field) or _COMMON.get(field, "")


def _field_type(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"tuple\[(.+), \.\.\.\]", r"list of \1", text).replace(" | ", " or ")


def _summary(cls: type[Any]) -> str:
    doc = inspect.cleandoc(cls.__doc__ or "")
    return re.split(r"\n\s*Attributes:", doc)[0].replace("``", "`").strip()


# Errors


def errors_page() -> str:
    """Return the page of all exceptions: when each is raised, and its message."""
    tree = (errors.__doc__ or "").partition("NbAgentsError\n")[2].partition("\n\n")[0]
    text = "# Errors\n\nA message states what is wrong and what to do. A stop is not an error.\n\n"
    text += f"```text\nNbAgentsError\n{inspect.cleandoc(tree)}\n```\n\n"
    for name, cause, sentence in sentences_of():
        text += f"## {name}\n\n{cause}\n\n"
        if sentence:
            text += "".join(f"> {line}\n" for line in sentence.splitlines()) + "\n"
    return text


def sentences_of() -> list[tuple[str, str, str]]:
    """Return each error as (name, cause, message with placeholders for values)."""
    kinds = [getattr(errors, name) for name in errors.__all__]
    found = [each for each in kinds if isinstance(each, type) and issubclass(each, NbAgentsError)]
    return [(each.__name__, _summary(each), _sentence(each)) for each in found]


def _sentence(cls: type[NbAgentsError]) -> str:
    if cls.__str__ is NbAgentsError.__str__:
        return ""
    parameters = inspect.signature(cls).parameters.values()
    given = [_example(p) for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    return _cell(str(cls(*given)).replace("\\", "")).replace("*", "\\*")


def _example(parameter: inspect.Parameter) -> Any:
    name, kind = parameter.name.upper(), str(parameter.annotation)
    examples: tuple[tuple[str, Callable[[], Any]], ...] = (
        ("Mapping", lambda: {"AGENT": "WHY"}),
        ("tuple", lambda: (name,)),
        ("int", lambda: 2),
        ("bool", lambda: False),
        ("Path", lambda: Path("PATH")),
        ("Receipt", lambda: receipt(RunView(status="cancelled"), "PATH")),
    )
    return next((make() for part, make in examples if part in kind), name)


# Python


def python_page() -> str:
    """Return the page of the Python API: every name of every public module."""
    text = "# Python\n\nThe public names are those in `__all__` of these modules.\n\n"
    documented: dict[int | str, str] = {}
    for module_name in PUBLIC:
        module = importlib.import_module(module_name)
        text += f"## {module_name}\n\n"
        for name in module.__all__:
            if module is errors and inspect.isclass(getattr(module, name)):
                continue
            value, qualified = getattr(module, name), f"{module_name}.{name}"
            key = id(value) if callable(value) else qualified
            if (first := documented.setdefault(key, qualified)) == qualified:
                text += _autodoc(module_name, name, value)
            else:
                text += f"### {name}\n\nThe same as `{first}`.\n\n"
        if module is errors:
            text += "The exceptions are on [their own page](errors.md).\n\n"
    return text + "## nb_agents.events\n\nThe classes are on [their own page](events.md).\n"


def data_says(module: str, name: str) -> str:
    """Return the text below the assignment of a name that a module imports on first use, or "".

    Sphinx looks for the text only in the module that it documents.
    """
    lazy: Mapping[str, str] = getattr(importlib.import_module(module), "_MODULES", {})
    if name not in lazy:
        return ""
    source = inspect.getsource(importlib.import_module(lazy[name]))
    for before, after in pairwise(ast.parse(source).body):
        match before, after:
            case (
                ast.Assign(targets=[ast.Name(target)]) | ast.AnnAssign(target=ast.Name(target)),
                ast.Expr(ast.Constant(str(text))),
            ) if target == name:
                return inspect.cleandoc(text)
    return ""


def _autodoc(module: str, name: str, value: Any) -> str:
    if not inspect.isclass(value) and (text := data_says(module, name)):
        body = "".join(f"   {line}".rstrip() + "\n" for line in text.splitlines())
        return f"### {name}\n\n```{{eval-rst}}\n.. py:data:: {module}.{name}\n\n{body}```\n\n"
    kind = "autoclass" if inspect.isclass(value) else "autofunction"
    if inspect.isclass(value) and issubclass(value, BaseException):
        kind = "autoexception"
    if not callable(value):
        kind = "autodata"
    members = "   :members:\n" if kind == "autoclass" and "RunView" not in name else ""
    return f"### {name}\n\n```{{eval-rst}}\n.. {kind}:: {module}.{name}\n{members}```\n\n"


PAGES: dict[str, Callable[[], str]] = {
    "magics": magics_page,
    "command-line": cli_page,
    "rest": rest_page,
    "team-file": team_page,
    "recipe-language": recipe_page,
    "events": events_page,
    "errors": errors_page,
    "python": python_page,
}
"""The function that generates each page, by page name."""
