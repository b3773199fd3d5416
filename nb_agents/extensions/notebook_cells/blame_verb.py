"""The verb that names the agent, model, call and time of each line that agents have changed."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from nb_agents.disk.directory import read_file
from nb_agents.errors import UserError
from nb_agents.extensions.notebook_cells.applied import AppliedChange, applied_changes
from nb_agents.extensions.notebook_cells.blame import BlamedLine
from nb_agents.extensions.notebook_cells.blame import blame as blamed_lines
from nb_agents.extensions.notebook_cells.cells import cells_in, parse_notebook
from nb_agents.extensions.notebook_cells.notebook_files import MAX_FILE_BYTES
from nb_agents.extensions.notebook_cells.rewinding import turn_records
from nb_agents.launch.file_blame import blame_file
from nb_agents.launch.file_calls import FileCall
from nb_agents.presentation.text import clip
from nb_agents.session.layout import sessions_in
from nb_agents.unicode import visible
from nb_agents.verbs.outcome import Table
from nb_agents.verbs.verb import REQUIRED, Caller, Parameter, Verb

HEADS = ("cell", "line", "agent", "model", "time", "session/turn", "call", "prompt", "text")
FILE_HEADS = HEADS[1:]
_NONE = "No line of {path} is from an agent of the sessions in {root}."
MAX_TEXT = 60
"""Maximum length of a line's text in the table, in characters."""
MAX_PROMPT = 40
"""Maximum length of a prompt in the table, in characters."""
MAX_LONG = 200
"""Maximum length of both with ``--long``, in characters."""


def blame(root: Path, caller: Caller, *, file: str, long: bool = False) -> Table:
    """Name the agent, model, time, call and prompt of each line of a file by agents.

    Args:
        root: The session root, whose sessions are searched.
        caller: The user interface that makes the request.
        file: The path of a notebook, a file of a workspace, or a user file.
        long: Whether to show up to 200 characters of prompts and lines.

    Raises:
        UserError: The file can't be read, or is neither a notebook nor text.
    """
    path = Path(file).expanduser()
    return _of_notebook(root, path, long) if path.suffix == ".ipynb" else _of_file(root, path, long)


def _of_file(root: Path, path: Path, long: bool) -> Table:
    sessions = sessions_in(root)
    numbered = enumerate(blame_file(sessions.by_use, path), 1)
    lines = [(number, text, call) for number, (text, call) in numbered if call is not None]
    return Table(
        FILE_HEADS,
        [_file_row(*each, long) for each in lines],
        [_file_facts(*each) for each in lines],
        [str(each) for each in sessions.unreadable],
        _NONE.format(path=path, root=root),
    )


def _file_row(number: int, text: str, call: FileCall, long: bool) -> tuple[str, ...]:
    turn = f"{call.session}/{call.turn}"
    what = f"{call.call} {call.tool}".strip()
    where = (call.agent, call.model, _time(call.at), turn, what, *_texts(call.prompt, text, long))
    return (str(number), *map(visible, where))


def _texts(prompt: str, line: str, long: bool) -> tuple[str, str]:
    """Return a prompt and a line as they are shown in the table."""
    if long:
        return clip(prompt, MAX_LONG), line[:MAX_LONG]
    return clip(prompt, MAX_PROMPT), line[:MAX_TEXT]


def _file_facts(number: int, text: str, call: FileCall) -> dict[str, object]:
    facts = call._asdict() | {"turn": f"{call.session}/{call.turn}"}
    return {"line": number, "text": text, **facts}


def _time(at: float) -> str:
    return f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M}"


def _of_notebook(root: Path, path: Path, long: bool) -> Table:
    try:
        cells = cells_in(parse_notebook(read_file(path, MAX_FILE_BYTES)))
    except OSError as exc:
        raise UserError(f"{path} can't be read: {exc.strerror or exc}.") from None
    except UserError as exc:
        raise UserError(f"{path}: {exc}") from None
    sessions = sessions_in(root)
    changes = [
        change for session in sessions.by_use for change in applied_changes(turn_records(session))
    ]
    lines = blamed_lines(cells, sorted(changes, key=lambda each: each.at))
    return Table(
        HEADS,
        [_row(each, long) for each in lines],
        [_facts(each) for each in lines],
        [str(each) for each in sessions.unreadable],
        _NONE.format(path=path, root=root),
    )


def _row(line: BlamedLine, long: bool) -> tuple[str, ...]:
    change = line.change
    where = (
        change.agent,
        change.model,
        _time(change.at),
        _turn(change),
        change.call,
        *_texts(change.prompt, line.text, long),
    )
    return (str(line.position), str(line.line), *map(visible, where))


def _facts(line: BlamedLine) -> dict[str, object]:
    change = line.change
    return {
        "position": line.position,
        "cell": line.cell,
        "line": line.line,
        "text": line.text,
        "agent": change.agent,
        "model": change.model,
        "call": change.call,
        "turn": _turn(change),
        "prompt": change.prompt,
        "proposal": change.number,
        "at": change.at,
        "by": change.by,
    }


def _turn(change: AppliedChange) -> str:
    return f"{change.session}/{change.turn}"


BLAME = Verb(
    "blame",
    blame,
    "root",
    (
        Parameter(
            "file",
            "a notebook, a workspace file, or a user file that agents may change",
            REQUIRED,
            metavar="FILE",
        ),
        Parameter(
            "long",
            "show up to 200 characters of prompts and lines",
            False,
            is_option=True,
        ),
    ),
)
