"""A team, from a MassGen file or from Python, as frozen validated specs.

Keys that MassGen knows and that are harmless to ignore are kept and listed in `TeamSpec.ignored`;
one that restricts and can't be enforced is in `TeamSpec.refusals` (`nb_agents.config.massgen_keys`
sorts them). A key that is nearly one of ours is taken for a slip of the pen and refused with the
right name.
Agents that can't run here are kept too, and listed in `TeamSpec.unsupported`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
from nb_agents.config.backends import BACKEND_TYPES, BackendSpec, missing_key, why_unsupported
from nb_agents.config.document import TEAM_FILE, Document, Keys, parse_document, read_source
from nb_agents.config.faults import Section, checked, sections, slips
from nb_agents.config.key_sources import find_key_elsewhere
from nb_agents.config.massgen_keys import foreign_keys, refusal, section_of, sort_of
from nb_agents.config.orchestrator import (
    ApprovalSpec,
    CancelSpec,
    ContextPath,
    OrchestratorSpec,
    RetrySpec,
    TimeoutSpec,
)
from nb_agents.config.report import Unsupported
from nb_agents.config.spec import SafeName, Spec, start_place
from nb_agents.errors import ConfigError


class WritableSpec(NamedTuple):
    """A file or directory that an agent may change.

    Attributes:
        path: It, absolute.
        protected: What of it stays as it is; absolute, or relative to it or to a file's directory.
    """

    path: Path
    protected: tuple[Path, ...]


OWN = "own"
"""A workspace that is the run's own."""

NO_AGENTS = "It has no agents: this is MassGen's table of rate limits, not a team."


_WHERE = ("base_url", "api_key", "api_version", "api")
"""Keys of a backend that say where its type is reached."""
_TEAM_KEYS = {"agents", "agent"}

_A_RECIPE = "This is a recipe, not a team file. Start it with --recipe (`recipe=` in Python)."


class AgentSpec(Spec):
    """An agent of a team.

    Attributes:
        id: Names it in files and on screen.
        backend: Its model.
        system_message: Put before the team's own instructions.
    """

    id: SafeName
    backend: BackendSpec
    system_message: str = ""


