"""Generates a first team file or notebook."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from nb_agents.config.backends import BACKEND_TYPES, full_name

NAMES = ("ada", "ben", "cleo", "dora", "emil")

FIRST_MODELS = {"openai": "gpt-5-mini", "claude": "claude-sonnet-4-5", "gemini": "gemini-2.5-flash"}
"""The models of a new team, for the providers for which most users have a key."""


@dataclass(frozen=True)
class NewAgent:
    """An agent of a new team file.

    Attributes:
        model: The model as accepted by `full_name`, or "demo".
        name: The agent's id. If empty, it gets a default name.
        role: The agent's system message, or "".
        base_url: The address of the model's server, or "" for the provider's address.
    """

    model: str
    name: str = ""
    role: str = ""
    base_url: str = ""


def models_with_keys() -> tuple[str, ...]:
    """Return a model, as ``type:model``, for each provider with a key in the environment."""
    return tuple(
        f"{kind}:{model}"
        for kind, model in FIRST_MODELS.items()
        if any(os.environ.get(name) for name in BACKEND_TYPES[kind].variables)
    )


def new_team(agents: Sequence[NewAgent | str], schema: str = "", tools: Sequence[str] = ()) -> str:
    """Return the text of a team file.

    Args:
        agents: The agents, or their models. If empty, three agents use the demo model.
        schema: The path of the JSON schema, relative to the file. "" leaves it out.
        tools: Keys of a backend to enable, such as "enable_web_search".
    """
    members = [
        each if isinstance(each, NewAgent) else NewAgent(each) for each in agents or ["demo"] * 3
    ]
    taken = {each.name for each in members}
    defaults = [*NAMES, *(f"agent_{n}" for n in range(len(NAMES) + 1, 2 * len(members) + 1))]
    free = (name for name in defaults if name not in taken)
    entries = [_entry(each, each.name or next(free), tools) for each in members]
    text: str = yaml.safe_dump({"agents": entries}, sort_keys=False, allow_unicode=True)
    head = f"# yaml-language-server: $schema={schema}\n" if schema else ""
    return f"{head}{text}"


def _entry(agent: NewAgent, name: str, tools: Sequence[str]) -> dict[str, Any]:
    kind, _, model = full_name(agent.model).partition(":")
    backend: dict[str, Any] = {"type": kind}
    if model:
        backend["model"] = model
    if agent.base_url:
        backend["base_url"] = agent.base_url
    entry: dict[str, Any] = {"id": name, "backend": backend | dict.fromkeys(tools, True)}
    return entry | ({"system_message": agent.role} if agent.role else {})


def new_notebook(models: Sequence[str]) -> str:
    """Return the text of a notebook that loads the extension, starts agents and lists runs.

    Args:
        models: Models as accepted by `full_name`. The first one is used. If empty, the demo model.
    """
    option = f" --model {models[0]}" if models else ""
    cells = (
        "%load_ext nb_agents",
        f"%%agents{option}\nReplace this line with a task for the agents, then run the cell.",
        "%agents",
    )
    new_cells: list[dict[str, Any]] = [
        {
            "cell_type": "code",
            "id": f"cell-{i}",
            "metadata": {},
            "execution_count": None,
            "outputs": [],
            "source": cell,
        }
        for i, cell in enumerate(cells)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = {
        "cells": new_cells,
        "metadata": {"kernelspec": kernel},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(notebook, indent=1) + "\n"
