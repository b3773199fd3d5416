"""Commands on disk: each is taken once, whatever the writer lacks when it looks."""

from pathlib import Path

import pytest

from nb_agents.cancel import CancellationStatus, StopRequest
from nb_agents.errors import UserError
from nb_agents.events import Command, Decide, Say
from nb_agents.session.commands import MAX_BYTES, send, take_commands
from nb_agents.session.layout import TurnPaths
from tests.processes import output

TAKE = """
import os, resource, sys
from pathlib import Path
from nb_agents.session.commands import send, take_commands
from nb_agents.session.layout import TurnPaths
from nb_agents.tools.offer import CallAsked, CallInbox

soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

def with_files(count, take):
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + count, hard))
    try:
        return take()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

"""

TAKE_COMMANDS = f"""{TAKE}
turn = TurnPaths(Path(sys.argv[1]))
take = lambda: [name for name, _ in take_commands(turn)]
taken = [name for count in range(5) for name in with_files(count, take)]
print(*taken, *take(), sep="\\n")
"""

TAKE_CALLS = f"""{TAKE}
offer = CallInbox.make(Path(sys.argv[1]))
place = Path(sys.argv[1])
asked = CallAsked("tool", {{}}, "ada", False, place, (), place, place)
names = [offer.ask(asked) for _ in range(2)]
take = lambda: [name for name, _ in offer.take_calls()]
taken = [name for count in range(5) for name in with_files(count, take)]
print([*taken, *take()] == names)
"""

STOP = StopRequest(CancellationStatus.REQUESTED, "cli", "enough")


def taken(turn: TurnPaths) -> list[Command]:
    return [command for _, command in take_commands(turn)]


def test_commands_are_taken_once_in_the_order_in_which_they_were_sent(tmp_path: Path) -> None:
    turn = TurnPaths(tmp_path)
    for command in (Say("one"), STOP, Say("two")):
        send(turn, command)
    assert taken(turn) == [Say("one"), STOP, Say("two")]
    assert taken(turn) == []


def test_a_writer_that_has_no_file_left_takes_each_command_later(tmp_path: Path) -> None:
    turn = TurnPaths(tmp_path)
    names = [send(turn, command) for command in (STOP, Say("more"))]
    assert output(TAKE_COMMANDS, tmp_path).split() == names


def test_who_offers_tools_and_has_no_file_left_takes_each_call_later(tmp_path: Path) -> None:
    assert output(TAKE_CALLS, tmp_path) == "True\n"


@pytest.mark.parametrize("character", ["x", "é", "漢", "😀", "\ud83d", "\0"])
def test_as_long_a_text_as_may_be_said_arrives_whatever_its_characters(
    tmp_path: Path, character: str
) -> None:
    turn = TurnPaths(tmp_path)
    text = character * 20_000
    send(turn, Say(text))
    assert taken(turn) == [Say(text)]


def test_what_no_writer_would_take_is_refused_at_once(tmp_path: Path) -> None:
    turn = TurnPaths(tmp_path)
    with pytest.raises(UserError, match=f"at most {MAX_BYTES} bytes, and this one has 10000[0-9]+"):
        send(turn, Decide(True, "x" * MAX_BYTES))
    assert list(tmp_path.iterdir()) == []
