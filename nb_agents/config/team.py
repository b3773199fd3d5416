"""A team, from a MassGen file or from Python, as frozen validated specs.

Keys that MassGen knows and that mean nothing here are kept and listed in `TeamSpec.ignored`; a
key that is nearly one of ours is taken for a slip of the pen and refused with the right name.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    StrictFloat,
    ValidationError,
    model_validator,
)

from nb_agents.config.document import Document, load_document
from nb_agents.errors import ConfigError

__all__ = [
    "AgentSpec",
    "BackendSpec",
    "ContextPath",
    "OrchestratorSpec",
    "TeamSpec",
    "TimeoutSpec",
    "safe_name",
]

DEFAULT_ORCHESTRATOR_TIMEOUT_S = 1800.0
"""Source: MassGen's timeout configuration (orchestrator: 1800 seconds)."""

_SAFE_NAME = re.compile(r"[\w][\w .\-]{0,63}", re.ASCII)
_RESERVED = {"con", "prn", "aux", "nul"} | {f"{d}{n}" for d in ("com", "lpt") for n in range(1, 10)}
"""Windows' devices; it reserves them with any extension too."""


def safe_name(name: str) -> str:
    """Check that a name can be a directory on any system.

    Args:
        name: An agent's or a session's id.

    Returns:
        The name.

    Raises:
        ValueError: It has other characters than letters, digits, ``_ . -`` and inner spaces, or
            more than 64, or is reserved on some system.
    """
    fits = _SAFE_NAME.fullmatch(name) and not name.endswith((".", " "))
    if not fits or name.lower().partition(".")[0] in _RESERVED:
        raise ValueError(
            f"{name!r} can't be a directory name: use letters, digits, '_', '-' and '.', at most 64"
        )
    return name


def _positive(value: float) -> float:
    if not 0 < value < math.inf:
        raise ValueError(f"{value:g} is not a number of seconds above 0")
    return value


SafeName = Annotated[str, AfterValidator(safe_name)]
# Strict takes an int for a float, and neither a bool nor text.
Seconds = Annotated[StrictFloat, AfterValidator(_positive)]


class _Spec(BaseModel):
    """Frozen, and keeps keys that it does not know."""

    model_config = ConfigDict(frozen=True, extra="allow", hide_input_in_errors=True)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Show our own keys alone: another's may hold a token or a password."""
        fields = type(self).model_fields
        return ((k, v) for k, v in super().__repr_args__() if k in fields)


class BackendSpec(_Spec):
    """How to reach a model.

    Attributes:
        type: The provider, a MassGen backend type; `nb_agents.models.providers` lists them.
        model: The provider's name for the model; "" takes none (the demo model).
        base_url: Another server that speaks the provider's protocol.
        api_key: Its key; by default the provider's environment variable.
        api_version: For azure_openai.
        temperature, max_tokens, top_p: Passed to the model when set.
        words_per_second: For type "demo": how fast it writes.
        instance: For type "python", from Python only: an object with the methods of
            `nb_agents.models.backend.Backend`.
    """

    type: str
    model: str = ""
    base_url: str | None = None
    api_key: SecretStr | None = None
    api_version: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    top_p: float | None = None
    words_per_second: float | None = Field(default=None, gt=0)
    instance: Any = Field(default=None, exclude=True, repr=False)

    @model_validator(mode="after")
    def _python_has_instance(self) -> BackendSpec:
        if (self.type == "python") != hasattr(self.instance, "stream"):
            raise ValueError("type 'python' goes with `instance`, a Backend object made in Python")
        return self


class AgentSpec(_Spec):
    """One agent.

    Attributes:
        id: Names it in files and on screen.
        backend: Its model.
        system_message: Put before the team's own instructions.
    """

    id: SafeName
    backend: BackendSpec
    system_message: str = ""


