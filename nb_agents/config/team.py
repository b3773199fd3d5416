"""Specs of a team, loaded from a MassGen file or created in Python. They are frozen and validated.

MassGen's keys that can safely be ignored are listed in `TeamSpec.ignored`. Keys that restrict
agents and can't be enforced are listed in `TeamSpec.refusals`. `nb_agents.config.massgen_keys`
classifies them. A key that closely resembles a known key is reported as a misspelling. Agents that
can't run here remain in the team and are listed in `TeamSpec.unsupported`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import (
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from nb_agents.config import report
from nb_agents.config.agent_objects import as_agent, is_object
from nb_agents.config.backends import (
    BackendSpec,
    full_name,
    missing_key,
    unsupported_reason,
)
from nb_agents.config.context_keys import ContextSpec
from nb_agents.config.document import TEAM_FILE, Document, Keys, parse_document, read_source
from nb_agents.config.faults import Section, sections, slips, validate_document
from nb_agents.config.key_sources import find_key_elsewhere
from nb_agents.config.massgen_keys import foreign_keys, refusal, section_of, status_of_key
from nb_agents.config.orchestrator import (
    ApprovalSpec,
    CancelSpec,
    ContextPath,
    OrchestratorSpec,
    RetrySpec,
    TimeoutSpec,
    absolute_paths,
)
from nb_agents.config.spec import Grace, SafeName, Spec, start_directory
from nb_agents.config.tools import NotebookAccess
from nb_agents.disk.names import as_on_disk
from nb_agents.errors import ConfigError


class WritableSpec(NamedTuple):
    """A file or directory that an agent may change.

    Attributes:
        path: Its absolute path.
        protected: Paths in it that the agent must not change. They are absolute, or relative to
            `path` (or to its directory, if `path` is a file).
    """

    path: Path
    protected: tuple[Path, ...]


OWN = "own"
"""The value of `workspace` for a separate workspace per run."""

NO_AGENTS = "The file has no agents. It is MassGen's table of rate limits, not a team file."


_CONNECTION_KEYS = ("base_url", "api_key", "api_version", "api")
"""Keys of a backend that configure the connection to its server."""
_TEAM_KEYS = {"agents", "agent"}

_A_RECIPE = "This is a recipe, not a team file. Start it with --recipe (`recipe=` in Python)."


class AgentSpec(Spec):
    """An agent of a team.

    Attributes:
        id: Its name in files and on screen.
        backend: Its model or external agent.
        system_message: Text that precedes the team's instructions in its system prompt.
        context: How its conversations are folded. By default, the setting of the team applies.
    """

    id: SafeName
    backend: BackendSpec
    system_message: str = ""
    context: ContextSpec | None = None


def names_of_models(agents: Iterable[AgentSpec]) -> frozenset[str]:
    """Return the models of agents, as "provider:model", or "provider" without a model's name."""
    backends = [agent.backend for agent in agents]
    return frozenset(f"{each.type}:{each.model}".rstrip(":") for each in backends)


