"""The backend types of MassGen's files: what each needs to run here, or why it can't.

How a model is built from them is in `nb_agents.models.providers`; here are names, addresses and
variables alone, so that a file can be judged without importing any model SDK.

Source: MassGen 0.1.97, `backend/capabilities.py` (types, addresses, variables) and
`cli/backends.py` (`create_backend`: which key goes to which host).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, model_validator

from nb_agents.config.decision_tools import OF_MEMBERS
from nb_agents.config.document import unset_variable
from nb_agents.config.model_keys import Assignment, ModelKeys, WireFormat, assignments
from nb_agents.config.programs import ACP, ACP_TYPES, PROGRAM_TYPES, ProgramKeys
from nb_agents.config.tools import (
    NATIVE_KEYS,
    OFFERED,
    Missing,
    NativeTool,
    ToolKeys,
    has_search_library,
    judged,
    needs_ordinary_search,
)
from nb_agents.config.uploads import UploadSpec, is_taken
from nb_agents.nouns import did_you_mean


class BackendSpec(ToolKeys, ModelKeys, ProgramKeys):
    """How to reach a model or a program that is an agent.

    By `ModelKeys` what a model is asked, by `ToolKeys` which tools the agent is given, by
    `ProgramKeys` how a program is started.

    Attributes:
        type: The provider, a MassGen backend type; `BACKEND_TYPES` lists those that run here.
            Case does not matter.
        model: The provider's name for the model; "" for the demo model.
        base_url: Another server that speaks the provider's protocol.
        api_key: Its key; by default the provider's environment variable.
        api_version: For azure_openai.
        api: Which of OpenAI's APIs is spoken, by type ``openai``; by default the one that its
            tools, or addresses among its files, need, where OpenAI itself is spoken to.
        upload_files: Files that its model is shown with the task.
        words_per_second: For type "demo": how fast it writes.
        object: For type "python": where the agent's object is, as ``module:name``; it is imported
            when a run starts, from the current directory too.
        instance: For type "python", from Python only: that object, or a
            `nb_agents.models.backend.Backend`, or an `nb_agents.agents.runner.AgentRunner`.
    """

    type: str
    model: str = ""
    # An address may hold a password.
    base_url: str | None = Field(default=None, repr=False)
    api_key: SecretStr | None = None
    api_version: str | None = None
    api: Literal["chat", "responses"] | None = None
    upload_files: tuple[UploadSpec, ...] = ()
    words_per_second: float | None = Field(default=None, gt=0)
    object: str | None = Field(default=None, pattern=r"^[^\W\d][\w.]*:[^\W\d][\w.]*$")
    instance: Any = Field(default=None, exclude=True, repr=False)

    @model_validator(mode="before")
    @classmethod
    def _lower_type(cls, value: Any) -> Any:
        # MassGen lowers it too.
        if isinstance(value, dict) and isinstance(value.get("type"), str):
            return {**value, "type": value["type"].lower()}
        return value

    @model_validator(mode="after")
    def _python_has_instance(self) -> BackendSpec:
        is_given = self.instance is not None or self.object is not None
        if (self.type == "python") != is_given:
            raise ValueError("type 'python' goes with `object: module:name`, where the agent is")
        return self

    @property
    def is_program(self) -> bool:
        """Whether its agent is a program of its own."""
        return self.type in ACP_TYPES

    @model_validator(mode="after")
    def _only_openai_has_responses(self) -> BackendSpec:
        if self.api == "responses" and self.type != "openai":
            raise ValueError("`api: responses` goes with type 'openai'; remove it")
        return self

    @model_validator(mode="after")
    def _says_nothing_twice(self) -> BackendSpec:
        said: dict[str, Assignment] = {}
        for each in self.assignments:
            other = said.setdefault(each.setting, each) if each.setting else each
            is_switch = True is other.value or True is each.value
            if other.value != each.value and not is_switch:
                raise ValueError(f"`{other.key}` and `{each.key}` are one setting; keep one")
        return self

    @property
    def wire_format(self) -> WireFormat | None:
        """How its server is spoken to; None when it has none, or can't run here."""
        if self.api == "responses" or (self.api is None and self._needs_responses):
            return "openai responses"
        return type_at(self).format if self.type in BACKEND_TYPES else None

    @property
    def _needs_responses(self) -> bool:
        fetched = any(each.url and each.kind in ("pdf", "document") for each in self.upload_files)
        if self.type != "openai" or not (fetched or any(getattr(self, k) for k in NATIVE_KEYS)):
            return False
        return self.base_url is None or BACKEND_TYPES["openai"].lives_at(self.base_url)

    @property
    def uploads(self) -> tuple[UploadSpec, ...]:
        """The kinds of files that its server accepts."""
        is_openrouter = self.type == "openrouter" and self.base_url is None
        server = "openrouter" if is_openrouter else self.wire_format
        return tuple(each for each in self.upload_files if is_taken(each, server))

    @property
    def native_tools(self) -> tuple[NativeTool, ...]:
        """The tools that it is given which its provider runs."""
        found = judged(self, self.type, self.model, self._offered)
        return tuple(dict.fromkeys(each for each in found if not isinstance(each, Missing)))

    @property
    def missing_tools(self) -> tuple[Missing, ...]:
        """The tools that were asked for and are not given."""
        found = judged(self, self.type, self.model, self._offered)
        return tuple(each for each in found if isinstance(each, Missing))

    @property
    def chosen_tools(self) -> tuple[str, ...] | None:
        """The agent's own tools that `tool_choice` allows; None for all."""
        match self.tool_choice:
            case "none":
                return ()
            case tuple(names):
                return tuple(name for name in names if name not in OF_MEMBERS)
        return None

    @property
    def searches_web(self) -> bool:
        """Whether it searches the web by an ordinary tool, as its provider has none."""
        asked = (self, self.type, self.model, self._offered)
        return needs_ordinary_search(*asked) and has_search_library()

    @property
    def _offered(self) -> frozenset[NativeTool]:
        if self.type == "openrouter" and self.base_url is None:
            return frozenset({"web_search"})
        return OFFERED.get(self.wire_format, frozenset()) if self.wire_format else frozenset()

    @property
    def assignments(self) -> tuple[Assignment, ...]:
        """How its keys become parameters of a model's requests."""
        row = BACKEND_TYPES.get(self.type)
        body_keys = type_at(self).body_keys if row else frozenset[str]()
        return tuple(assignments(self, self.wire_format, body_keys))


