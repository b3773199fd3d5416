"""Translates the keys of a backend into pydantic-ai model settings.

`nb_agents.config.model_keys` maps keys to settings. This module adds defaults: prompt caching where
requests must enable it, and no storing of replies by OpenAI. It also finds and removes settings
that a model rejects according to its pydantic-ai profile.
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
"""Settings that mark parts of a prompt for Anthropic's cache.

Anthropic's setting for the whole prompt is not used, because gateways reject it.
"""


def settings_of(spec: BackendSpec) -> dict[str, Any]:
    """Return the pydantic-ai model settings of a backend, with unwrapped secrets.

    Args:
        spec: The backend. Its type must be one that has models.

    Example:
        >>> settings_of(BackendSpec(type="claude", model="m", user="ada"))["anthropic_metadata"]
        {'user_id': 'ada'}
    """
    settings: dict[str, Any] = {}
    for each in spec.assignments:
        if each.setting:
            _set(settings, each.setting.split("."), _unwrap(each.value))
    if spec.wire_format == "anthropic":
        settings |= dict.fromkeys(_CACHED_PARTS, settings.pop("cache", True))
    if spec.type == "openrouter" and spec.model.startswith("anthropic/"):
        settings["cache"] = True
    if spec.wire_format == "openai responses":
        # Each reply contains its reasoning in encrypted form, which a resume needs.
        settings.setdefault("openai_store", False)
    return settings


def unsupported_settings(model: Model, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that a model rejects and that pydantic-ai would drop silently.

    Args:
        settings: The settings of the model's requests.

    Returns:
        The names of the settings, with a dot for nested ones, and the condition under which the
        model rejects each: a phrase such as " while it reasons", or "" for always.

    Source: pydantic-ai's `profiles/` (which settings), `models/openai/_reasoning.py` (sampling
    while a model reasons) and `models/anthropic/` (models without sampling).
    """
    from pydantic_ai.profiles.anthropic import ANTHROPIC_SAMPLING_PARAMS
    from pydantic_ai.profiles.openai import SAMPLING_PARAMS

    profile: Mapping[str, Any] = model.profile
    rejected = dict.fromkeys(profile.get("openai_unsupported_model_settings", ()), "")
    if profile.get("openai_supports_reasoning") and _reasons(profile, settings):
        rejected |= dict.fromkeys(SAMPLING_PARAMS, " while it reasons")
    if profile.get("anthropic_disallows_sampling_settings"):
        rejected |= dict.fromkeys(ANTHROPIC_SAMPLING_PARAMS, "")
        rejected |= {f"extra_body.{name}": "" for name in ANTHROPIC_SAMPLING_PARAMS}
    if not profile.get("supports_thinking"):
        rejected["thinking"] = ""
    return {name: when for name, when in rejected.items() if _is_set(settings, name)}


def without_settings(settings: Mapping[str, Any], setting_names: Iterable[str]) -> dict[str, Any]:
    """Return a copy of the settings without some of them.

    Args:
        setting_names: Names of the settings to remove, as `unsupported_settings` returns them.
    """
    remaining = dict(settings)
    for outer, _, inner in (name.partition(".") for name in setting_names):
        if inner:
            inside = remaining[outer]
            remaining[outer] = {name: each for name, each in inside.items() if name != inner}
        else:
            del remaining[outer]
    return remaining


def _is_set(settings: Mapping[str, Any], name: str) -> bool:
    outer, _, inner = name.partition(".")
    return inner in settings.get(outer, ()) if inner else name in settings


def _reasons(profile: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Return whether an OpenAI reasoning model reasons with these settings."""
    efforts = profile.get("openai_reasoning_efforts")
    can_stop = profile.get("openai_supports_reasoning_effort_none", False)
    if not (can_stop if efforts is None else "none" in efforts):
        return True
    if effort := settings.get("openai_reasoning_effort"):
        return bool(effort != "none")
    return bool(profile.get("thinking_enabled_by_default", False))


def _set(settings: dict[str, Any], path: list[str], value: Any) -> None:
    """Set the value at a path. A mapping is merged into an existing mapping."""
    *outer, last = path
    for name in outer:
        settings = settings.setdefault(name, {})
    existing = settings.get(last)
    if isinstance(existing, dict) and isinstance(value, dict):
        value = {**existing, **value}
    # True only enables a feature, so it does not replace a more specific value.
    if value is not True or existing is None:
        settings[last] = value


def _unwrap(value: Any) -> Any:
    """Unwrap secrets and expand ``${VAR}`` in a nested value."""
    if isinstance(value, dict):
        return {key: _unwrap(each) for key, each in value.items()}
    return expand(value.get_secret_value() if isinstance(value, SecretStr) else value)
