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
from nb_agents.launch.file_blame import FileCall, blame_file
from nb_agents.session.layout import sessions_in
from nb_agents.unicode import visible
from nb_agents.verbs.outcome import Table
from nb_agents.verbs.verb import REQUIRED, Caller, Parameter, Verb

HEADS = ("cell", "line", "agent", "model", "time", "session/turn", "call", "text")
FILE_HEADS = HEADS[1:]
_NONE = "No line of {path} is from an agent of the sessions in {root}."
MAX_TEXT = 60
"""Maximum length of a line's text in the table, in characters."""


def blame(root: Path, caller: Caller, *, file: str) -> Table:
    """Name the agent, model, time and call of each line of a file that agents have written.

    Args:
        root: The session root, whose sessions are searched.
        caller: The user interface that makes the request.
        file: The path of a notebook, a file of a workspace, or a user file.

    Raises:
        UserError: The file can't be read, or is neither a notebook nor text.
    """
    path = Path(file).expanduser()
    return _of_notebook(root, path) if path.suffix == ".ipynb" else _of_file(root, path)


def _of_file(root: Path, path: Path) -> Table:
    sessions = sessions_in(root)
    numbered = enumerate(blame_file(sessions.by_use, path), 1)
    lines = [(number, text, call) for number, (text, call) in numbered if call is not None]
    return Table(
        FILE_HEADS,
        [_file_row(*each) for each in lines],
        [_file_facts(*each) for each in lines],
        [str(each) for each in sessions.unreadable],
        _NONE.format(path=path, root=root),
    )


def _file_row(number: int, text: str, call: FileCall) -> tuple[str, ...]:
    turn = f"{call.session}/{call.turn}"
    what = f"{call.call} {call.tool}".strip()
    where = (call.agent, call.model, _time(call.at), turn, what, text[:MAX_TEXT])
    return (str(number), *map(visible, where))


def _file_facts(number: int, text: str, call: FileCall) -> dict[str, object]:
    facts = call._asdict() | {"turn": f"{call.session}/{call.turn}"}
    return {"line": number, "text": text, **facts}


def _time(at: float) -> str:
    return f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M}"


def _of_notebook(root: Path, path: Path) -> Table:
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
        [_row(each) for each in lines],
        [_facts(each) for each in lines],
        [str(each) for each in sessions.unreadable],
        _NONE.format(path=path, root=root),
    )


def _row(line: BlamedLine) -> tuple[str, ...]:
    change = line.change
    where = (
        change.agent,
        change.model,
        _time(change.at),
        _turn(change),
        change.call,
        line.text[:MAX_TEXT],
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
    ),
)