class TeamSpec(Spec):
    """A team of agents.

    Attributes:
        agents: The members. Ties in a vote go to the agent that comes first. In Python, an agent
            can also be an object, such as a function or an agent of another framework. Only
            MassGen's table of rate limits, which is not a team file, loads without agents.
        orchestrator: How the agents work together.
        timeout_settings: Time limits.
        retry: When failed model calls are retried. By default up to three times, after 0.5, 1 and
            2 seconds.
        wait_for_quota: Seconds that a model call may wait, after its retries, for its provider: for
            the end of a rate limit or quota, or for a server that is down. By default, the call
            fails.
        cancel: How a run stops.
        approval: How tool calls that wait for a user are approved.
        recipe_agents: Maps patterns of agent names in recipes to agents of this team, such as
            ``{"foundation:*": "critic"}``. The first match is used.
        bundles: The directory of each bundle that recipes refer to as ``@bundle:path``. Relative
            paths start at the team file's directory.
        callable_agents: Agents that are not members of the team. They work only when another
            agent calls them (see `can_call`). Members can be called, too.
        detach: Whether runs start in a separate process that outlives the process that starts them.
            Options of a run override this.
        workspace: ``project`` lets agents work on the directory in which the team is loaded. It
            becomes a context path with ``permission: write``, and recipe steps run in it. When
            loaded, this is the directory's path.
        sandbox: Whether commands in recipes require a sandbox. If there is none, they don't run.
            Commands of agents have their own setting.
        network: Whether sandboxed recipe commands can use the network.
        snapshots: Whether workspaces are saved at each checkpoint, so that a rewind can restore
            them.
        snapshot_limit: Size in megabytes above which a file is left out of snapshots.
        snapshot_total_limit: Maximum total size in megabytes of all snapshots of a session. Files
            beyond it are left out.
        context: What happens when a conversation approaches the model's context window.
        env_file: A file with lines such as ``NAME=value``, for example ``.env``; a relative path
            starts at the team file's directory. Only provider keys that are missing in the
            environment are read from it.
        keyring: The name of a service in the system keyring that has provider keys under the names
            of their environment variables. It is used last (``pip install 'nb_agents[keyring]'``).

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
    retry: RetrySpec | None = None
    wait_for_quota: Grace = 0.0
    cancel: CancelSpec = CancelSpec()
    approval: ApprovalSpec = ApprovalSpec()
    recipe_agents: dict[str, str] = Field(default_factory=dict)
    bundles: dict[str, str] = Field(default_factory=dict)
    callable_agents: tuple[AgentSpec, ...] = ()
    detach: bool = False
    workspace: str = OWN
    sandbox: bool = False
    network: bool = False
    snapshots: bool = True
    snapshot_limit: Annotated[float, Field(ge=0, le=1e6)] = 100.0
    snapshot_total_limit: Annotated[float, Field(ge=0, le=1e9)] = 10_000.0
    context: ContextSpec = ContextSpec()
    env_file: str | None = None
    keyring: str | None = None
    _document: Document = PrivateAttr(default=Document())

    @model_validator(mode="before")
    @classmethod
    def _single_agent(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        value = {k: v for k, v in value.items() if v is not None}
        if "agent" in value and "agents" in value:
            raise ValueError("both `agent` and `agents` are given; keep one")
        if "agent" in value:
            value["agents"] = [value.pop("agent")]
        if isinstance(value.get("agents"), list | tuple):
            value["agents"] = [_with_id(a, i) for i, a in enumerate(value["agents"], 1)]
        if isinstance(callables := value.get("callable_agents"), list | tuple):
            value["callable_agents"] = [_as_mapping(a, i) for i, a in enumerate(callables, 1)]
        return value

    @model_validator(mode="after")
    def _distinct_ids(self) -> TeamSpec:
        seen: dict[str, AgentSpec] = {}
        for agent in self.everyone:
            other = seen.setdefault(agent.id.casefold(), agent)
            if other is not agent and other.id == agent.id:
                raise ValueError(f"two agents are named {agent.id!r}: ids must differ")
            if other is not agent:
                raise ValueError(
                    f"{other.id!r} and {agent.id!r} differ only in case, so they would share a "
                    f"directory on macOS and Windows; rename one"
                )
        return self

    @field_validator("workspace")
    @classmethod
    def _absolute_workspace(cls, value: str) -> str:
        # The journal contains this path: a resume from another directory must use the same one.
        path = str(start_directory()) if value == "project" else value
        if path != OWN and not Path(path).is_absolute():
            raise ValueError(f"{value!r} is neither 'own' nor 'project'")
        return path

    @model_validator(mode="after")
    def _add_project_path(self) -> TeamSpec:
        paths = self.orchestrator.context_paths
        if self.project and self.workspace not in {each.path for each in paths}:
            paths = (*paths, ContextPath(path=self.workspace, permission="write"))
            orchestrator = self.orchestrator.model_copy(update={"context_paths": paths})
            object.__setattr__(self, "orchestrator", orchestrator)  # the model is frozen
        return self

    @field_validator("bundles")
    @classmethod
    def _absolute_bundles(cls, value: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        # The journal stores the spec, but not the location of the team file.
        return {name: _next_to_file(path, info) for name, path in value.items()}

    @field_validator("env_file")
    @classmethod
    def _absolute_env_file(cls, value: str | None, info: ValidationInfo) -> str | None:
        return None if value is None else _next_to_file(value, info)

    @model_validator(mode="after")
    def _add_missing_keys(self) -> TeamSpec:
        if self.env_file or self.keyring:
            for name in ("agents", "callable_agents"):
                agents = tuple(self._with_key(agent) for agent in getattr(self, name))
                object.__setattr__(self, name, agents)  # the model is frozen
        return self

    def _with_key(self, agent: AgentSpec) -> AgentSpec:
        variables = missing_key(agent.backend)
        key = find_key_elsewhere(variables, self.env_file, self.keyring) if variables else ""
        if not key:
            return agent
        backend = agent.backend.model_copy(update={"api_key": SecretStr(key)})
        return agent.model_copy(update={"backend": backend})

    @model_validator(mode="after")
    def _known_recipe_agents(self) -> TeamSpec:
        ids = {agent.id for agent in self.agents}
        for pattern, agent in self.recipe_agents.items():
            if agent not in ids:
                names = ", ".join(sorted(ids))
                raise ValueError(
                    f"recipe_agents {pattern!r} refers to {agent!r}, which is not an agent: {names}"
                )
        return self

    @model_validator(mode="after")
    def _known_callable_agents(self) -> TeamSpec:
        ids = {agent.id for agent in self.everyone}
        for agent in self.everyone:
            for name in agent.backend.can_call:
                if name != "*" and name not in ids:
                    names = ", ".join(sorted(ids))
                    raise ValueError(
                        f"{agent.id!r} can_call {name!r}, which is not an agent: {names}"
                    )
        return self

    @model_validator(mode="after")
    def _known_summarizers(self) -> TeamSpec:
        ids = {agent.id for agent in self.everyone}
        for agent in self.everyone:
            name = self.context_of(agent).summarize_with
            if name is not None and name not in ids:
                names = ", ".join(sorted(ids))
                raise ValueError(f"summarize_with {name!r} is not an agent: {names}")
        return self

    def context_of(self, agent: AgentSpec) -> ContextSpec:
        """Return how an agent's conversations are folded."""
        return agent.context or self.context

    def summarizer_of(self, agent: AgentSpec) -> AgentSpec | None:
        """Return the agent whose model folds the conversations, or None for its own."""
        name = self.context_of(agent).summarize_with
        return next((each for each in self.everyone if each.id == name), None)

    @property
    def project(self) -> Path | None:
        """The user's directory in which agents work, or None if each run has a workspace."""
        return None if self.workspace == OWN else Path(self.workspace)

    @property
    def snapshot_bytes(self) -> int:
        """Size in bytes above which a file is left out of snapshots."""
        return int(self.snapshot_limit * 1e6)

    @property
    def snapshot_total_bytes(self) -> int:
        """Maximum total size of all snapshots of a session, in bytes."""
        return int(self.snapshot_total_limit * 1e6)

    @property
    def models(self) -> frozenset[str]:
        """The models of all agents, as "provider:model", or "provider" without a model's name."""
        return names_of_models(self.everyone)

    @property
    def everyone(self) -> tuple[AgentSpec, ...]:
        """The members of the team, followed by its callable agents."""
        return (*self.agents, *self.callable_agents)

    @property
    def ignored(self) -> tuple[str, ...]:
        """The keys and values that have no effect, without duplicates.

        A key is a dotted path. For a MassGen value that is replaced, both values follow the path.
        """
        keys = report.foreign_key_names(self, "harmless", self._unsupported_ids)
        return tuple(dict.fromkeys([*keys, *report.foreign_values(self.orchestrator)]))

    @property
    def unknown(self) -> tuple[str, ...]:
        """The unknown keys, as dotted paths without duplicates."""
        return tuple(
            dict.fromkeys(report.foreign_key_names(self, "unknown", self._unsupported_ids))
        )

    @property
    def notices(self) -> tuple[str, ...]:
        """Notices for the user on keys that have no effect, or not the expected one.

        A start and ``%agents check`` both show them.
        """
        by_kind = {"Ignored keys": self.ignored, "Unknown keys without effect": self.unknown}
        lines = [f"{label}: {', '.join(keys)}" for label, keys in by_kind.items() if keys]
        lines += report.backend_notices(self._backends, self.orchestrator.max_cost)
        return (*lines, *report.orchestrator_notices(self.orchestrator))

    @property
    def refusals(self) -> tuple[ConfigError, ...]:
        """An error for each key that prevents a start: a restriction that can't be enforced."""
        foreign = (each for each in foreign_keys(self) if each.sort == "refused")
        keys = (*foreign, *report.unsendable(self._backends))
        return tuple(self.fault(refusal(each), *each.path, code="restriction") for each in keys)

    @property
    def _backends(self) -> list[tuple[str, BackendSpec]]:
        supported = (a for a in self.everyone if not unsupported_reason(a.backend.type))
        return [(agent.id, agent.backend) for agent in supported]

    @property
    def unsupported(self) -> tuple[AgentSpec, ...]:
        """The agents that can't run here, because their backend type is not supported."""
        return tuple(each for each in self.everyone if unsupported_reason(each.backend.type))

    @property
    def _unsupported_ids(self) -> set[str]:
        return {each.id for each in self.unsupported}

    @property
    def context_paths(self) -> tuple[Path, ...]:
        """The absolute context paths.

        Raises:
            ConfigError: A context path does not exist.
        """
        paths = enumerate(self.orchestrator.context_paths)
        return tuple(self._existing(c.path, number) for number, c in paths)

    @property
    def missing_paths(self) -> tuple[ConfigError, ...]:
        """An error for each context path that does not exist."""
        faults = []
        for number, context_path in enumerate(self.orchestrator.context_paths):
            try:
                self._existing(context_path.path, number)
            except ConfigError as exc:
                faults.append(exc)
        return tuple(faults)

    @property
    def readable_paths(self) -> tuple[Path, ...]:
        """The paths that all agents may read: context paths and the skills directory.

        Raises:
            ConfigError: A context path does not exist.
        """
        skills = self.orchestrator.coordination.skills_path
        return (*self.context_paths, *([skills] if skills else []))

    @property
    def writable_paths(self) -> tuple[WritableSpec, ...]:
        """The context paths that agents may change, directly or through copies.

        Raises:
            ConfigError: A context path does not exist.
        """
        return tuple(
            WritableSpec(path, tuple(Path(each) for each in spec.protected_paths))
            for path, spec in zip(self.context_paths, self.orchestrator.context_paths, strict=True)
            if spec.permission == "write"
        )

    def reading(self, paths: Iterable[str | os.PathLike[str]]) -> TeamSpec:
        """Return the team with these files and directories added to its context paths."""
        known = {each.path for each in self.orchestrator.context_paths}
        added = tuple(ContextPath(path=path) for path in absolute_paths(paths) if path not in known)
        if not added:
            return self
        context_paths = (*self.orchestrator.context_paths, *added)
        orchestrator = self.orchestrator.model_copy(update={"context_paths": context_paths})
        return self.model_copy(update={"orchestrator": orchestrator})

    def without_unsupported(self) -> TeamSpec:
        """Return the team without agents that can't run here. If all can, return it unchanged.

        Raises:
            ConfigError: No agent can run here.
        """
        unsupported = self._unsupported_ids
        if self.agents and not unsupported:
            return self
        rest = self.without(unsupported)
        if not rest.agents:
            agent_names = ", ".join(f"{each.id} ({each.backend.type})" for each in self.unsupported)
            message = (
                f"None of the team's agents can run here: {agent_names}."
                if agent_names
                else NO_AGENTS
            )
            raise self.fault(message, "agents")
        return rest

    def without(self, gone: Collection[str]) -> TeamSpec:
        """Return the team without some of its agents, and without references to them.

        Args:
            gone: The ids of the agents to remove.
        """
        recipe_agents = {k: v for k, v in self.recipe_agents.items() if v not in gone}
        changes: dict[str, Any] = {"recipe_agents": recipe_agents}
        for name in ("agents", "callable_agents"):
            remaining = (a for a in getattr(self, name) if a.id not in gone)
            changes[name] = tuple(_without_calls_to(a, gone) for a in remaining)
        return self.model_copy(update=changes)

    def fault(
        self, what: str, *path: object, code: str = "invalid", remedy: str = ""
    ) -> ConfigError:
        """Return an error with the line and column of its cause in the team file.

        A team that was made in Python has no position.

        Args:
            what: The message, as a sentence.
            path: Keys from the top level, with an agent's id instead of its index:
                ``"agents", "ada", "backend", "type"``.
            code: What kind of error it is.
            remedy: What to do about it, as a sentence. It follows `what` in the message.
        """
        return self._document.error(what, self._with_position(path), code=code, remedy=remedy)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> TeamSpec:
        """Read a team file: YAML or JSON in MassGen's format.

        Raises:
            ConfigError: The file is invalid. The error has file, line, column and the nearest
                valid key; further errors in the same file are in its ``others``.
        """
        return cls.from_text(read_source(path, TEAM_FILE), str(path))

    @classmethod
    def from_text(cls, text: str, file: str) -> TeamSpec:
        """Parse the source text of a team file.

        Args:
            text: The YAML or JSON text.
            file: The file's path, for messages and to resolve relative paths. It need not exist.

        Raises:
            ConfigError: As for `from_file`.
        """
        document = parse_document(text, file, TEAM_FILE)
        if _is_rate_table(document.data):
            return cls.model_construct(agents=(), **document.data)
        if document.data.keys() & {"steps", "stages"} and not document.data.keys() & _TEAM_KEYS:
            raise ConfigError(_A_RECIPE, file=document.file)
        misspelled = (
            each for each in slips(_sections(document.data)) if not _is_massgens(each.path)
        )
        context = {"folder": Path(file).absolute().parent}
        team = validate_document(cls, document, (), misspelled, context)
        team._document = document
        return team

    @classmethod
    def from_model(cls, model: str) -> TeamSpec:
        """Return a team of one agent.

        Args:
            model: Backend type and model, such as ``openai:gpt-5-mini``. The type is optional for
                models that only one provider has, such as ``gpt-5-mini``.

        Raises:
            ConfigError: The type is unknown or can't run here, or the model is missing.

        Example:
            >>> TeamSpec.from_model("ollama:llama3.2:1b").agents[0].backend.model
            'llama3.2:1b'
        """
        kind, _, name = full_name(model).partition(":")
        agent = {"backend": {"type": kind, "model": name}}
        try:
            return cls.model_validate({"agent": agent})
        except ValidationError:  # type "python" requires an object
            raise ConfigError(f"Type {kind!r} needs an agent object. Pass a TeamSpec.") from None

    def with_model(self, model: str, but: Collection[str] = ()) -> TeamSpec:
        """Return a copy of the team whose agents use another model.

        Args:
            model: Backend type and model, as for `from_model`. Agents that already have this type
                keep their address and key.
            but: Ids of the agents that keep their model.

        Raises:
            ConfigError: The type is unknown or can't run here, or the model is missing.
        """
        new = type(self).from_model(model).agents[0].backend

        def changed(agent: AgentSpec) -> AgentSpec:
            old = agent.backend
            if agent.id in but:
                return agent
            source = old if old.type == new.type else new
            update = {name: getattr(source, name) for name in _CONNECTION_KEYS}
            update |= {"type": new.type, "model": new.model, "instance": None, "object": None}
            return agent.model_copy(update={"backend": old.model_copy(update=update)})

        changes = {
            name: tuple(map(changed, getattr(self, name))) for name in ("agents", "callable_agents")
        }
        return self.model_copy(update=changes)

    def with_notebook(self, access: NotebookAccess | None) -> TeamSpec:
        """Return a copy of the team whose agents have this access to the notebook, if given."""
        if access is None:
            return self

        def changed(agent: AgentSpec) -> AgentSpec:
            backend = agent.backend.model_copy(update={"notebook": access})
            return agent.model_copy(update={"backend": backend})

        return self.model_copy(update={"agents": tuple(map(changed, self.agents))})

    def _existing(self, text: str, number: int) -> Path:
        try:
            return Path(text).expanduser().resolve(strict=True)
        except (OSError, RuntimeError, ValueError):  # missing, a loop, an unknown ~user, a NUL
            message, remedy = f"Context path {text!r} does not exist.", "Correct or remove it."
            path = ("orchestrator", "context_paths", number, "path")
            raise self.fault(message, *path, code="missing-path", remedy=remedy) from None

    def _with_position(self, path: tuple[object, ...]) -> tuple[object, ...]:
        data = self._document.data
        if not data or path[:1] != ("agents",) or len(path) < 2:
            return path
        agents = data.get("agents") or [data["agent"]]
        numbered = (_with_id(agent, number) for number, agent in enumerate(agents, 1))
        ids = [each.get("id") if isinstance(each, dict) else None for each in numbered]
        # A callable agent is not in this list.
        return ("agents", ids.index(path[1]), *path[2:]) if path[1] in ids else ("callable_agents",)


