"""Checks rules about combinations of a recipe's keys, and reports errors with positions.

The rules check the file's data instead of the specs, so that one invalid value does not hide other
errors. Values of a wrong type are skipped, because pydantic reports them.
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
    misspelled_key,
    sections,
    slips,
)
from nb_agents.config.spec import Spec
from nb_agents.extensions.recipes.recipe_keys import duplicate_keys, unknown_work_keys
from nb_agents.extensions.recipes.recipe_step import Approval, ProviderPreference, Stage, Step
from nb_agents.extensions.recipes.recipe_values import is_template
from nb_agents.nouns import did_you_mean, nearest

_NEEDS = {
    "agent": {"agent": "the name of an agent", "prompt": "the agent's task"},
    "bash": {"command": "the command that bash runs"},
    "recipe": {"recipe": "the file of a recipe"},
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
"""Names in other formats for our keys, for hints. They are ignored, so that such recipes run."""
_LIKE_A_GATE = re.compile(r"approv|confirm|(^|_)gate", re.IGNORECASE)
_LIKE_A_PROMPT = re.compile(r"prompt|message|question|text|ask", re.IGNORECASE)
_FOREACH = re.compile(r"\s*\{\{\s*\w+(\.\w+)*\s*\}\}\s*")


class _Located(NamedTuple):
    path: Keys
    step: Mapping[str, Any]
    earlier: Mapping[str, None]
    """Ids of the steps that it may depend on. The mapping changes when the iteration continues."""


def misspelled_keys(spec: type[Spec], data: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield an error for each misspelled key and for each unknown or misplaced key of a gate."""
    yield from slips(sections(spec, data))
    for section in sections(spec, data):
        for key in section.data:
            path = (*section.path, key)
            if key in _GATE_KEYS and section.spec is not Stage:
                message = (
                    f"{dotted(path)!r} has no effect there, because only a stage can have a gate. "
                    f"Move it."
                )
                yield Fault(message, path, at_key=True)
            elif not misspelled_key(key, section.spec) and (hint := _gate_key(section, key)):
                yield Fault(f"Unknown key {dotted(path)!r}; {hint}.", path, at_key=True)


