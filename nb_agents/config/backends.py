"""The backend types of team files: what each type needs, or the reason it is not supported.

This module has only names, addresses and variables, so that a file can be checked without importing
a model SDK. `nb_agents.models.providers` builds the models.

Source: MassGen 0.1.97, `backend/capabilities.py` (types, addresses, variables) and
`cli/backends.py` (`create_backend`: which key goes to which host).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, model_validator

from nb_agents.config.decision_tools import OF_MEMBERS
from nb_agents.config.document import unset_variable
from nb_agents.config.external_agent_keys import ExternalAgentKeys
from nb_agents.config.model_keys import Assignment, ModelKeys, WireFormat, assignments
from nb_agents.config.tools import (
    NATIVE_KEYS,
    TOOLS_BY_FORMAT,
    MissingTool,
    NativeTool,
    ToolKeys,
    classify_native_tools,
    has_search_library,
    needs_ordinary_search,
)
from nb_agents.config.uploads import UploadSpec, is_accepted
from nb_agents.errors import ConfigError
from nb_agents.nouns import did_you_mean
from nb_agents.plugins import ExtensionPoint


class BackendSpec(ToolKeys, ModelKeys, ExternalAgentKeys):
    """How to reach a model or an external agent.

    `ModelKeys` has the parameters of model requests, `ToolKeys` the agent's tools, and
    `ExternalAgentKeys` how an external agent is started.

    Attributes:
        type: The provider or kind of agent, a MassGen backend type in any letter case.
            `BACKEND_TYPES` lists those that run here.
        model: The provider's name for the model, or "" for the demo model.
        base_url: The address of another server that speaks the provider's protocol.
        api_key: The server's API key. By default, it is read from the provider's environment
            variable.
        api_version: The API version, for type ``azure_openai``.
        api: Which of OpenAI's APIs type ``openai`` uses. By default, the Responses API if provider
            tools or uploaded files need it and the server is OpenAI's, or with ``batch``, and Chat
            Completions otherwise.
        batch: Whether the agent's requests are sent through the provider's batch API, which is
            cheaper and takes minutes to hours. For types ``openai`` (Responses API) and ``claude``.
        context_window: The number of tokens in the model's context window. By default it is known
            for the model, or learned when the server refuses a request.
        upload_files: Files that the model receives with the task.
        words_per_second: The speed of the model of type ``demo``.
        object: The agent's object as ``module:name``, for type ``python``. It is imported when a
            run starts. The current directory is searched as well.
        instance: In Python only, for type ``python``: the object itself, an
            `nb_agents.models.backend.Backend` or an `nb_agents.agents.runner.AgentRunner`.
    """

    type: str
    model: str = ""
    # A URL may contain a password.
    base_url: str | None = Field(default=None, repr=False)
    api_key: SecretStr | None = None
    api_version: str | None = None
    api: Literal["chat", "responses"] | None = None
    batch: bool = False
    context_window: int | None = Field(default=None, gt=0)
    upload_files: tuple[UploadSpec, ...] = ()
    words_per_second: float | None = Field(default=None, gt=0)
    object: str | None = Field(default=None, pattern=r"^[^\W\d][\w.]*:[^\W\d][\w.]*$")
    instance: Any = Field(default=None, exclude=True, repr=False)

    @model_validator(mode="before")
    @classmethod
    def _lower_type(cls, value: Any) -> Any:
        # As MassGen does.
        if isinstance(value, dict) and isinstance(value.get("type"), str):
            return {**value, "type": value["type"].lower()}
        return value

    @model_validator(mode="after")
    def _python_has_instance(self) -> BackendSpec:
        is_given = self.instance is not None or self.object is not None
        if (self.type == "python") != is_given:
            raise ValueError("type 'python' and `object: module:name` must be given together")
        return self

    @property
    def is_program(self) -> bool:
        """Whether the agent is an external agent."""
        return (row := BACKEND_TYPES.get(self.type)) is not None and row.is_external

    @model_validator(mode="after")
    def _only_openai_has_responses(self) -> BackendSpec:
        if self.api == "responses" and self.type != "openai":
            raise ValueError("`api: responses` works only with type 'openai'; remove it")
        return self

    @model_validator(mode="after")
    def _batch_is_possible(self) -> BackendSpec:
        if self.batch and self.wire_format not in ("openai responses", "anthropic"):
            raise ValueError(
                "`batch: true` works only with the batch APIs of type 'openai' (without "
                "`api: chat`) and type 'claude'; remove it"
            )
        if self.batch and self.extra_headers:
            raise ValueError("`batch: true` can't send `extra_headers`; remove one of them")
        return self

    @model_validator(mode="after")
    def _no_conflicting_keys(self) -> BackendSpec:
        by_setting: dict[str, Assignment] = {}
        for each in self.assignments:
            other = by_setting.setdefault(each.setting, each) if each.setting else each
            is_switch = True is other.value or True is each.value
            if other.value != each.value and not is_switch:
                raise ValueError(f"`{other.key}` and `{each.key}` set the same parameter; keep one")
        return self

    @property
    def wire_format(self) -> WireFormat | None:
        """The wire format of the model's server, or None if the agent has none."""
        if self.api == "responses" or (self.api is None and self._needs_responses):
            return "openai responses"
        return matching_type(self).format if self.type in BACKEND_TYPES else None

    @property
    def _needs_responses(self) -> bool:
        if self.batch and self.type == "openai":
            return True
        fetched = any(each.url and each.kind in ("pdf", "document") for each in self.upload_files)
        if self.type != "openai" or not (fetched or any(getattr(self, k) for k in NATIVE_KEYS)):
            return False
        return self.base_url is None or BACKEND_TYPES["openai"].lives_at(self.base_url)

    @property
    def uploads(self) -> tuple[UploadSpec, ...]:
        """The uploaded files that the model's server accepts."""
        is_openrouter = self.type == "openrouter" and self.base_url is None
        server = "openrouter" if is_openrouter else self.wire_format
        return tuple(each for each in self.upload_files if is_accepted(each, server))

    @property
    def native_tools(self) -> tuple[NativeTool, ...]:
        """The agent's tools that its provider runs."""
        results = classify_native_tools(self, self.type, self.model, self._offered)
        return tuple(dict.fromkeys(each for each in results if not isinstance(each, MissingTool)))

    @property
    def missing_tools(self) -> tuple[MissingTool, ...]:
        """The requested provider tools that the agent does not get, with the reasons."""
        results = classify_native_tools(self, self.type, self.model, self._offered)
        return tuple(each for each in results if isinstance(each, MissingTool))

    @property
    def chosen_tools(self) -> tuple[str, ...] | None:
        """The tools that `tool_choice` allows, without decision tools, or None for all."""
        match self.tool_choice:
            case "none":
                return ()
            case tuple(names):
                return tuple(name for name in names if name not in OF_MEMBERS)
        return None

    @property
    def searches_web(self) -> bool:
        """Whether the agent gets nb_agents's web search tool, because its provider has none."""
        is_needed = needs_ordinary_search(self, self.type, self.model, self._offered)
        return is_needed and has_search_library()

    @property
    def _offered(self) -> frozenset[NativeTool]:
        if self.type == "openrouter" and self.base_url is None:
            return frozenset({"web_search"})
        return (
            TOOLS_BY_FORMAT.get(self.wire_format, frozenset()) if self.wire_format else frozenset()
        )

    @property
    def assignments(self) -> tuple[Assignment, ...]:
        """The model request parameters to which the backend's keys are translated."""
        row = BACKEND_TYPES.get(self.type)
        body_keys = matching_type(self).body_keys if row else frozenset[str]()
        return tuple(assignments(self, self.wire_format, body_keys))