def valid_part(text: str, file: str) -> TeamSpec | None:
    """Return a team of the valid agents of an invalid file; None if there is no valid agent.

    Args:
        text: The YAML or JSON text.
        file: As for `TeamSpec.from_text`.
    """
    try:
        document = parse_document(text, file, TEAM_FILE)
    except ConfigError:
        return None
    context = {"folder": Path(file).absolute().parent}
    data = document.data
    agents = data["agents"] if "agents" in data else [data.get("agent")]
    numbered = enumerate(agents if isinstance(agents, list) else (), 1)
    known = [each for n, agent in numbered if _is_valid(each := _with_id(agent, n), context)]
    # Of agents with the same id, which are an error of their own, the first one.
    valid = [*{str(each["id"]).casefold(): each for each in reversed(known)}.values()][::-1]
    part: TeamSpec | None = None
    valid_data: dict[str, Any] = {"agents": valid}
    for key in (None, "env_file", "keyring", "orchestrator"):
        more = valid_data if key is None else {**valid_data, key: data.get(key)}
        with suppress(ValidationError):
            part, valid_data = TeamSpec.model_validate(more, context=context), more
    if part is not None:
        part._document = document
    return part


def _sections(data: Mapping[str, Any]) -> Iterator[Section]:
    yield from sections(TeamSpec, data)
    if isinstance(lone := data.get("agent"), dict):
        yield from sections(AgentSpec, lone, ("agent",))


