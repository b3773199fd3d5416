r"""Files that a person names in a task: ``@path``, as MassGen's prompts have it.

Only what a person typed is read so, and never what a variable, a table or a model put there: a
name gives agents a file to read. Where there is no such file it is words, as in ``@property``.

Source: MassGen 0.1.97, `path_handling/prompt_parser.py` (where a path ends; ``:w``; ``\@``).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from nb_agents.errors import TaskError

__all__ = ["Mentions", "mentions"]

_MENTION = re.compile(
    r"""(?<![\w\\])@(?:"(?P<quoted>[^"\n]+)"|(?P<plain>[^\s@:"]+?))(?P<write>:w)?"""
    r"(?=\s|$|[,;!?)}\]>:]|\.(?=\s|$))"
)
_ESCAPED = re.compile(r"\\@(?=\S)")


class Mentions(NamedTuple):
    """A task and the files that it names.

    Attributes:
        task: It, with each mention replaced by where the file is.
        paths: Where they are, absolute, each once.
    """

    task: str
    paths: tuple[str, ...]


def mentions(task: str) -> Mentions:
    r"""Find the files that a person's task names.

    Args:
        task: As it was typed.

    Returns:
        The task and the files. ``\@`` stands for an @ that is none.

    Raises:
        TaskError: One is to be written, which a team's file allows and a task does not.

    Example:
        >>> mentions("Ask ada@example.org about @property.").paths
        ()
    """
    found: dict[str, None] = {}

    def place(match: re.Match[str]) -> str:
        path = _existing(match["quoted"] or match["plain"])
        if path is None:
            return match[0]
        if match["write"]:
            raise TaskError(
                f"{match[0]} asks to write {str(path)!r}. Allow that in the team's file: "
                "`orchestrator.context_paths`, with `permission: write`."
            )
        found[str(path)] = None
        return str(path)

    return Mentions(_ESCAPED.sub("@", _MENTION.sub(place, task)), tuple(found))


def _existing(name: str) -> Path | None:
    try:
        return Path(name).expanduser().resolve(strict=True)
    except (OSError, RuntimeError, ValueError):  # an unknown ~user, a NUL
        return None