@dataclass(frozen=True)
class BackendType:
    """The server and the requirements of a backend type.

    Attributes:
        base_url: The server's address, or None if the SDK has it or a file must contain it.
        variables: Environment variables with the API key, in order of preference. Empty if no key
            is needed.
        domains: The provider's domains. Type ``chatcompletion`` uses them to find the key for an
            address.
        format: The server's wire format, or None for a type without a server, which needs no model.
        body_keys: Keys that the server accepts in a request's body in addition to its format's.
        is_external: Whether its agents are external agents, which `ExternalAgentKeys` describe.
        start_fault: Returns why an agent of the type can't be started, with the remedy, or "". May
            block.
        extra: The extra that installs the provider's SDK, or "" if every installation has it.
    """

    base_url: str | None = None
    variables: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    format: WireFormat | None = "openai chat"
    body_keys: frozenset[str] = frozenset()
    is_external: bool = False
    start_fault: Callable[[BackendSpec], str] | None = None
    extra: str = ""

    @property
    def needs_model(self) -> bool:
        """Whether a team file must specify a model."""
        return self.format is not None

    def lives_at(self, url: str) -> bool:
        """Return whether an address is on one of the provider's domains."""
        try:
            host = urlsplit(url).hostname or ""
        except ValueError:  # a malformed IPv6 address
            return False
        return any(host == d or host.endswith(f".{d}") for d in self.domains)