class TeamSpec(Spec):
    """A team of agents.

    Attributes:
        agents: In registration order, which breaks ties; from Python also objects, such as a
            function or an agent of another framework. Only MassGen's table of rate limits, which
            is no team, loads without any.
        orchestrator: How they work together.
        timeout_settings: Time limits.
        retry: When failed model calls are tried again; None means up to three times, after 0.5, 1
            and 2 seconds.
        cancel: How a run stops.
        approval: How calls of tools that wait for a person are approved.
        recipe_agents: Which agent stands for those that a recipe names, by pattern, such as
            ``{"foundation:*": "critic"}``; the first that fits counts.
        bundles: The directory of each bundle that a recipe names, as in ``@bundle:path``; from
            the team's file, where it is one.
        callable_agents: Agents that are no members of the team: they work when another one calls
            them, by its `can_call`. Members can be called, too.
        detach: Whether runs go in a process of their own, which outlives the one that starts them,
            where their options leave that open.
        workspace: With "project" the directory that the team is loaded in is a context path that
            the agent may write which presents, and a recipe's steps work there; the path stands
            here then.
        sandbox: Whether the commands of recipes run in a sandbox, or not at all where there is
            none. Those of agents do so by themselves.
        network: Whether they reach the network there.
        snapshots: Whether workspaces are kept at each moment to which a rewind can go back.
        snapshot_limit: Megabytes over which a file is not kept.
        env_file: A file of lines as ``NAME=value``, such as ``.env``, from the team's file: keys
            of providers that the environment lacks are read from it, and nothing else.
        keyring: The service in the system's keyring whose entries are such keys, by the names of
            their variables; asked last (``pip install 'nb_agents[keyring]'``).

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
        if isinstance(called := value.get("callable_agents"), list | tuple):
            value["callable_agents"] = [_given(a, i) for i, a in enumerate(called, 1)]
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
                    f"{other.id!r} and {agent.id!r} differ by case alone, and their directories "
                    "would be one on macOS and Windows: rename one"
                )
        return self

    @field_validator("workspace")
    @classmethod
    def _place(cls, value: str) -> str:
        # A journal keeps the path, so that a resume from elsewhere works at the same place.
        place = str(start_place()) if value == "project" else value
        if place != OWN and not Path(place).is_absolute():
            raise ValueError(f"{value!r} is neither 'own' nor 'project'")
        return place

    @model_validator(mode="after")
    def _sees_the_project(self) -> TeamSpec:
        given = self.orchestrator.context_paths
        if self.project and self.workspace not in {each.path for each in given}:
            paths = (*given, ContextPath(path=self.workspace, permission="write"))
            orchestrator = self.orchestrator.model_copy(update={"context_paths": paths})
            object.__setattr__(self, "orchestrator", orchestrator)  # it is frozen from here on
        return self

    @field_validator("bundles")
    @classmethod
    def _beside_the_file(cls, value: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        # Absolute, because a journal keeps the spec without the place of the team's file.
        return {name: _beside(path, info) for name, path in value.items()}

    @field_validator("env_file")
    @classmethod
    def _file_beside_it(cls, value: str | None, info: ValidationInfo) -> str | None:
        return None if value is None else _beside(value, info)

    @model_validator(mode="after")
    def _keys_from_elsewhere(self) -> TeamSpec:
        if self.env_file or self.keyring:
            for name in ("agents", "callable_agents"):
                agents = tuple(self._with_key(agent) for agent in getattr(self, name))
                object.__setattr__(self, name, agents)  # it is frozen from here on
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
        known = {agent.id for agent in self.agents}
        for pattern, agent in self.recipe_agents.items():
            if agent not in known:
                names = ", ".join(sorted(known))
                raise ValueError(f"recipe_agents {pattern!r} names {agent!r}; agents: {names}")
        return self

    @model_validator(mode="after")
    def _known_callable_agents(self) -> TeamSpec:
        known = {agent.id for agent in self.everyone}
        for agent in self.everyone:
            for name in agent.backend.can_call:
                if name != "*" and name not in known:
                    names = ", ".join(sorted(known))
                    raise ValueError(f"{agent.id!r} can_call {name!r}; agents: {names}")
        return self

    @property
    def project(self) -> Path | None:
        """The directory of the person's own that is worked in, if one is."""
        return None if self.workspace == OWN else Path(self.workspace)

    @property
    def snapshot_bytes(self) -> int:
        """Bytes over which a file is not kept."""
        return int(self.snapshot_limit * 1e6)

    @property
    def everyone(self) -> tuple[AgentSpec, ...]:
        """The agents of the team, and those that they may call."""
        return (*self.agents, *self.callable_agents)

    @property
    def ignored(self) -> tuple[str, ...]:
        """The keys that have no effect here, each once.

        A key is a dotted path; a value of MassGen's that stands for another here is the path, the
        value and the one that is used.
        """
        keys = report.foreign(self, "harmless", self._gone)
        return tuple(dict.fromkeys([*keys, *report.foreign_values(self.orchestrator)]))

    @property
    def unknown(self) -> tuple[str, ...]:
        """The unknown keys, as dotted paths, each once."""
        return tuple(dict.fromkeys(report.foreign(self, "unknown", self._gone)))

    @property
    def notices(self) -> tuple[str, ...]:
        """What a person should know of its keys, in lines; a start and a check both say it."""
        by_kind = {"Ignored here": self.ignored, "Not known here, and not acted on": self.unknown}
        lines = [f"{what}: {', '.join(keys)}" for what, keys in by_kind.items() if keys]
        wanted = self.orchestrator
        lines += report.of_backends(self._backends, wanted.max_cost)
        return (*lines, *report.of_orchestrator(wanted))

    @property
    def refusals(self) -> tuple[ConfigError, ...]:
        """The keys for which it can't start: they restrict, and can't be enforced here."""
        foreign = (each for each in foreign_keys(self) if each.sort == "refused")
        found = (*foreign, *report.unsendable(self._backends))
        return tuple(self.fault(refusal(each), *each.path) for each in found)

    @property
    def _backends(self) -> list[tuple[str, BackendSpec]]:
        here = (agent for agent in self.everyone if not why_unsupported(agent.backend.type))
        return [(agent.id, agent.backend) for agent in here]

    @property
    def unsupported(self) -> tuple[Unsupported, ...]:
        """The agents that can't run here, as (agent, type, why)."""
        kinds = ((agent.id, agent.backend.type) for agent in self.everyone)
        return tuple(Unsupported(a, kind, w) for a, kind in kinds if (w := why_unsupported(kind)))

    @property
    def _gone(self) -> set[str]:
        return {each.agent for each in self.unsupported}

    @property
    def context_paths(self) -> tuple[Path, ...]:
        """The context paths, absolute.

        Raises:
            ConfigError: One does not exist.
        """
        given = enumerate(self.orchestrator.context_paths)
        return tuple(self._existing(c.path, number) for number, c in given)

    @property
    def missing_paths(self) -> tuple[ConfigError, ...]:
        """What is wrong with each context path that does not exist."""
        faults = []
        for number, given in enumerate(self.orchestrator.context_paths):
            try:
                self._existing(given.path, number)
            except ConfigError as exc:
                faults.append(exc)
        return tuple(faults)

    @property
    def readable_paths(self) -> tuple[Path, ...]:
        """What all agents may read: the context paths, and the skills.

        Raises:
            ConfigError: A context path does not exist.
        """
        skills = self.orchestrator.coordination.skills_path
        return (*self.context_paths, *([skills] if skills else []))

    @property
    def writable_paths(self) -> tuple[WritableSpec, ...]:
        """The context paths that may be changed, themselves or by copies of them.

        Raises:
            ConfigError: One does not exist.
        """
        return tuple(
            WritableSpec(path, tuple(Path(each) for each in given.protected_paths))
            for path, given in zip(self.context_paths, self.orchestrator.context_paths, strict=True)
            if given.permission == "write"
        )

    def reading(self, paths: Iterable[str | os.PathLike[str]]) -> TeamSpec:
        """Return the team with files and directories besides that it may read.

        Args:
            paths: Where they are.
        """
        added = tuple(ContextPath(path=os.fspath(path)) for path in paths)
        if not added:
            return self
        all_ = (*self.orchestrator.context_paths, *added)
        orchestrator = self.orchestrator.model_copy(update={"context_paths": all_})
        return self.model_copy(update={"orchestrator": orchestrator})

    def without_unsupported(self) -> TeamSpec:
        """Return the team of the agents that can run here: itself when all can.

        Raises:
            ConfigError: None can.
        """
        gone = self._gone
        if self.agents and not gone:
            return self
        rest = self.without(gone)
        if not rest.agents:
            named = ", ".join(f"{each.agent} ({each.type})" for each in self.unsupported)
            what = f"None of its agents can run here: {named}." if named else NO_AGENTS
            raise self.fault(what, "agents")
        return rest

    def without(self, gone: Collection[str]) -> TeamSpec:
        """Return the team without some of its agents, and without what names them.

        Args:
            gone: Their ids.
        """
        standing = {k: v for k, v in self.recipe_agents.items() if v not in gone}
        changes: dict[str, Any] = {"recipe_agents": standing}
        for name in ("agents", "callable_agents"):
            kept = (a for a in getattr(self, name) if a.id not in gone)
            changes[name] = tuple(_calling_none_of(a, gone) for a in kept)
        return self.model_copy(update=changes)

    def fault(self, what: str, *path: object) -> ConfigError:
        """Return an error with the place of its cause in the team's file.

        Args:
            what: The sentence.
            path: Keys from the top, an agent by its id: ``"agents", "ada", "backend", "type"``.

        Returns:
            The error; without a place when the team was made in Python.
        """
        return self._document.error(what, self._with_position(path))

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> TeamSpec:
        """Read a team file: MassGen's YAML or JSON.

        Args:
            path: The file.

        Returns:
            The team.

        Raises:
            ConfigError: With file, line, column and the nearest valid key; further faults in the
                same file are in its ``others``.
        """
        return cls.from_text(read_source(path, TEAM_FILE), str(path))

    @classmethod
    def from_text(cls, text: str, file: str) -> TeamSpec:
        """Read a team from its source, as an editor has it.

        Args:
            text: The source.
            file: Its path, from which its relative paths are taken; it need not be there.

        Returns:
            The team.

        Raises:
            ConfigError: As `from_file`.
        """
        document = parse_document(text, file, TEAM_FILE)
        if _is_rate_table(document.data):
            return cls.model_construct(agents=(), **document.data)
        if document.data.keys() & {"steps", "stages"} and not document.data.keys() & _TEAM_KEYS:
            raise ConfigError(_A_RECIPE, file=document.file)
        found = (each for each in slips(_sections(document.data)) if not _is_massgens(each.path))
        context = {"folder": Path(file).absolute().parent}
        team = checked(cls, document, (), found, context)
        team._document = document
        return team

    @classmethod
    def from_model(cls, model: str) -> TeamSpec:
        """Return a team of one agent.

        Args:
            model: Backend type and model, as ``openai:gpt-5-mini``.

        Returns:
            The team.

        Raises:
            ConfigError: It lacks one of them, or the type can't run here.

        Example:
            >>> TeamSpec.from_model("ollama:llama3.2:1b").agents[0].backend.model
            'llama3.2:1b'
        """
        kind, colon, name = (part.strip() for part in model.partition(":"))
        why = why_unsupported(kind.lower()) if colon else ""
        if why:
            raise ConfigError(f"Model {model!r} has type {kind!r}, which is not supported. {why}")
        if not colon or (not name and BACKEND_TYPES[kind.lower()].needs_model):
            raise ConfigError(
                f"Model {model!r} is not type:model. Write, for example, openai:gpt-5-mini."
            )
        agent = {"backend": {"type": kind, "model": name}}
        try:
            return cls.model_validate({"agent": agent})
        except ValidationError:  # python
            raise ConfigError(f"Type {kind!r} needs an object; give a TeamSpec instead.") from None

    def with_model(self, model: str, but: Collection[str] = ()) -> TeamSpec:
        """Return the team with another model for its agents.

        Args:
            model: Backend type and model, as for `from_model`. Where an agent's type stays the
                same, so do its address and its key.
            but: Ids of agents that stay as they are.

        Raises:
            ConfigError: There is no such type or model.
        """
        new = type(self).from_model(model).agents[0].backend

        def changed(agent: AgentSpec) -> AgentSpec:
            old = agent.backend
            if agent.id in but:
                return agent
            where = old if old.type == new.type else new
            update = {name: getattr(where, name) for name in _WHERE}
            update |= {"type": new.type, "model": new.model, "instance": None, "object": None}
            return agent.model_copy(update={"backend": old.model_copy(update=update)})

        changes = {
            name: tuple(map(changed, getattr(self, name))) for name in ("agents", "callable_agents")
        }
        return self.model_copy(update=changes)

    def _existing(self, text: str, number: int) -> Path:
        try:
            return Path(text).expanduser().resolve(strict=True)
        except (OSError, RuntimeError, ValueError):  # missing; a loop, an unknown ~user; a NUL
            what = f"Context path {text!r} does not exist. Correct or remove it."
            path = ("orchestrator", "context_paths", number, "path")
            raise self.fault(what, *path) from None

    def _with_position(self, path: tuple[object, ...]) -> tuple[object, ...]:
        data = self._document.data
        if not data or path[:1] != ("agents",) or len(path) < 2:
            return path
        agents = data.get("agents") or [data["agent"]]
        ids = [_with_id(agent, number)["id"] for number, agent in enumerate(agents, 1)]
        # One that is only called has no place among them.
        return ("agents", ids.index(path[1]), *path[2:]) if path[1] in ids else ("callable_agents",)


