"""The names of a recipe's keys: aliases, and unknown keys that must not be ignored.

An unknown key is ignored only if it contains neither steps nor templates. Otherwise it is an error,
because the file expects a run to do something with it.

Source: amplifier-bundle-recipes, `models.py`: its `Step` accepts attribute names as keys, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from nb_agents.config.document import Document, Keys, Marks
from nb_agents.config.faults import Fault, Section, dotted, keys_of
from nb_agents.extensions.recipes.recipe_step import Stage, Step
from nb_agents.extensions.recipes.recipe_values import is_template

ALIASES = {"while_steps": "steps", "as_var": "as", "step_context": "context"}
"""Maps Amplifier's alternative names of a step's keys to our names."""

_OTHER_FORMATS = {
    "when": "condition",
    "if": "condition",
    "run": "command",
    "script": "command",
    "cmd": "command",
    "for_each": "foreach",
    "needs": "depends_on",
}
"""Maps other formats' names of keys that define work to our names."""

_LABELS = {"name", "title", "description", "comment", "note", "notes"}
"""Unknown keys that only describe a step. They are always ignored."""

_WORK_KEYS = {"agent", "prompt", "command", "recipe", "steps", "while_steps"}
_ALIAS_PREFIX = "x-"
"""Prefix of top-level keys that only define content for YAML aliases."""


def replace_aliases(document: Document) -> Document:
    """Return a recipe's document with key aliases replaced. Positions do not change.

    If a step has a key under both names, both remain, and `duplicate_keys` reports them.
    """
    renamed: dict[Keys, object] = {}
    data = {key: _in_list(value, key, (key,), renamed) for key, value in document.data.items()}
    if not renamed:
        return document
    return replace(document, data=data, marks=_moved(document.marks, renamed))


def _in_list(value: object, key: str, path: Keys, renamed: dict[Keys, object]) -> Any:
    """Return ``steps`` or ``stages`` with aliases replaced, and other values unchanged."""
    if key not in ("steps", "stages") or not isinstance(value, list):
        return value
    return [_in_mapping(each, (*path, n), renamed) for n, each in enumerate(value)]


def _in_mapping(value: object, path: Keys, renamed: dict[Keys, object]) -> Any:
    if not isinstance(value, dict):
        return value
    is_step = path[-2] == "steps" or path[:-1] in renamed
    result: dict[str, Any] = {}
    for key, inner in value.items():
        own_key = ALIASES.get(key) if is_step else None
        if own_key is None or own_key in value:
            own_key = key
        else:
            renamed[(*path, key)] = own_key
        result[own_key] = _in_list(inner, own_key, (*path, key), renamed)
    return result


def _moved(marks: Mapping[Keys, Marks], renamed: Mapping[Keys, object]) -> dict[Keys, Marks]:
    return {
        tuple(renamed.get(path[: n + 1], part) for n, part in enumerate(path)): mark
        for path, mark in marks.items()
    }


def duplicate_keys(step: Mapping[str, Any], path: Keys) -> Iterator[Fault]:
    """Yield an error for each key that a step has under both of its names."""
    for name, own_key in ALIASES.items():
        if name in step and own_key in step:
            message = f"Step {step.get('id', '')!r} has both `{own_key}` and `{name}`. Keep one."
            yield Fault(message, (*path, name), at_key=True)


def unknown_work_keys(section: Section) -> Iterator[Fault]:
    """Yield an error for each unknown key of a section that must not be ignored."""
    known_keys = keys_of(section.spec)
    for key, value in section.data.items():
        path = (*section.path, key)
        if key in known_keys or key in ALIASES:
            continue
        if why := _work_in(str(key), value, section, known_keys):
            yield Fault(f"Unknown key {dotted(path)!r}{why}", path, at_key=True)


def _work_in(key: str, value: object, section: Section, known_keys: list[str]) -> str:
    """Return why an unknown key must not be ignored, or "" if it may be.

    The text is the end of a sentence. Ignoring a key is an error if it contains steps or templates,
    or looks like a misnamed key, because work would be skipped.
    """
    if _OTHER_FORMATS.get(key) in known_keys:
        return f"; did you mean {_OTHER_FORMATS[key]!r}?"
    is_top = not section.path
    if _has_steps(value) and not (is_top and key.startswith(_ALIAS_PREFIX)):
        advice = "Move them to `steps`, or to those of a loop."
        hint = f" Begin the key with {_ALIAS_PREFIX!r} if they are only for YAML aliases."
        return f" contains steps, which would never run. {advice}{hint if is_top else ''}"
    if section.spec in (Step, Stage) and key not in _LABELS and _has_template(value):
        return " contains a {{…}} and has no effect. Remove it or use a known key."
    return ""


def _has_steps(value: object) -> bool:
    if isinstance(value, list):
        return any(map(_has_steps, value))
    return isinstance(value, dict) and (_is_step(value) or any(map(_has_steps, value.values())))


def _is_step(value: Mapping[str, Any]) -> bool:
    return ("id" in value and bool(_WORK_KEYS & value.keys())) or {
        "agent",
        "prompt",
    } <= value.keys()


def _has_template(value: object) -> bool:
    if isinstance(value, list):
        return any(map(_has_template, value))
    if isinstance(value, dict):
        return any(map(_has_template, value.values()))
    return is_template(value)