_SAMPLING = frozenset({"min_p", "repetition_penalty", "top_k"})
"""Additional sampling parameters of servers for open models.

Source: the API references of Together, Fireworks, OpenRouter, LM Studio, vLLM and SGLang; Qwen's
has `top_k`.
"""
_ENGINES = _SAMPLING | {"chat_template_kwargs"}

_CORE = {
    "openai": BackendType("https://api.openai.com/v1", ("OPENAI_API_KEY",), ("openai.com",)),
    "chatcompletion": BackendType("https://api.openai.com/v1", ("OPENAI_API_KEY",)),
    "claude": BackendType(None, ("ANTHROPIC_API_KEY",), format="anthropic", extra="anthropic"),
    "gemini": BackendType(
        None, ("GEMINI_API_KEY", "GOOGLE_API_KEY"), format="google", extra="google"
    ),
    "azure_openai": BackendType(None, ("AZURE_OPENAI_API_KEY",)),
    "openrouter": BackendType(
        "https://openrouter.ai/api/v1",
        ("OPENROUTER_API_KEY",),
        ("openrouter.ai",),
        body_keys=_SAMPLING | {"reasoning"},
    ),
    "grok": BackendType("https://api.x.ai/v1", ("XAI_API_KEY",), ("x.ai",)),
    "zai": BackendType(
        "https://api.z.ai/api/paas/v4/",
        ("ZAI_API_KEY",),
        ("z.ai", "bigmodel.cn"),
        body_keys=frozenset({"thinking"}),
    ),
    "cerebras": BackendType("https://api.cerebras.ai/v1", ("CEREBRAS_API_KEY",), ("cerebras.ai",)),
    "together": BackendType(
        "https://api.together.xyz/v1",
        ("TOGETHER_API_KEY",),
        ("together.xyz", "together.ai"),
        body_keys=_SAMPLING,
    ),
    "fireworks": BackendType(
        "https://api.fireworks.ai/inference/v1",
        ("FIREWORKS_API_KEY",),
        ("fireworks.ai",),
        body_keys=_SAMPLING,
    ),
    "groq": BackendType("https://api.groq.com/openai/v1", ("GROQ_API_KEY",), ("groq.com",)),
    "moonshot": BackendType(
        "https://api.moonshot.cn/v1",
        ("MOONSHOT_API_KEY", "KIMI_API_KEY"),
        ("moonshot.cn", "moonshot.ai"),
    ),
    "nvidia_nim": BackendType(
        "https://integrate.api.nvidia.com/v1", ("NGC_API_KEY",), ("nvidia.com",)
    ),
    "nebius": BackendType(
        "https://api.studio.nebius.ai/v1", ("NEBIUS_API_KEY",), ("nebius.ai", "nebius.com")
    ),
    "poe": BackendType("https://api.poe.com/v1", ("POE_API_KEY",), ("poe.com",)),
    "qwen": BackendType(
        "https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
        ("QWEN_API_KEY",),
        ("aliyuncs.com",),
        body_keys=frozenset({"top_k"}),
    ),
    "lmstudio": BackendType("http://localhost:1234/v1", body_keys=_SAMPLING),
    "vllm": BackendType("http://localhost:8000/v1", body_keys=_ENGINES),
    "sglang": BackendType("http://localhost:30000/v1", body_keys=_ENGINES | {"separate_reasoning"}),
    "inference": BackendType("http://localhost:8000/v1", body_keys=_ENGINES),
    "ollama": BackendType("http://localhost:11434/v1"),
    "demo": BackendType(format=None),
    "python": BackendType(format=None),
}
BACKEND_TYPES = ExtensionPoint[BackendType]("backend_types", _CORE)
"""The supported backend types: MassGen's HTTP APIs, ``ollama``, ``demo``, ``python``, and those of
extensions, such as external agents."""

