"""Rules on combinations of a recipe's keys, over the file's data, with positions.

They read the data as the file has it, not the specs, so that one wrong value hides no other
fault. Values of a wrong type are pydantic's to tell of and are passed over here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from nb_agents.config.document import Keys
from nb_agents.config.faults import (
    Fault,
    Section,
    dotted,
    keys_of,
    meant_by,
    sections,
    slips,
)
from nb_agents.config.recipe_step import Approval, ProviderPreference, Stage, Step
from nb_agents.config.recipe_values import is_template
from nb_agents.config.spec import Spec
from nb_agents.nouns import did_you_mean, nearest

_NEEDS = {
    "agent": {"agent": "who is asked", "prompt": "what it is asked"},
    "bash": {"command": "what bash runs"},
    "recipe": {"recipe": "which file runs"},
}
_FORBIDS = {
    "agent": ("recipe", "context", "command"),
    "bash": ("agent", "prompt", "mode", "agent_config", "recipe", "context", "recursion"),
    "recipe": ("agent", "prompt", "mode", "command"),
}
_MODEL_KEYS = ("provider", "model", "provider_preferences", "model_role", "spawn_mode")
_BASH_KEYS = ("cwd", "env", "output_exit_code", "repeatable")
_IDLE = {
    "agent": (*_BASH_KEYS, "recursion"),
    "bash": _MODEL_KEYS,
    "recipe": (*_MODEL_KEYS, *_BASH_KEYS, "agent_config"),
}
_OWNER = {"command": "bash", "recipe": "recipe", "context": "recipe", "agent": "agent"}
_GATE_KEYS = ("approval", "approval_required", "approval_message", "auto_approve_if")
_OTHER_NAMES = dict.fromkeys(("working_dir", "working_directory", "workdir"), "cwd")
"""What others call a key of ours, which is ignored all the same: their recipes run without it."""
_LIKE_A_GATE = re.compile(r"approv|confirm|(^|_)gate", re.IGNORECASE)
_LIKE_A_PROMPT = re.compile(r"prompt|message|question|text|ask", re.IGNORECASE)
_FOREACH = re.compile(r"\s*\{\{\s*\w+(\.\w+)*\s*\}\}\s*")


class _Located(NamedTuple):
    path: Keys
    step: Mapping[str, Any]
    earlier: Mapping[str, None]
    """Ids that it may depend on, as they are while the step is looked at."""


def slipped_keys(spec: type[Spec], data: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield the keys that are misspellings of ours, and gates where or as there is none."""
    yield from slips(sections(spec, data))
    for section in sections(spec, data):
        for key in section.data:
            path = (*section.path, key)
            if key in _GATE_KEYS and section.spec is not Stage:
                what = f"{dotted(path)!r} has no effect there: only a stage has a gate. Move it."
                yield Fault(what, path, at_key=True)
            elif not meant_by(key, section.spec) and (meant := _gate_key(section, key)):
                yield Fault(f"Unknown key {dotted(path)!r}; {meant}.", path, at_key=True)


def _gate_key(section: Section, written: str) -> str:
    """Return how a gate is written, for an unknown key that means one; else "".

    What is not understood of a gate must not be ignored: the recipe would go on without it.
    """
    key = str(written)  # YAML takes a bare `on` for true
    if key in keys_of(section.spec) or not section.data[written]:
        return ""
    asks = _LIKE_A_PROMPT.search(key)
    if section.spec is Approval and asks:
        return "what the gate asks is `prompt`"
    if section.spec not in (Stage, Step) or not _LIKE_A_GATE.search(key):
        return ""
    if section.spec is Stage and asks:
        return "what the gate asks is `approval_message`"
    only = "" if section.spec is Stage else "only a stage has one, "
    return f"is a gate meant? {only}as `approval_required: true` with `approval_message: …`"


