"""Checks the settings of a team's backends against pydantic-ai's profiles of their models.

It builds the models, and so imports their SDKs: a start, which needs them anyway, asks here, and a
check. Agents that can't start for other reasons are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from nb_agents.config.backends import BackendSpec
from nb_agents.config.team import AgentSpec, TeamSpec
from nb_agents.errors import ConfigError, MissingKeyError
from nb_agents.models.providers import PROVIDERS, load, model_for
from nb_agents.models.settings import settings_of, untaken, without

if TYPE_CHECKING:
    from pydantic_ai.models import Model


class Fit(NamedTuple):
    """Which settings a team's models do not accept.

    Attributes:
        notices: Which keys are not sent to which model, and which models end, a line each.
        refusals: An error for each backend with which no request can be made.
    """

    notices: tuple[str, ...]
    refusals: tuple[ConfigError, ...]


def check_fit(team: TeamSpec) -> tuple[str, ...]:
    """Check that each agent's model accepts the settings of its file.

    Args:
        team: The team.

    Returns:
        Notices for the user.

    Raises:
        ConfigError: A model does not accept them.
    """
    fit = fit_of(team)
    for refusal in fit.refusals:
        raise refusal
    return fit.notices


def fit_of(team: TeamSpec) -> Fit:
    """Compare a team's settings with its models' profiles.

    Args:
        team: The team.
    """
    unsent: dict[str, dict[str, None]] = {}
    refusals = []
    ending = dict.fromkeys(line for agent in team.everyone for line in _ending(agent))
    for agent in team.everyone:
        if not _says_something(agent):
            continue
        load([agent.backend.type])
        try:
            gone, refusal = _judged(agent)
        except MissingKeyError:  # a variable of its address, or of what is sent besides
            continue
        for key, when in _keys(agent, gone):
            whom = f"Not sent to {agent.backend.model}, which does not take it{when}"
            unsent.setdefault(whom, {})[key] = None
        if refusal:
            what = f"The model of agent {agent.id!r} can't be asked as its backend says: {refusal}"
            refusals.append(team.fault(what, "agents", agent.id, "backend"))
    lines = (f"{whom}: {', '.join(keys)}" for whom, keys in unsent.items())
    return Fit((*lines, *ending), tuple(refusals))


def _keys(agent: AgentSpec, gone: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each setting that a model does not accept, and under which condition."""
    for each in agent.backend.assignments:
        for setting, when in gone.items():
            if setting == each.setting or setting.startswith(f"{each.setting}."):
                yield each.key + setting.removeprefix(each.setting), when


def _ending(agent: AgentSpec) -> Iterator[str]:
    """Yield when a model is retired; Anthropic's SDK would only warn of it at each request."""
    if agent.backend.wire_format == "anthropic":
        load([agent.backend.type])
        from anthropic.resources.messages import DEPRECATED_MODELS

        if date := DEPRECATED_MODELS.get(agent.backend.model):
            yield f"Anthropic ends {agent.backend.model} on {date}; name a newer model."


def _says_something(agent: AgentSpec) -> bool:
    backend = agent.backend
    is_model = backend.type in PROVIDERS and bool(backend.model)
    return is_model and any(each.setting for each in backend.assignments)


# Making Google's takes a tenth of a second, and the rows of a sweep ask of the same ones.
@lru_cache(100)
def _model(type: str, model: str, url: str | None, api: Any, version: str | None) -> Model:
    """Return a model that is never called; only its profile is read."""
    import httpx2

    backend = BackendSpec(type=type, model=model, base_url=url, api=api, api_version=version)
    client = httpx2.AsyncClient(verify=False, trust_env=False, timeout=60)
    return model_for(AgentSpec(id="any", backend=backend), "any", client)


def _judged(agent: AgentSpec) -> tuple[Mapping[str, str], str]:
    """Return the settings that a model does not accept, and why a request can't be made."""
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.models import ModelRequestParameters

    backend = agent.backend
    api = "responses" if backend.wire_format == "openai responses" else backend.api
    model = _model(backend.type, backend.model, backend.base_url, api, backend.api_version)
    settings: Any = settings_of(agent.backend)
    gone = untaken(model, settings)
    taken: Any = without(settings, gone)
    if why := _why_not_forced(model, settings):
        return gone, why
    try:
        model.prepare_request(taken, ModelRequestParameters())
    except UserError as exc:
        return gone, str(exc)
    return gone, ""


def _why_not_forced(model: Model, settings: Mapping[str, Any]) -> str:
    """Return why a model can't be forced to call a tool as its file demands, or ""."""
    if settings.get("tool_choice") in (None, "auto", "none"):
        return ""
    if not model.profile.get("supports_tools", True):
        return "it calls no tools; remove `tool_choice`."
    if not model.profile.get("supports_forced_tool_choice", True):
        return "it can't be made to call a tool; remove `tool_choice`."
    thinks = settings.get("anthropic_thinking", {}).get("type") in ("enabled", "adaptive")
    if thinks and model.profile.get("forced_tool_choice_disables_thinking", False):
        return "it does not think when it must call a tool; remove `tool_choice` or `thinking`."
    return ""