_ELSEWHERE = {
    "antigravity_cli": "It runs the Antigravity program; `gemini` calls the same models.",
    "ag2": "It runs agents of the AG2 framework.",
    "autogen": "It runs agents of the AG2 framework.",
    "uitars": "It controls a screen.",
}
"""Unsupported backend types of MassGen.

They are programs and frameworks, not models with an HTTP API.
"""


def unsupported_reason(kind: str) -> str:
    """Return why a backend type can't run here, in one or two sentences, or "" if it can.

    Args:
        kind: The type, in lower case.
    """
    if kind in BACKEND_TYPES:
        return ""
    if why := _ELSEWHERE.get(kind):
        return why
    type_names = sorted(BACKEND_TYPES)
    return f"{did_you_mean(kind, type_names)} Supported: {', '.join(type_names)}.".lstrip()


_FAMILIES = {
    re.compile(r"gpt-(?!oss)|chatgpt-|o[134](?=-|$)"): "openai",
    re.compile(r"claude-"): "claude",
    re.compile(r"gemini-"): "gemini",
    re.compile(r"grok-"): "grok",
}
"""Prefixes of model names that only one supported provider has, with that provider's type.

Open models (gpt-oss, llama, mistral, deepseek, qwen, …) have many providers.
"""


def full_name(model: str) -> str:
    """Return a model's name with its provider, as ``type:model``.

    Args:
        model: ``type:model``, a model that only one provider has, such as ``gpt-5-mini``, or a type
            without models, such as ``demo``.

    Raises:
        ConfigError: The provider is unknown or can't run here, or the model is missing.

    Example:
        >>> full_name("gemini-2.5-flash")
        'gemini:gemini-2.5-flash'
    """
    kind, colon, name = (part.strip() for part in model.partition(":"))
    if not model.strip():
        example = "'provider:model', for example 'openai:gpt-5-mini'"
        raise ConfigError(f"Model {model!r} is empty. Use {example}.")
    if not colon and kind.lower() not in BACKEND_TYPES:
        matches = (t for prefix, t in _FAMILIES.items() if prefix.match(kind.lower()))
        if not (provider := next(matches, "")):
            raise ConfigError(f"Model {kind!r} has no provider prefix. Use 'provider:{kind}'.")
        return f"{provider}:{kind}"
    if why := unsupported_reason(kind.lower()):
        raise ConfigError(f"Model {model!r} has type {kind!r}, which is not supported. {why}")
    if not name and BACKEND_TYPES[kind.lower()].needs_model:
        raise ConfigError(
            f"Model {model!r} has a provider but no model. Use '{kind.lower()}:model'."
        )
    return f"{kind}:{name}"


def matching_type(spec: BackendSpec) -> BackendType:
    """Return the backend type that matches a backend's type and address.

    For ``chatcompletion`` with the address of a known provider, that provider's type is returned,
    so that a key is never sent to another provider.

    Args:
        spec: A backend of a supported type.
    """
    row = BACKEND_TYPES[spec.type]
    if spec.type != "chatcompletion" or not spec.base_url:
        return row
    return next((t for t in BACKEND_TYPES.all().values() if t.lives_at(spec.base_url)), row)


def missing_key(spec: BackendSpec) -> tuple[str, ...]:
    """Return the names of the variables that could provide a backend's missing key.

    The result is empty if the backend has its key, needs none, or can't run here.

    Args:
        spec: A backend of any type.
    """
    key = spec.api_key.get_secret_value() if spec.api_key else ""
    if name := unset_variable(key):
        return (name,)
    if key or spec.type not in BACKEND_TYPES or (spec.is_program and spec.use_my_settings):
        return ()
    row = matching_type(spec)
    # A self-hosted server often needs no key.
    is_needed = not spec.base_url or row.lives_at(spec.base_url)
    return row.variables if is_needed and not any(map(os.environ.get, row.variables)) else ()