def _is_massgens(path: Keys) -> bool:
    """Return whether a key belongs to MassGen. It may still resemble a key of nb_agents."""
    return status_of_key(section_of(path[:-1]), str(path[-1])) != "unknown"


def _next_to_file(path: str, info: ValidationInfo) -> str:
    folder: Path = (info.context or {}).get("folder") or start_directory()
    return str(as_on_disk(folder / Path(path).expanduser()))


def _as_mapping(agent: Any, number: int) -> Any:
    return as_agent(agent, number) if is_object(agent) else agent


def _with_id(agent: Any, number: int) -> Any:
    agent = _as_mapping(agent, number)
    if isinstance(agent, dict) and agent.get("id") is None:
        return {**agent, "id": f"agent{number}"}
    return agent


def _without_calls_to(agent: AgentSpec, removed_ids: Collection[str]) -> AgentSpec:
    names = tuple(name for name in agent.backend.can_call if name not in removed_ids)
    if names == agent.backend.can_call:
        return agent
    backend = agent.backend.model_copy(update={"can_call": names})
    return agent.model_copy(update={"backend": backend})


def _is_valid(agent: Any, context: Mapping[str, Any]) -> bool:
    try:
        AgentSpec.model_validate(agent, context=context)
    except ValidationError:
        return False
    return True