def _sections(data: Mapping[str, Any]) -> Iterator[Section]:
    yield from sections(TeamSpec, data)
    if isinstance(lone := data.get("agent"), dict):
        yield from sections(AgentSpec, lone, ("agent",))


def _is_massgens(path: Keys) -> bool:
    """Return whether MassGen has such a key, even if it resembles one of ours."""
    return sort_of(section_of(path[:-1]), str(path[-1])) != "unknown"


def _beside(path: str, info: ValidationInfo) -> str:
    folder: Path = (info.context or {}).get("folder") or start_place()
    return str(folder / Path(path).expanduser())


def _given(agent: Any, number: int) -> Any:
    return as_agent(agent, number) if is_object(agent) else agent


def _with_id(agent: Any, number: int) -> Any:
    agent = _given(agent, number)
    if isinstance(agent, dict) and agent.get("id") is None:
        return {**agent, "id": f"agent{number}"}
    return agent


def _calling_none_of(agent: AgentSpec, gone: Collection[str]) -> AgentSpec:
    names = tuple(name for name in agent.backend.can_call if name not in gone)
    if names == agent.backend.can_call:
        return agent
    backend = agent.backend.model_copy(update={"can_call": names})
    return agent.model_copy(update={"backend": backend})


def _is_rate_table(data: Mapping[str, Any]) -> bool:
    """Return whether a file is MassGen's ``rate_limits.yaml``: limits per provider and model."""
    tables = [model for provider in data.values() for model in _values(provider)]
    return bool(tables) and all(isinstance(t, dict) and "rpm" in t for t in tables)