@dataclass(frozen=True)
class BackendType:
    """The requirements of a backend type.

    Attributes:
        base_url: Its address; None when its SDK knows it or a file must give it.
        variables: Environment variables that may hold the key, best first; none when no key is
            needed.
        domains: Internet domains of its servers; by them ``chatcompletion`` finds its key.
        format: How its servers are spoken to; None when it has none, and needs no model.
        body_keys: Keys that they take in the body of a request besides their format's.
    """

    base_url: str | None = None
    variables: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    format: WireFormat | None = "openai chat"
    body_keys: frozenset[str] = frozenset()

    @property
    def needs_model(self) -> bool:
        """Whether a model must be named."""
        return self.format is not None

    def lives_at(self, url: str) -> bool:
        """Return whether an address is one of the provider's own servers."""
        try:
            host = urlsplit(url).hostname or ""
        except ValueError:  # half an IPv6 address
            return False
        return any(host == d or host.endswith(f".{d}") for d in self.domains)


_SAMPLING = frozenset({"min_p", "repetition_penalty", "top_k"})
"""Further sampling parameters of hosts of open models.

Source: the API references of Together, Fireworks, OpenRouter, LM Studio, vLLM and SGLang; Qwen's
has `top_k`.
"""
_ENGINES = _SAMPLING | {"chat_template_kwargs"}

BACKEND_TYPES: dict[str, BackendType] = {
    "openai": BackendType("https://api.openai.com/v1", ("OPENAI_API_KEY",), ("openai.com",)),
    "chatcompletion": BackendType("https://api.openai.com/v1", ("OPENAI_API_KEY",)),
    "claude": BackendType(None, ("ANTHROPIC_API_KEY",), format="anthropic"),
    "gemini": BackendType(None, ("GEMINI_API_KEY", "GOOGLE_API_KEY"), format="google"),
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
    ACP: BackendType(format=None),
} | {name: BackendType(None, row.variables, format=None) for name, row in PROGRAM_TYPES.items()}
"""Backend types that run here: MassGen's HTTP APIs, ``ollama``, ``demo`` and ``python``, and
programs that are agents."""

_ELSEWHERE = {
    "antigravity_cli": "It drives the Antigravity program; `gemini` calls the same models.",
    "ag2": "It runs agents of the AG2 framework.",
    "autogen": "It runs agents of the AG2 framework.",
    "uitars": "It steers a screen.",
}
"""MassGen's other types: programs and frameworks, not models behind an HTTP API."""


def why_unsupported(kind: str) -> str:
    """Return why a backend type can't run here.

    Args:
        kind: The type, in lower case.

    Returns:
        A sentence or two; "" when it can.
    """
    if kind in BACKEND_TYPES:
        return ""
    if why := _ELSEWHERE.get(kind):
        return why
    known = sorted(BACKEND_TYPES)
    return f"{did_you_mean(kind, known)} Supported: {', '.join(known)}.".lstrip()


def type_at(spec: BackendSpec) -> BackendType:
    """Return the backend type of a backend, by its type and its address.

    Args:
        spec: A backend of a supported type.

    Returns:
        Its type's row; for ``chatcompletion`` at another provider's address, that provider's, so
        that no provider is ever sent another's key.
    """
    row = BACKEND_TYPES[spec.type]
    if spec.type != "chatcompletion" or not spec.base_url:
        return row
    return next((t for t in BACKEND_TYPES.values() if t.lives_at(spec.base_url)), row)


def missing_key(spec: BackendSpec) -> tuple[str, ...]:
    """Return the variables of which one must give a backend its key, and none does.

    Args:
        spec: A backend of any type.

    Returns:
        Their names; none when it has its key, needs none, or can't run here.
    """
    key = spec.api_key.get_secret_value() if spec.api_key else ""
    if name := unset_variable(key):
        return (name,)
    if key or spec.type not in BACKEND_TYPES or (spec.is_program and spec.use_my_settings):
        return ()
    row = type_at(spec)
    # A server of one's own often wants no key.
    is_needed = not spec.base_url or row.lives_at(spec.base_url)
    return row.variables if is_needed and not any(map(os.environ.get, row.variables)) else ()
