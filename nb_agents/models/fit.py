"""Checks the settings of a team's backends against pydantic-ai's profiles of their models.

Used when a run starts and by ``%agents check``. Building the models imports the SDKs. Agents that
can't start for other reasons are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from nb_agents.config.backends import BackendSpec
from nb_agents.config.file_findings import Finding, errors_in, finding_of
from nb_agents.config.team import AgentSpec, TeamSpec
from nb_agents.errors import MissingKeyError
from nb_agents.models.providers import PROVIDERS, has_library, load, model_for
from nb_agents.models.settings import settings_of, unsupported_settings, without_settings

if TYPE_CHECKING:
    from pydantic_ai.models import Model


def check_fit(team: TeamSpec) -> tuple[str, ...]:
    """Check that each agent can send requests with its settings, and return notices.

    Raises:
        ConfigError: An agent can't send requests with its settings.
    """
    findings = check_models(team)
    for error in errors_in(findings):
        raise error
    return tuple(each.message for each in findings)


def check_models(team: TeamSpec) -> tuple[Finding, ...]:
    """Compare the settings of a team with the profiles of its models.

    Returns:
        An error for each backend that can't send requests with its settings. A notice for each
        model that does not receive all of its settings, and for each retired model.
    """
    unsent: dict[str, dict[str, None]] = {}
    errors = list[Finding]()
    retired = dict.fromkeys(line for agent in team.everyone for line in _retirement(agent))
    for agent in team.everyone:
        if not _has_model_settings(agent):
            continue
        load([agent.backend.type])
        try:
            rejected, refusal = _check_agent(agent)
        except MissingKeyError:  # its URL, extra_body or extra_headers has an unset variable
            continue
        for key, when in _keys(agent, rejected):
            label = f"Not sent to {agent.backend.model}, which does not support it{when}"
            unsent.setdefault(label, {})[key] = None
        if refusal:
            message = f"Agent {agent.id!r} can't send requests with these settings: {refusal}"
            error = team.fault(message, "agents", agent.id, "backend", code="settings")
            errors.append(finding_of(error))
    lines = (f"{label}: {', '.join(keys)}" for label, keys in unsent.items())
    return (*errors, *(Finding("info", "notice", line) for line in (*lines, *retired)))


def _keys(agent: AgentSpec, rejected: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each setting that a model rejects: its key and the condition."""
    for each in agent.backend.assignments:
        for setting, when in rejected.items():
            if setting == each.setting or setting.startswith(f"{each.setting}."):
                yield each.key + setting.removeprefix(each.setting), when


def _retirement(agent: AgentSpec) -> Iterator[str]:
    """Yield a notice if Anthropic retires the model. Its SDK would only warn on each request."""
    if agent.backend.wire_format == "anthropic" and has_library(agent.backend.type):
        load([agent.backend.type])
        from anthropic.resources.messages import DEPRECATED_MODELS

        if date := DEPRECATED_MODELS.get(agent.backend.model):
            yield f"Anthropic retires {agent.backend.model} on {date}. Use a newer model."


def _has_model_settings(agent: AgentSpec) -> bool:
    backend = agent.backend
    is_model = backend.type in PROVIDERS and bool(backend.model) and has_library(backend.type)
    return is_model and any(each.setting for each in backend.assignments)


# Building a Google model takes 0.1 s, and all rows of a sweep use the same models.
@lru_cache(100)
def _model(type: str, model: str, url: str | None, api: Any, version: str | None) -> Model:
    """Build a model to read its profile. It is never called."""
    import httpx2

    backend = BackendSpec(type=type, model=model, base_url=url, api=api, api_version=version)
    client = httpx2.AsyncClient(verify=False, trust_env=False, timeout=60)
    return model_for(AgentSpec(id="any", backend=backend), "any", client)


def model_without_key(backend: BackendSpec) -> Model:
    """Return a backend's model, to read its profile and names. It can't be called."""
    api = "responses" if backend.wire_format == "openai responses" else backend.api
    return _model(backend.type, backend.model, backend.base_url, api, backend.api_version)


def _check_agent(agent: AgentSpec) -> tuple[Mapping[str, str], str]:
    """Return the settings that a model rejects, and why it can't send requests at all, or ""."""
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.models import ModelRequestParameters

    model = model_without_key(agent.backend)
    settings: Any = settings_of(agent.backend)
    rejected = unsupported_settings(model, settings)
    accepted: Any = without_settings(settings, rejected)
    if reason := _forced_tool_fault(model, settings):
        return rejected, reason
    try:
        model.prepare_request(accepted, ModelRequestParameters())
    except UserError as exc:
        return rejected, str(exc)
    return rejected, ""


def _forced_tool_fault(model: Model, settings: Mapping[str, Any]) -> str:
    """Return why the model can't be forced to call a tool as `tool_choice` requires, or ""."""
    if settings.get("tool_choice") in (None, "auto", "none"):
        return ""
    if not model.profile.get("supports_tools", True):
        return "it calls no tools; remove `tool_choice`."
    if not model.profile.get("supports_forced_tool_choice", True):
        return "it can't be forced to call a tool; remove `tool_choice`."
    thinks = settings.get("anthropic_thinking", {}).get("type") in ("enabled", "adaptive")
    if thinks and model.profile.get("forced_tool_choice_disables_thinking", False):
        return "it can't think when it must call a tool; remove `tool_choice` or `thinking`."
    return ""
