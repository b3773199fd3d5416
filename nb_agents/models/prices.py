"""Prices of models before they are called, from genai-prices, which works offline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from nb_agents.config.backends import BackendSpec
from nb_agents.config.team import AgentSpec
from nb_agents.errors import UserError
from nb_agents.models.fit import model_without_key
from nb_agents.models.providers import PROVIDERS, has_library, load
from nb_agents.models.usage import BATCH_TIER, cost_of

FREE = "demo"
"""The backend type whose models are free."""

_MILLION = 1_000_000


class Price(NamedTuple):
    """The price of a model's tokens.

    Attributes:
        input: US dollars per million input tokens.
        output: US dollars per million output tokens.
    """

    input: float
    output: float


def prices_of(agents: Iterable[AgentSpec]) -> dict[str, Price | None]:
    """Return the price of each model that agents call, or None if it is unknown.

    Free models, external agents and agents that can't start here are left out.
    """
    prices: dict[str, Price | None] = {}
    for agent in agents:
        backend = agent.backend
        if backend.type == FREE or backend.type not in PROVIDERS or not backend.model:
            continue
        if backend.model not in prices and has_library(backend.type):
            load([backend.type])
            prices[backend.model] = _price(backend)
    return prices


def _price(backend: BackendSpec) -> Price | None:
    from pydantic_ai.exceptions import UserError as SettingsError
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.usage import RequestUsage

    try:
        model = model_without_key(backend)
    except (UserError, SettingsError):  # such as an unset variable in its address
        return None
    costs = [
        cost_of(
            ModelResponse(
                parts=[],
                usage=usage,
                model_name=model.model_name,
                provider_name=model.system,
                provider_url=model.base_url,
                provider_details=_tier_of(backend),
            )
        )
        for usage in (RequestUsage(input_tokens=_MILLION), RequestUsage(output_tokens=_MILLION))
    ]
    sent, received = costs
    return None if sent is None or received is None else Price(sent, received)


def _tier_of(backend: BackendSpec) -> dict[str, str]:
    """Return the service tier that a backend requests, as a reply reports it."""
    tiers = [str(each.value) for each in backend.assignments if each.key == "service_tier"]
    tier = {"service_tier": tiers[-1]} if tiers else {}
    return tier | (BATCH_TIER if backend.batch else {})