def _is_rate_table(data: Mapping[str, Any]) -> bool:
    """Return whether the data is MassGen's ``rate_limits.yaml``: limits per provider and model."""
    tables = [model for provider in data.values() for model in _values(provider)]
    return bool(tables) and all(isinstance(t, dict) and "rpm" in t for t in tables)


def _values(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else [None]


def team_from_options(
    config: str | None,
    model: str | None,
    bundles: Sequence[str] = (),
    backend: str | None = None,
) -> str | TeamSpec | None:
    """Return the team that ``--config``, ``--model``, ``--backend`` and ``--bundle`` select.

    Args:
        config: A team file.
        model: The model of a team of one agent, as for `TeamSpec.from_model`.
        bundles: Bundle directories as ``NAME=DIR``. They override those in the file.
        backend: The backend type of a model that is given without one.

    Returns:
        A team, the path of its file, or None for the demo team.

    Raises:
        ConfigError: Both a file and a model are given, the model is unknown, or a bundle is not
            ``NAME=DIR``.
    """
    if backend is not None:
        if config is not None:
            message = "--backend and --config can't be used together. Remove --backend or --config."
            raise ConfigError(message)
        model = f"{backend}:{(model or '').removeprefix(f'{backend}:')}"
    if model is not None and config is not None:
        raise ConfigError(
            "--model and --config can't be used together. Remove --model or --config."
        )
    if not bundles:
        return config if model is None else TeamSpec.from_model(model)
    team = TeamSpec.from_file(config) if config else TeamSpec.from_model(model or "demo:")
    return team.model_copy(update={"bundles": {**team.bundles, **_bundles(bundles)}})


def add_object_agents(
    team: str | TeamSpec | None, variable_names: str, namespace: Mapping[str, Any]
) -> str | TeamSpec | None:
    """Add the Python objects given by ``--agents`` to a team, as agents.

    Args:
        team: A team or the path of its file, or None for a team of only these agents.
        variable_names: Variable names, separated by commas. "" returns the team unchanged.
        namespace: The variables, such as those of the notebook.

    Raises:
        ConfigError: A variable does not exist, or two agents would have the same id.
    """
    if not variable_names:
        return team
    names = list(dict.fromkeys(name.strip() for name in variable_names.split(",") if name.strip()))
    if missing := [name for name in names if name not in namespace]:
        raise ConfigError(f"--agents {missing[0]}: no variable has that name. Define it first.")
    agents = [as_agent(namespace[name], n, name) for n, name in enumerate(names, 1)]
    spec = TeamSpec.from_file(team) if isinstance(team, str) else team
    try:
        added = TeamSpec.model_validate({"agents": agents})
        if spec is None:
            return added
        return TeamSpec.model_validate({**dict(spec), "agents": (*spec.agents, *added.agents)})
    except ValidationError as exc:
        raise ConfigError(f"--agents {variable_names}: {exc.errors()[0]['msg']}.") from None


def _bundles(names: Sequence[str]) -> dict[str, str]:
    directories = {}
    for text in names:
        name, equals, folder = text.partition("=")
        if not (name and equals and folder):
            raise ConfigError(
                f"--bundle {text} is not NAME=DIR. Write, for example, --bundle recipes=../recipes."
            )
        directories[name] = str(Path(folder).expanduser().absolute())
    return directories
