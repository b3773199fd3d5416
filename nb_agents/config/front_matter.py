"""The front matter of a Markdown file: the YAML between two lines of ``---`` at its head.

It is text of agents or of strangers: bounded, and nothing but texts is taken from it.
"""

from __future__ import annotations

import re

import yaml

__all__ = ["front_matter"]

MAX_CHARS = 4_000
MAX_VALUE_CHARS = 1_000
_HEAD = re.compile(r"\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)


def front_matter(text: str) -> dict[str, str]:
    r"""Return the texts that a file's front matter names; {} where there is none that can be read.

    Args:
        text: The file's beginning.

    Example:
        >>> front_matter("---\nname: tables\ndescription: Reads tables\n---\n# How")
        {'name': 'tables', 'description': 'Reads tables'}
    """
    head = _HEAD.match(text[:MAX_CHARS])
    if head is None:
        return {}
    try:
        found = yaml.safe_load(head[1])
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        key: " ".join(value.split())[:MAX_VALUE_CHARS]
        for key, value in found.items()
        if isinstance(key, str) and isinstance(value, str)
    }
