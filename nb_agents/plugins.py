"""Registers extensions, and finds what they add to nb_agents.

An extension is a package with an `Extension`, which lists what the package adds: backend types,
tools, verbs and so on. Each item is a reference such as ``"acme.tools:WEATHER"``, which is imported
on first use. Extensions of other distributions declare an entry point:

    [project.entry-points.nb_agents]
    acme = "acme:EXTENSION"

Extensions in `nb_agents.extensions` need no entry point. Otherwise, both kinds are registered in
the same way.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from pkgutil import iter_modules, resolve_name
from typing import TypeVar, cast

from nb_agents.errors import UserError, error_message

__all__ = ["Extension", "ExtensionPoint", "extensions", "register"]

GROUP = "nb_agents"
"""The entry-point group of extensions."""

_T = TypeVar("_T")
_logger = logging.getLogger(__name__)


def _references() -> Mapping[str, str]:
    return field(default_factory=dict[str, str])


@dataclass(frozen=True, kw_only=True)
class Extension:
    """Everything that a package adds to nb_agents.

    Each mapping contains references (``"module:NAME"``) by name. A reference is imported when its
    name is used, so the module with the `Extension` should import nothing else.

    Attributes:
        name: The extension's name.
        backend_types: `nb_agents.config.backends.BackendType` by the ``type`` of a backend.
        runner_types: `nb_agents.agents.runner_types.RunnerType` by the ``type`` of a backend.
        agent_objects: `nb_agents.agents.python_objects.ObjectKind` by any name.
        tools: Tools by name.
        member_tools: Functions that create the tools of a team's members, by the backend key that
            enables them; see `nb_agents.turns.drivers.ExtensionTools`.
        agent_tools: Like `member_tools`, but also for called agents and the agents of steps.
        verbs: `nb_agents.verbs.verb.Verb` by name.
        commands: Commands of ``nb-agents`` by name.
        events: Event classes by kind. Their module also declares the functions of the folds.
        user_events: Functions that return whether a user's request may record an event now, by the
            event's kind; see `nb_agents.turns.user_events`.
        carry_overs: Functions that return what a resume or rewind adds to the new turn, by name;
            see `nb_agents.launch.carry_over`.
        late_events: Functions that return what was recorded after a turn's end, by name; see
            `nb_agents.presentation.late_views`.
        cards: Functions that add something to a run's card, by name.
        panel_parts: Functions that return data for the page with a run's panel or card, by name;
            see `nb_agents.presentation.panel_parts`.
        displays: Functions that return an object's card as a mime bundle, by the kind of object.
        panels: Functions that return an object's live panel as a widget, by the kind of object.
        work_kinds: Kinds of work by name.
        groups: Kinds of groups of runs by name.
        group_recorders: `nb_agents.launch.group_record.GroupRecorder` by the name of the group's
            kind.
        routes: Handlers of the Jupyter server by name.
        public_names: Names of `nb_agents`. Only its own extensions may add some.
    """

    name: str
    backend_types: Mapping[str, str] = _references()
    runner_types: Mapping[str, str] = _references()
    agent_objects: Mapping[str, str] = _references()
    tools: Mapping[str, str] = _references()
    member_tools: Mapping[str, str] = _references()
    agent_tools: Mapping[str, str] = _references()
    verbs: Mapping[str, str] = _references()
    commands: Mapping[str, str] = _references()
    events: Mapping[str, str] = _references()
    user_events: Mapping[str, str] = _references()
    carry_overs: Mapping[str, str] = _references()
    late_events: Mapping[str, str] = _references()
    cards: Mapping[str, str] = _references()
    panel_parts: Mapping[str, str] = _references()
    displays: Mapping[str, str] = _references()
    panels: Mapping[str, str] = _references()
    work_kinds: Mapping[str, str] = _references()
    groups: Mapping[str, str] = _references()
    group_recorders: Mapping[str, str] = _references()
    routes: Mapping[str, str] = _references()
    public_names: Mapping[str, str] = _references()


_POINTS = frozenset(each.name for each in fields(Extension)) - {"name"}
_registered: dict[str, Extension] = {}


def register(extension: Extension) -> None:
    """Register an extension. Registering it again has no effect.

    Raises:
        UserError: Another extension has its name, or one of the names that it adds.
    """
    if _registered.get(extension.name) == extension:
        return
    if extension.name in _registered:
        raise UserError(
            f"There are two extensions named {extension.name!r}. Uninstall one of them."
        )
    for other in [*_registered.values()]:
        for point in sorted(_POINTS):
            if both := getattr(other, point).keys() & getattr(extension, point).keys():
                raise UserError(
                    f"The extensions {other.name!r} and {extension.name!r} both add "
                    f"{min(both)!r} to {point}. Uninstall one of them."
                )
    _registered[extension.name] = extension


@cache
def _register_built_in() -> None:
    """Register the packages in `nb_agents.extensions`."""
    folder = Path(__file__).with_name("extensions")
    for module_info in iter_modules([str(folder)]):
        register(import_module(f"{__package__}.{folder.name}.{module_info.name}").EXTENSION)


@cache
def _register_installed() -> None:
    """Register the extensions of other distributions.

    Failures are logged, and the extension is left out.
    """
    for entry in sorted(entry_points(group=GROUP), key=lambda each: each.name):
        try:
            register(_loaded(entry))
        except Exception as exc:  # an extension may raise anything
            _logger.warning("Extension %r is not available. %s", entry.name, error_message(exc))


def _loaded(entry: EntryPoint) -> Extension:
    extension = entry.load()
    if not isinstance(extension, Extension):
        raise TypeError(f"{entry.value} is not an nb_agents.plugins.Extension.")
    if extension.public_names:
        raise ValueError(f"{entry.value} can't add public_names.")
    return extension


def extensions() -> tuple[Extension, ...]:
    """Return all extensions. Those of nb_agents come first."""
    _register_built_in()
    _register_installed()
    return tuple(_registered.values())


def public_names() -> frozenset[str]:
    """Return the names that built-in extensions add to `nb_agents`."""
    _register_built_in()
    return frozenset(name for each in _registered.values() for name in each.public_names)


def public_name(name: str) -> object:
    """Return the object that a built-in extension adds to `nb_agents` under a name, or None."""
    return ExtensionPoint[object]("public_names")[name] if name in public_names() else None


class ExtensionPoint(Mapping[str, _T]):
    """All items of one kind by name: those of the core, and those of extensions.

    Entry points are read to look up a name that nb_agents itself doesn't have, and to list names.

    Args:
        name: The field of `Extension` with the references.
        core: The items of the core. An extension can't replace them.
    """

    def __init__(self, name: str, core: Mapping[str, _T] | None = None) -> None:
        if name not in _POINTS:
            raise ValueError(f"Extension has no field {name!r}.")
        self.name = name
        self.core = {} if core is None else dict(core)

    def __getitem__(self, name: str) -> _T:
        """Return the item with a name.

        Raises:
            UserError: It can't be imported.
        """
        if name in self.core:
            return self.core[name]
        if (owner := self._owner(name)) is None:
            raise KeyError(name)
        return self._load(owner, name)

    def __contains__(self, name: object) -> bool:
        """Return whether the core or an extension has a name. Does not import the extension."""
        return name in self.core or self._owner(name) is not None

    def __iter__(self) -> Iterator[str]:
        """Yield all names, those of the core first. Does not import the extensions."""
        added = (name for each in extensions() for name in getattr(each, self.name))
        yield from dict.fromkeys([*self.core, *added])

    def __len__(self) -> int:
        """Return the number of names."""
        return sum(1 for _ in self)  # list() would call this method

    def all(self) -> dict[str, _T]:
        """Return all items by name. Those that can't be imported are logged and left out."""
        extensions: dict[str, _T] = {}
        for name in self:
            try:
                extensions[name] = self[name]
            except UserError as exc:
                _logger.warning("%s", exc)
        return extensions

    def _owner(self, name: object) -> Extension | None:
        _register_built_in()
        if (owner := self._registered_owner(name)) is None:
            _register_installed()
            owner = self._registered_owner(name)
        return owner

    def _registered_owner(self, name: object) -> Extension | None:
        owners = [*_registered.values()]
        return next((each for each in owners if name in getattr(each, self.name)), None)

    def _load(self, owner: Extension, name: str) -> _T:
        reference: str = getattr(owner, self.name)[name]
        try:
            return cast(_T, resolve_name(reference))
        except Exception as exc:  # an extension may raise anything
            raise UserError(
                f"{name!r} of the extension {owner.name!r} can't be imported from {reference!r}. "
                f"{error_message(exc, named=True)}"
            ) from exc
