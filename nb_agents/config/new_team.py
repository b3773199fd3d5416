"""The text of a new team file or notebook, for those who begin."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import yaml

from nb_agents.config.backends import BACKEND_TYPES

NAMES = ("ada", "ben", "cleo", "dora", "emil")

FIRST_MODELS = {"openai": "gpt-5-mini", "claude": "claude-sonnet-4-5", "gemini": "gemini-2.5-flash"}
"""Of the providers that most people have a key of, the model that a first team has."""


def found_models() -> tuple[str, ...]:
    """Return a model of each provider whose key is in the environment, as type:model."""
    return tuple(
        f"{kind}:{model}"
        for kind, model in FIRST_MODELS.items()
        if any(os.environ.get(name) for name in BACKEND_TYPES[kind].variables)
    )


def new_team(models: Sequence[str], schema: str = "", tools: Sequence[str] = ()) -> str:
    """Return the text of a team file with an agent for each model.

    Args:
        models: As type:model; "demo" is the demo model, and so are three agents of none.
        schema: Where the schema is, from the file on; "" leaves it out.
        tools: Keys of a backend that are switched on, such as "enable_web_search".
    """
    wanted = list(models) or ["demo"] * 3
    names = [*NAMES, *(f"agent_{n}" for n in range(len(NAMES) + 1, len(wanted) + 1))]
    agents: list[dict[str, Any]] = []
    for name, each in zip(names, wanted, strict=False):
        kind, _, model = each.partition(":")
        backend: dict[str, Any] = {"type": kind} | ({"model": model} if model else {})
        agents.append({"id": name, "backend": backend | dict.fromkeys(tools, True)})
    text: str = yaml.safe_dump({"agents": agents}, sort_keys=False)
    head = f"# yaml-language-server: $schema={schema}\n" if schema else ""
    return f"{head}{text}"


def new_notebook(models: Sequence[str]) -> str:
    """Return the text of a notebook with three cells: load, ask, and show all.

    Args:
        models: As type:model; the first is asked, and none is the demo model.
    """
    option = f" --model {models[0]}" if models else ""
    cells = (
        "%load_ext nb_agents",
        f"%%agents{option}\nWhat shall the agents work on? Write it here, and run this cell.",
        "%agents",
    )
    made: list[dict[str, Any]] = [
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
        "cells": made,
        "metadata": {"kernelspec": kernel},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(notebook, indent=1) + "\n"
