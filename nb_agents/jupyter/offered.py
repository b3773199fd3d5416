"""What a word can become that names a file or a session: for IPython's completer and for shells."""

from __future__ import annotations

from pathlib import Path

from nb_agents.session.layout import session_root, sessions_in

__all__ = ["files_at", "session_names"]

MAX_FILES = 200


def session_names() -> list[str]:
    """List the sessions on disk by name, the one used last first."""
    return [path.name for path in sessions_in(session_root()).by_use]


def files_at(word: str) -> list[str]:
    """List the directories, team files and recipes that a path can become."""
    head, slash, begun = word.rpartition("/")
    folder = Path(f"{head}{slash}").expanduser()
    try:
        found = sorted(p for p in folder.iterdir() if p.name.startswith(begun))[:MAX_FILES]
    except OSError:
        return []
    # A word ends at a space, and what is hidden is asked for by its dot.
    shown = [p for p in found if " " not in p.name and (begun or p.name[0] != ".")]
    of_ours = [p for p in shown if p.is_dir() or p.suffix in (".yaml", ".yml", ".json", ".zip")]
    return [f"{head}{slash}{p.name}{'/' if p.is_dir() else ''}" for p in of_ours]