def _values(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else [None]


def chosen_team(
    config: str | None, model: str | None, bundles: Sequence[str] = ()
) -> str | TeamSpec | None:
    """Combine ``--config``, ``--model`` and ``--bundle``.

    Args:
        config: A team file.
        model: One agent of this model, as ``openai:gpt-5-mini``.
        bundles: Directories of bundles, each as ``NAME=DIR``; they go before the file's.

    Returns:
        The team, or None for the demo's.

    Raises:
        ConfigError: Both a file and a model are given, there is no such model, or a bundle is
            written in another way.
    """
    if model is not None and config is not None:
        raise ConfigError("A model and a config are both given. Leave out --model or --config.")
    if not bundles:
        return config if model is None else TeamSpec.from_model(model)
    team = TeamSpec.from_file(config) if config else TeamSpec.from_model(model or "demo:")
    return team.model_copy(update={"bundles": {**team.bundles, **_bundles(bundles)}})


def with_objects(
    team: str | TeamSpec | None, wanted: str, namespace: Mapping[str, Any]
) -> str | TeamSpec | None:
    """Combine a team with agents that are objects, as ``--agents`` names them.

    Args:
        team: A team or its file, which the agents join; None for a team of these alone.
        wanted: The objects' names with commas between; "" leaves the team as it is.
        namespace: Where they are, such as the notebook's names.

    Raises:
        ConfigError: There is no such object, or an id twice.
    """
    if not wanted:
        return team
    names = list(dict.fromkeys(name.strip() for name in wanted.split(",") if name.strip()))
    if missing := [name for name in names if name not in namespace]:
        raise ConfigError(f"--agents {missing[0]}: no variable has that name. Define it before.")
    given = [as_agent(namespace[name], n, name) for n, name in enumerate(names, 1)]
    spec = TeamSpec.from_file(team) if isinstance(team, str) else team
    try:
        added = TeamSpec.model_validate({"agents": given})
        if spec is None:
            return added
        return TeamSpec.model_validate({**dict(spec), "agents": (*spec.agents, *added.agents)})
    except ValidationError as exc:
        raise ConfigError(f"--agents {wanted}: {exc.errors()[0]['msg']}.") from None


def _bundles(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in given:
        name, equals, folder = text.partition("=")
        if not (name and equals and folder):
            raise ConfigError(
                f"--bundle {text} is not NAME=DIR. Write, for example, --bundle recipes=../recipes."
            )
        found[name] = str(Path(folder).expanduser().absolute())
    return found