class ContextPath(_Spec):
    """A file or directory that all agents may read.

    Attributes:
        path: Where it is, absolute or from the working directory.
        permission: MassGen's word; agents only read context paths here, whatever it says.
        description: What it is, told to the agents.
    """

    path: str
    permission: Literal["read", "write"] = "read"
    description: str = ""

    @model_validator(mode="before")
    @classmethod
    def _from_string(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else value


class OrchestratorSpec(_Spec):
    """How the team works together."""

    context_paths: tuple[ContextPath, ...] = ()


class TimeoutSpec(_Spec):
    """Time limits, seconds."""

    orchestrator_timeout_seconds: Seconds = DEFAULT_ORCHESTRATOR_TIMEOUT_S


class TeamSpec(_Spec):
    """A team of agents.

    Attributes:
        agents: In registration order, which breaks ties.
        orchestrator: How they work together.
        timeout_settings: Time limits.

    Example:
        >>> team = TeamSpec.model_validate(
        ...     {"agents": [{"id": "a", "backend": {"type": "demo"}}]}
        ... )
        >>> team.agents[0].id
        'a'
    """

    agents: tuple[AgentSpec, ...] = Field(min_length=1)
    orchestrator: OrchestratorSpec = OrchestratorSpec()
    timeout_settings: TimeoutSpec = TimeoutSpec()

    @model_validator(mode="before")
    @classmethod
    def _single_agent(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        value = {k: v for k, v in value.items() if v is not None}
        if "agent" in value and "agents" not in value:
            value["agents"] = [value.pop("agent")]
        if isinstance(value.get("agents"), list):
            value["agents"] = [_with_id(a, i) for i, a in enumerate(value["agents"], 1)]
        return value

    @model_validator(mode="after")
    def _distinct_ids(self) -> TeamSpec:
        seen: dict[str, str] = {}
        for agent in self.agents:
            # Case is folded because two such directories are one on macOS and Windows.
            if other := seen.get(agent.id.lower()):
                raise ValueError(f"two agents are named {other!r}: ids must differ")
            seen[agent.id.lower()] = agent.id
        return self

    @property
    def ignored(self) -> tuple[str, ...]:
        """Keys that were given and mean nothing here, as dotted paths, each once."""
        return tuple(dict.fromkeys(".".join(p) for p, _, _ in _extras(self, ())))

    @property
    def context_paths(self) -> tuple[Path, ...]:
        """The context paths, absolute.

        Raises:
            ConfigError: One does not exist.
        """
        return tuple(_existing(c.path) for c in self.orchestrator.context_paths)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> TeamSpec:
        """Read a team file: MassGen's YAML or JSON.

        Args:
            path: The file.

        Returns:
            The team.

        Raises:
            ConfigError: With file, line, column and the nearest valid key.
        """
        document = load_document(path)
        try:
            team = cls.model_validate(document.data)
        except ValidationError as exc:
            raise _config_error(exc, document) from None
        _refuse_slips(team, document)
        return team


def _existing(text: str) -> Path:
    try:
        return Path(text).expanduser().resolve(strict=True)
    except (OSError, RuntimeError, ValueError):  # missing; a loop or an unknown ~user; a NUL
        raise ConfigError(f"Context path {text!r} does not exist. Mend or remove it.") from None


def _with_id(agent: Any, number: int) -> Any:
    return {"id": f"agent{number}", **agent} if isinstance(agent, dict) else agent


def _extras(
    spec: BaseModel, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], str, type[BaseModel]]]:
    """Give (dotted path without list positions, key, model) of every unknown key below ``spec``."""
    for key in spec.model_extra or {}:
        yield (*path, key), key, type(spec)
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, BaseModel):
                yield from _extras(item, (*path, name))


def _refuse_slips(team: TeamSpec, document: Document) -> None:
    for path, key, model in _extras(team, ()):
        if near := _meant_by(key, model):
            where = next((p for k, p in document.keys.items() if _dotted(k) == path), None)
            raise ConfigError(
                f"Unknown key {'.'.join(path)!r}; did you mean {near!r}?",
                file=document.file,
                line=where.line if where else None,
                column=where.column if where else None,
            )


def _meant_by(key: str, model: type[BaseModel]) -> str:
    """Name the key of ours that ``key`` is a slip of, or ""."""
    swapped = [name for name in model.model_fields if sorted(name) == sorted(key)]
    # 0.84 lets "temprature" be caught and tells "top_k" from "top_p".
    near = difflib.get_close_matches(key, model.model_fields, n=1, cutoff=0.84)
    return next(iter(swapped + near), "")


def _dotted(path: tuple[object, ...]) -> tuple[object, ...]:
    """Give a path of the file as `_extras` does: ``agents`` for a lone ``agent``, no positions."""
    head = ("agents",) if path[0] == "agent" else path[:1]
    return head + tuple(part for part in path[1:] if not isinstance(part, int))


def _config_error(exc: ValidationError, document: Document) -> ConfigError:
    """Turn pydantic's first fault into a sentence with its place."""
    faults = exc.errors(include_url=False, include_input=False)
    fault = faults[0]
    path: tuple[object, ...] = tuple(fault["loc"])
    if path[:2] == ("agents", 0) and "agents" not in document.data:
        path = ("agent", *path[2:])
    missing = fault["type"] == "missing"
    near = _near_key(document, path) if missing else None
    place = document.place((*path[:-1], near) if near else path, key=missing)
    what = fault["msg"].removeprefix("Value error, ")
    name = ".".join(str(p) for p in path)
    if missing:
        what = f"{name!r} is missing" + (f"; is {near!r} meant for it?" if near else "")
    elif name:
        what = f"{name}: {what}"
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return ConfigError(
        f"{what}{more}.",
        file=document.file,
        line=place.line if place else None,
        column=place.column if place else None,
    )


def _near_key(document: Document, path: tuple[object, ...]) -> str | None:
    """Name a key beside the missing one that looks like it."""
    beside = [str(k[-1]) for k in document.keys if k[:-1] == path[:-1]]
    return next(iter(difflib.get_close_matches(str(path[-1]), beside, n=1)), None)
