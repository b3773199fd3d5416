"""Agents that are given as objects: functions, and agents of other frameworks.

Whether an object can be an agent is checked where a run starts; here it gets an id, and the name
by which another process, or a resume, finds it.
"""

from __future__ import annotations

import re
import sys
from typing import Any

MAIN = "__main__"
"""The module that is a notebook's; no other process has its objects."""

_NO_OBJECTS = (dict, str, bytes, int, float, list, tuple, type(None))


def is_object(value: Any) -> bool:
    """Return whether a value in a list of agents is meant as an agent's object."""
    return not isinstance(value, _NO_OBJECTS) and not hasattr(value, "backend")


def as_agent(value: Any, number: int, name: str = "") -> dict[str, Any]:
    """Return an object as an agent of a team.

    Args:
        value: The object.
        number: Its place in the team, from 1, which names it if nothing else does.
        name: Its name in the notebook.
    """
    name = name or _name_in_main(value)
    called = name or getattr(value, "__name__", None) or getattr(value, "name", None)
    id = re.sub(r"\W+", "_", called).strip("_") if isinstance(called, str) else ""
    backend = {"type": "python", "instance": value}
    if where := _reference(value, name):
        backend["object"] = where
    return {"id": id or f"agent{number}", "backend": backend}


def _name_in_main(value: Any) -> str:
    named = vars(sys.modules[MAIN]) if MAIN in sys.modules else {}
    return next((n for n, each in [*named.items()] if each is value and n[:1] != "_"), "")


def _reference(value: Any, name: str) -> str:
    """Return where another process finds an object, as "module:name", or ""."""
    module, own = getattr(value, "__module__", ""), getattr(value, "__qualname__", "")
    if module in sys.modules and _is_at(value, module, own):
        return f"{module}:{own}"
    return f"{MAIN}:{name}" if name else ""


def _is_at(value: Any, module: str, name: str) -> bool:
    return bool(name.isidentifier()) and getattr(sys.modules[module], name, None) is value
