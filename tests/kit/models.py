"""Models, providers and requests."""

from nb_agents.config.backends import BACKEND_TYPES, BackendSpec, unsupported_reason
from nb_agents.config.model_keys import MODEL_KEYS, ModelKeys
from nb_agents.launch.team_findings import check_start
from nb_agents.models import batching, demo, providers, reading, response_limits, retry
from nb_agents.models.backend import Backend, PydanticBackend, ReplyEnding, ending_of, open_request
from nb_agents.models.failures import describe
from nb_agents.models.fit import check_fit
from nb_agents.models.message_order import team_messages
from nb_agents.models.providers import (
    PROVIDERS,
    SharedClient,
    backend_for,
    find_key,
    http_client,
    load,
    start_errors,
)
from nb_agents.models.retry import (
    FIRST_GAP_S,
    MAX_GAP_S,
    MAX_PROBE_S,
    AgentRefusedError,
    Pace,
    Wait,
    quota_wait,
    retry_delay_s,
)
from nb_agents.models.settings import settings_of
from nb_agents.models.tool_rules import ANY_MODEL, MAX_DESCRIPTION_CHARS, ToolRules
from nb_agents.models.usage import UsageMeter

__all__ = [
    "batching",
    "MAX_PROBE_S",
    "Wait",
    "quota_wait",
    "ANY_MODEL",
    "AgentRefusedError",
    "BACKEND_TYPES",
    "Backend",
    "BackendSpec",
    "FIRST_GAP_S",
    "MAX_DESCRIPTION_CHARS",
    "MAX_GAP_S",
    "MODEL_KEYS",
    "ModelKeys",
    "PROVIDERS",
    "Pace",
    "PydanticBackend",
    "ReplyEnding",
    "SharedClient",
    "ToolRules",
    "UsageMeter",
    "backend_for",
    "check_fit",
    "check_start",
    "demo",
    "describe",
    "ending_of",
    "find_key",
    "http_client",
    "load",
    "open_request",
    "providers",
    "reading",
    "response_limits",
    "retry",
    "retry_delay_s",
    "settings_of",
    "start_errors",
    "team_messages",
    "unsupported_reason",
]