def unknown_keys(spec: type[Spec], data: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield the unknown keys."""
    for section in sections(spec, data):
        ours = keys_of(section.spec)
        for key in section.data:
            if key not in ours:
                other = _OTHER_NAMES.get(key)
                near = other if other in ours else nearest(key, ours)
                hint = f" The nearest key is {near!r}." if near else ""
                path = (*section.path, key)
                yield Fault(f"Unknown key {dotted(path)!r} is ignored.{hint}", path, at_key=True)


def idle_keys(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield the keys that are known and have no effect where they stand."""
    for stage, path in _stages(data):
        if stage.get("auto_approve_if") and not _has_gate(stage):
            yield _idle(path, "auto_approve_if", "the stage has no gate")
        if stage.get("approval_message") and not _has_gate(stage):
            yield _idle(path, "approval_message", "`approval_required` is not set")
    for each in _steps(data):
        yield from _idle_in(each)


def breaches(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield the rules that a recipe breaks.

    Args:
        data: The file's content.

    Yields:
        Each, in no order.
    """
    yield from _shape(data)
    names: set[object] = set()
    for stage, path in _stages(data):
        yield from _in_stage(stage, path)
        name = stage.get("name")
        if isinstance(name, str) and name in names:
            yield Fault(f"Two stages are named {name!r}. Rename one.", (*path, "name"))
        names.add(name if isinstance(name, str) else None)
    ids = {id_ for each in _steps(data) if isinstance(id_ := each.step.get("id"), str)}
    named: set[str] = set()
    for each in _steps(data):
        id_ = each.step.get("id")
        if isinstance(id_, str):
            if id_ in named:
                yield Fault(f"Two steps are named {id_!r}. Rename one.", (*each.path, "id"))
            named.add(id_)
        yield from _in_step(each)
        yield from _dependencies(each, ids)


def _shape(data: Mapping[str, Any]) -> Iterator[Fault]:
    both = [key for key in ("steps", "stages") if data.get(key)]
    if len(both) == 2:
        yield Fault("Both `steps` and `stages` are given. Keep one.", ("stages",), at_key=True)
    elif not both:
        yield Fault("A recipe needs `steps` or `stages`, with at least one step.", ())


def _in_stage(stage: Mapping[str, Any], path: Keys) -> Iterator[Fault]:
    name = stage.get("name", "")
    if not stage.get("steps"):
        yield Fault(f"Stage {name!r} needs at least one step.", path)
    approval = stage.get("approval")
    prompt = approval.get("prompt") if isinstance(approval, dict) else None
    if (
        _has_gate(stage)
        and not (_is_said(prompt) or _is_said(stage.get("approval_message")))
        and not _asks_otherwise(stage)
    ):
        key = "approval" if approval else "approval_required"
        says = "`prompt` in `approval`" if approval else "`approval_message`"
        what = f"The gate of stage {name!r} has no prompt. Say what it asks in {says}."
        yield Fault(what, (*path, key))


def _asks_otherwise(stage: Mapping[str, Any]) -> bool:
    """Return whether a gate's prompt has a misspelled key, which is reported already."""
    approval = stage.get("approval")
    inside = approval if isinstance(approval, dict) else {}
    mappings = [Section(Stage, (), stage), Section(Approval, (), inside)]
    return any(
        _LIKE_A_PROMPT.search(key) and _gate_key(section, key)
        for section in mappings
        for key in section.data
    )


def _has_gate(stage: Mapping[str, Any]) -> bool:
    approval = stage.get("approval")
    inside = approval.get("required") if isinstance(approval, dict) else False
    return bool(inside or stage.get("approval_required"))


def _in_step(each: _Located) -> Iterator[Fault]:
    if not _slips(each.step) & {"type"}:
        yield from _kind(each)
    yield from _loop(each)
    yield from _model(each)


def _kind(each: _Located) -> Iterator[Fault]:
    step, path, kind = each.step, each.path, each.step.get("type") or "agent"
    if not isinstance(kind, str) or kind not in _NEEDS:
        return
    who = f"Step {step.get('id', '')!r}"
    missing = [k for k in _NEEDS[kind] if not _is_said(step.get(k)) and k not in _slips(step)]
    for key in missing if not step.get("steps") else ():
        yield Fault(f"{who} has no `{key}`. Say {_NEEDS[kind][key]}.", (*path, key))
    for key in _FORBIDS[kind]:
        if step.get(key):
            what = f"{who} is of type {kind} and can't have `{key}`. {_way_out(key)}"
            yield Fault(what, (*path, key), at_key=True)


def _is_said(value: object) -> bool:
    return bool(value.strip() if isinstance(value, str) else value)


def _way_out(key: str) -> str:
    return f"Remove it, or set `type: {_OWNER[key]}`." if key in _OWNER else "Remove it."


def _loop(each: _Located) -> Iterator[Fault]:
    step, path = each.step, each.path
    foreach, repeats = step.get("foreach"), step.get("while_condition") is not None
    if foreach and repeats:
        yield Fault("A loop has `foreach` or `while_condition`, not both.", (*path, "foreach"))
    if isinstance(foreach, str) and foreach and not _FOREACH.fullmatch(foreach):
        what = '`foreach` takes one variable and nothing else, as "{{files}}".'
        yield Fault(what, (*path, "foreach"))
    if repeats and not _is_condition(step["while_condition"]):
        what = "`while_condition` needs a {{variable}}, or is `true`."
        yield Fault(what, (*path, "while_condition"))
    if step.get("update_context") and not repeats:
        yield Fault("`update_context` needs `while_condition`.", (*path, "update_context"), True)
    if step.get("break_when") and not (repeats or foreach):
        what = "`break_when` needs `while_condition` or `foreach`."
        yield Fault(what, (*path, "break_when"), at_key=True)
    for key in ("parallel", "checkpoint_iterations"):
        if step.get(key) and not foreach:
            yield Fault(f"`{key}` needs `foreach`.", (*path, key), at_key=True)
    if step.get("parallel") and step.get("checkpoint_iterations"):
        what = "`checkpoint_iterations` is for a loop that is not parallel. Remove one of them."
        yield Fault(what, (*path, "checkpoint_iterations"), at_key=True)
    if step.get("steps") and not (foreach or repeats):
        yield Fault("Nested `steps` need `foreach` or `while_condition`.", (*path, "steps"), True)


def _is_condition(value: object) -> bool:
    return value is True or (isinstance(value, str) and (is_template(value) or _is_true(value)))


def _is_true(text: str) -> bool:
    return text.strip().strip("'\"").lower() == "true"


def _model(each: _Located) -> Iterator[Fault]:
    step, path = each.step, each.path
    ways = [k for k in ("provider", "model", "provider_preferences", "model_role") if step.get(k)]
    others = [key for key in ways if key not in ("provider", "model")]
    if len(others) + (len(others) < len(ways)) > 1:
        what = "A step's model is given in one way: `provider` and `model`, or "
        what += "`provider_preferences`, or `model_role`. Keep one."
        yield Fault(what, (*path, ways[-1]), at_key=True)
    wished = step.get("provider_preferences")
    for number, wish in enumerate(wished if isinstance(wished, list) else ()):
        if isinstance(wish, dict) and not (wish.get("provider") or wish.get("class")):
            if not any(meant_by(key, ProviderPreference) for key in wish):
                what = "A preference names a `provider` or a `class`."
                yield Fault(what, (*path, "provider_preferences", number))


def _dependencies(each: _Located, ids: set[str]) -> Iterator[Fault]:
    given = each.step.get("depends_on") or []
    one = isinstance(given, str)
    for number, id_ in enumerate([given] if one else given if isinstance(given, list) else []):
        path = (*each.path, "depends_on") if one else (*each.path, "depends_on", number)
        if not isinstance(id_, str) or id_ in each.earlier:
            continue
        if id_ in ids:
            what = f"Step {id_!r} does not come earlier in this list or in one around it."
            yield Fault(f"{what} Name one that does.", path)
        else:
            yield Fault(f"No step {id_!r}.{did_you_mean(id_, each.earlier)}", path)


def _idle_in(each: _Located) -> Iterator[Fault]:
    step, path = each.step, each.path
    kind = step.get("type") or "agent"
    if step.get("steps"):
        for key in ("agent", "prompt", "command", "recipe", *_MODEL_KEYS):
            if step.get(key):
                yield _idle(path, key, "the step has nested `steps`")
        return
    for key in _IDLE.get(kind, ()) if isinstance(kind, str) else ():
        if step.get(key):
            yield _idle(path, key, f"the step is of type {kind}")
    for key in ("agent_config", "spawn_mode"):
        if step.get(key) and kind == "agent":
            yield _idle(path, key, "every agent has a session of its own, from the team's file")
    if step.get("foreach") and step.get("parallel") and step.get("break_when"):
        yield _idle(path, "break_when", "the loop is parallel")
    if not step.get("foreach") and step.get("while_condition") is None:
        for key in ("as", "collect", "max_iterations", "max_while_iterations"):
            if step.get(key):
                yield _idle(path, key, "the step is not a loop")


def _idle(path: Keys, key: str, why: str) -> Fault:
    return Fault(f"`{key}` is not used: {why}.", (*path, key), at_key=True)


def _stages(data: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Keys]]:
    stages = data.get("stages")
    for number, stage in enumerate(stages if isinstance(stages, list) else ()):
        if isinstance(stage, dict):
            yield stage, ("stages", number)


def _steps(data: Mapping[str, Any]) -> Iterator[_Located]:
    earlier: dict[str, None] = {}
    yield from _listed(data.get("steps"), ("steps",), earlier)
    for stage, path in _stages(data):
        yield from _listed(stage.get("steps"), (*path, "steps"), earlier)


def _listed(steps: object, path: Keys, earlier: dict[str, None]) -> Iterator[_Located]:
    for number, step in enumerate(steps if isinstance(steps, list) else ()):
        if not isinstance(step, dict):
            continue
        here = (*path, number)
        yield _Located(here, step, earlier)
        if isinstance(step.get("steps"), list):
            yield from _listed(step["steps"], (*here, "steps"), dict(earlier))
        if isinstance(step.get("id"), str):
            earlier[step["id"]] = None


def _slips(step: Mapping[str, Any]) -> set[str]:
    """Return the correct forms of misspelled keys, which are reported already."""
    return {meant_by(key, Step) for key in step}