def unknown_work_keys_in(spec: type[Spec], data: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield an error for each unknown key that must not be ignored.

    Such a key has a value with steps or templates, or looks like a misnamed key. Ignoring it would
    skip work.
    """
    for section in sections(spec, data):
        yield from unknown_work_keys(section)


def _gate_key(section: Section, written: str) -> str:
    """Return a hint for an unknown key that seems to define a gate, or "".

    Such a key must be an error. If it were ignored, the recipe would continue without approval.
    """
    key = str(written)  # may be a boolean: YAML reads `on` as true
    if key in keys_of(section.spec) or not section.data[written]:
        return ""
    asks = _LIKE_A_PROMPT.search(key)
    if section.spec is Approval and asks:
        return "the question of a gate is `prompt`"
    if section.spec not in (Stage, Step) or not _LIKE_A_GATE.search(key):
        return ""
    if section.spec is Stage and asks:
        return "the question of a gate is `approval_message`"
    stage = "" if section.spec is Stage else " in a stage"
    return f"for a gate, write `approval_required: true` and `approval_message: …`{stage}"


def unknown_keys(spec: type[Spec], data: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield a warning for each unknown key."""
    for section in sections(spec, data):
        own_keys = keys_of(section.spec)
        for key in section.data:
            if key not in own_keys:
                other = _OTHER_NAMES.get(key)
                near = other if other in own_keys else nearest(key, own_keys)
                hint = f" The nearest key is {near!r}." if near else ""
                path = (*section.path, key)
                yield Fault(f"Unknown key {dotted(path)!r} is ignored.{hint}", path, at_key=True)


def ineffective_keys(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield a warning for each known key that has no effect in its context."""
    for stage, path in _stages(data):
        if stage.get("auto_approve_if") and not _has_gate(stage):
            yield _idle(path, "auto_approve_if", "the stage has no gate")
        if stage.get("approval_message") and not _has_gate(stage):
            yield _idle(path, "approval_message", "`approval_required` is not set")
    for each in _steps(data):
        yield from _idle_in(each)


def broken_rules(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield an error for each rule that a recipe breaks, in no particular order."""
    yield from _shape(data)
    names: set[object] = set()
    for stage, path in _stages(data):
        yield from _in_stage(stage, path)
        name = stage.get("name")
        if isinstance(name, str) and name in names:
            yield Fault(f"Two stages have the name {name!r}. Rename one.", (*path, "name"))
        names.add(name if isinstance(name, str) else None)
    ids = {id_ for each in _steps(data) if isinstance(id_ := each.step.get("id"), str)}
    previous_ids: set[str] = set()
    for each in _steps(data):
        id_ = each.step.get("id")
        if isinstance(id_, str):
            if id_ in previous_ids:
                yield Fault(f"Two steps have the id {id_!r}. Rename one.", (*each.path, "id"))
            previous_ids.add(id_)
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
        and not (_has_text(prompt) or _has_text(stage.get("approval_message")))
        and not _has_misspelled_prompt(stage)
    ):
        key = "approval" if approval else "approval_required"
        prompt_key = "`prompt` in `approval`" if approval else "`approval_message`"
        message = f"The gate of stage {name!r} has no question. Write it as {prompt_key}."
        yield Fault(message, (*path, key))


def _has_misspelled_prompt(stage: Mapping[str, Any]) -> bool:
    """Return whether the key of a gate's prompt is misspelled, which is already reported."""
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
    yield from duplicate_keys(each.step, each.path)
    if not _misspelled_keys(each.step) & {"type"}:
        yield from _kind(each)
    yield from _loop(each)
    yield from _model(each)


def _kind(each: _Located) -> Iterator[Fault]:
    step, path, kind = each.step, each.path, each.step.get("type") or "agent"
    if not isinstance(kind, str) or kind not in _NEEDS:
        return
    who = f"Step {step.get('id', '')!r}"
    missing = [
        k for k in _NEEDS[kind] if not _has_text(step.get(k)) and k not in _misspelled_keys(step)
    ]
    for key in missing if not step.get("steps") else ():
        yield Fault(f"{who} has no `{key}`. Add {_NEEDS[kind][key]}.", (*path, key))
    for key in _FORBIDS[kind]:
        if step.get(key):
            message = f"{who} has type {kind} and can't have `{key}`. {_remedy(key)}"
            yield Fault(message, (*path, key), at_key=True)


def _has_text(value: object) -> bool:
    return bool(value.strip() if isinstance(value, str) else value)


def _remedy(key: str) -> str:
    return f"Remove it, or set `type: {_OWNER[key]}`." if key in _OWNER else "Remove it."


def _loop(each: _Located) -> Iterator[Fault]:
    step, path = each.step, each.path
    foreach, repeats = step.get("foreach"), step.get("while_condition") is not None
    if foreach and repeats:
        yield Fault(
            "A loop can't have both `foreach` and `while_condition`. Keep one.", (*path, "foreach")
        )
    if isinstance(foreach, str) and foreach and not _FOREACH.fullmatch(foreach):
        message = '`foreach` must be a single variable, such as "{{files}}".'
        yield Fault(message, (*path, "foreach"))
    if repeats and not _is_condition(step["while_condition"]):
        message = "`while_condition` must contain a {{variable}} or be `true`."
        yield Fault(message, (*path, "while_condition"))
    if step.get("update_context") and not repeats:
        yield Fault("`update_context` needs `while_condition`.", (*path, "update_context"), True)
    if step.get("break_when") and not (repeats or foreach):
        message = "`break_when` needs `while_condition` or `foreach`."
        yield Fault(message, (*path, "break_when"), at_key=True)
    for key in ("parallel", "checkpoint_iterations"):
        if step.get(key) and not foreach:
            yield Fault(f"`{key}` needs `foreach`.", (*path, key), at_key=True)
    if step.get("parallel") and step.get("checkpoint_iterations"):
        message = "`checkpoint_iterations` and `parallel` can't be combined. Remove one."
        yield Fault(message, (*path, "checkpoint_iterations"), at_key=True)
    if step.get("steps") and not (foreach or repeats):
        yield Fault("Nested `steps` need `foreach` or `while_condition`.", (*path, "steps"), True)


def _is_condition(value: object) -> bool:
    return value is True or (isinstance(value, str) and (is_template(value) or _is_true(value)))


def _is_true(text: str) -> bool:
    return text.strip().strip("'\"").lower() == "true"


def _model(each: _Located) -> Iterator[Fault]:
    step, path = each.step, each.path
    ways = [k for k in ("provider", "model", "provider_preferences", "model_role") if step.get(k)]
    extra_keys = [key for key in ways if key not in ("provider", "model")]
    if len(extra_keys) + (len(extra_keys) < len(ways)) > 1:
        message = "A step can have `provider` and `model`, `provider_preferences` or `model_role`. "
        message += "Keep one of the three."
        yield Fault(message, (*path, ways[-1]), at_key=True)
    preferences = step.get("provider_preferences")
    for number, each in enumerate(preferences if isinstance(preferences, list) else ()):
        if isinstance(each, dict) and not (each.get("provider") or each.get("class")):
            if not any(misspelled_key(key, ProviderPreference) for key in each):
                message = "A preference needs a `provider` or a `class`."
                yield Fault(message, (*path, "provider_preferences", number))


def _dependencies(each: _Located, ids: set[str]) -> Iterator[Fault]:
    value = each.step.get("depends_on") or []
    is_single = isinstance(value, str)
    ids_given = [value] if is_single else value if isinstance(value, list) else []
    for number, id_ in enumerate(ids_given):
        path = (*each.path, "depends_on") if is_single else (*each.path, "depends_on", number)
        if not isinstance(id_, str) or id_ in each.earlier:
            continue
        if id_ in ids:
            message = f"Step {id_!r} does not come earlier in this list or in one that contains it."
            yield Fault(f"{message} Move it, or use the id of an earlier step.", path)
        else:
            yield Fault(f"There is no earlier step {id_!r}.{did_you_mean(id_, each.earlier)}", path)


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
            yield _idle(path, key, f"the step has type {kind}")
    for key in ("agent_config", "spawn_mode"):
        if step.get(key) and kind == "agent":
            yield _idle(
                path, key, "every agent has its own session, which the team file configures"
            )
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
    yield from _locate_steps(data.get("steps"), ("steps",), earlier)
    for stage, path in _stages(data):
        yield from _locate_steps(stage.get("steps"), (*path, "steps"), earlier)


def _locate_steps(steps: object, path: Keys, earlier: dict[str, None]) -> Iterator[_Located]:
    for number, step in enumerate(steps if isinstance(steps, list) else ()):
        if not isinstance(step, dict):
            continue
        step_path = (*path, number)
        yield _Located(step_path, step, earlier)
        if isinstance(step.get("steps"), list):
            yield from _locate_steps(step["steps"], (*step_path, "steps"), dict(earlier))
        if isinstance(step.get("id"), str):
            earlier[step["id"]] = None


def _misspelled_keys(step: Mapping[str, Any]) -> set[str]:
    """Return the correct names of a step's misspelled keys, which are already reported."""
    return {misspelled_key(key, Step) for key in step}
