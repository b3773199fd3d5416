"""Translates the keys of a backend to the settings of pydantic-ai's models.

Which key becomes which setting is in `nb_agents.config.model_keys`; here are the defaults:
prompts are cached where a request must ask for that, and OpenAI stores no replies. Settings that a
model does not accept, by its profile in pydantic-ai, are found and removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from nb_agents.config.backends import BackendSpec
from nb_agents.config.document import expand

if TYPE_CHECKING:
    from pydantic_ai.models import Model

_CACHED_PARTS = (
    "anthropic_cache_instructions",
    "anthropic_cache_messages",
    "anthropic_cache_tool_definitions",
)
"""What of a prompt is marked for Anthropic's cache.

Not by the one mark for all that its own API has besides: gateways refuse that.
"""


def settings_of(spec: BackendSpec) -> dict[str, Any]:
    """Return the model settings of a backend.

    Args:
        spec: The backend, of a type that has models.

    Returns:
        pydantic-ai's model settings, without secrets' wrappings.

    Example:
        >>> settings_of(BackendSpec(type="claude", model="m", user="ada"))["anthropic_metadata"]
        {'user_id': 'ada'}
    """
    settings: dict[str, Any] = {}
    for each in spec.assignments:
        if each.setting:
            _put(settings, each.setting.split("."), _bare(each.value))
    if spec.wire_format == "anthropic":
        settings |= dict.fromkeys(_CACHED_PARTS, settings.pop("cache", True))
    if spec.type == "openrouter" and spec.model.startswith("anthropic/"):
        settings["cache"] = True
    if spec.wire_format == "openai responses":
        # What a resume needs of its thoughts comes with each reply, encrypted.
        settings.setdefault("openai_store", False)
    return settings


def untaken(model: Model, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that a model does not accept, and that pydantic-ai would drop silently.

    Args:
        model: The model.
        settings: The settings of its requests.

    Returns:
        For each such setting, with a dot for one within another, when that is so, after "does not
        take it"; "" for always.

    Source: pydantic-ai's `profiles/` for the facts; `models/openai/_reasoning.py` (sampling while a
    model reasons) and `models/anthropic/` (models without sampling) for what becomes of them.
    """
    from pydantic_ai.profiles.anthropic import ANTHROPIC_SAMPLING_PARAMS
    from pydantic_ai.profiles.openai import SAMPLING_PARAMS

    profile: Mapping[str, Any] = model.profile
    found = dict.fromkeys(profile.get("openai_unsupported_model_settings", ()), "")
    if profile.get("openai_supports_reasoning") and _reasons(profile, settings):
        found |= dict.fromkeys(SAMPLING_PARAMS, " while it reasons")
    if profile.get("anthropic_disallows_sampling_settings"):
        found |= dict.fromkeys(ANTHROPIC_SAMPLING_PARAMS, "")
        found |= {f"extra_body.{name}": "" for name in ANTHROPIC_SAMPLING_PARAMS}
    if not profile.get("supports_thinking"):
        found["thinking"] = ""
    return {name: when for name, when in found.items() if _is_set(settings, name)}


def without(settings: Mapping[str, Any], gone: Iterable[str]) -> dict[str, Any]:
    """Return the settings without some of them.

    Args:
        settings: The settings.
        gone: The names of those, as `untaken` returns them.
    """
    left = dict(settings)
    for outer, _, inner in (name.partition(".") for name in gone):
        if inner:
            left[outer] = {name: each for name, each in left[outer].items() if name != inner}
        else:
            del left[outer]
    return left


def _is_set(settings: Mapping[str, Any], name: str) -> bool:
    outer, _, inner = name.partition(".")
    return inner in settings.get(outer, ()) if inner else name in settings


def _reasons(profile: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Return whether one of OpenAI's reasoning models will reason under these settings."""
    efforts = profile.get("openai_reasoning_efforts")
    can_stop = profile.get("openai_supports_reasoning_effort_none", False)
    if not (can_stop if efforts is None else "none" in efforts):
        return True
    if effort := settings.get("openai_reasoning_effort"):
        return bool(effort != "none")
    return bool(profile.get("thinking_enabled_by_default", False))


def _put(settings: dict[str, Any], path: list[str], value: Any) -> None:
    """Set the value at a path; a mapping is merged into one that is there."""
    *above, last = path
    for name in above:
        settings = settings.setdefault(name, {})
    there = settings.get(last)
    if isinstance(there, dict) and isinstance(value, dict):
        value = {**there, **value}
    # True only switches something on; a value that is there says more.
    if value is not True or there is None:
        settings[last] = value


def _bare(value: Any) -> Any:
    """Fill in variables, and unwrap secrets."""
    if isinstance(value, dict):
        return {key: _bare(each) for key, each in value.items()}
    return expand(value.get_secret_value() if isinstance(value, SecretStr) else value)
