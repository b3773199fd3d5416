"""Agents that are Python objects: functions, and agents of other frameworks.

An object gets an id, and a name under which a resume or another process can import it. Whether it
can be an agent is checked when a run starts.
"""

from __future__ import annotations

import re
import sys
from typing import Any

MAIN = "__main__"
"""The module of a notebook. Other processes don't have its objects."""

_NO_OBJECTS = (dict, str, bytes, int, float, list, tuple, type(None))


def is_object(value: Any) -> bool:
    """Return whether an item in a list of agents is an object rather than a spec or plain data."""
    return not isinstance(value, _NO_OBJECTS) and not hasattr(value, "backend")


def as_agent(value: Any, number: int, name: str = "") -> dict[str, Any]:
    """Return the data of an `AgentSpec` for an object.

    Args:
        value: The object.
        number: Its position in the team, starting at 1, for the id of an object without a name.
        name: The object's name in the notebook.
    """
    name = name or _name_in_main(value)
    own_name = name or getattr(value, "__name__", None) or getattr(value, "name", None)
    id = re.sub(r"\W+", "_", own_name).strip("_") if isinstance(own_name, str) else ""
    backend = {"type": "python", "instance": value}
    if reference := _reference(value, name):
        backend["object"] = reference
    return {"id": id or f"agent{number}", "backend": backend}


def _name_in_main(value: Any) -> str:
    variables = vars(sys.modules[MAIN]) if MAIN in sys.modules else {}
    return next((n for n, each in [*variables.items()] if each is value and n[:1] != "_"), "")


def _reference(value: Any, name: str) -> str:
    """Return "module:name" under which an object can be imported, or ""."""
    module, qualname = getattr(value, "__module__", ""), getattr(value, "__qualname__", "")
    if module in sys.modules and _is_at(value, module, qualname):
        return f"{module}:{qualname}"
    return f"{MAIN}:{name}" if name else ""


def _is_at(value: Any, module: str, name: str) -> bool:
    return bool(name.isidentifier()) and getattr(sys.modules[module], name, None) is value
