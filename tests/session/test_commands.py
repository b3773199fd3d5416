"""Commands on disk are taken exactly once, even by a writer without free descriptors."""

from pathlib import Path

import pytest

from nb_agents.errors import UserError
from nb_agents.events import Command, Decide, Say
from nb_agents.session.commands import MAX_BYTES, send, take_commands
from tests.kit.runs import CancellationStatus, StopRequest
from tests.kit.sessions import TurnPaths
from tests.processes import output

TAKE = """
import os, resource, sys
from pathlib import Path
from nb_agents.session.commands import send, take_commands
from nb_agents.session.layout import TurnPaths
from nb_agents.tools.offer import CallRequest, CallInbox

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
asked = CallRequest("tool", {{}}, "ada", False, place, (), place, place)
names = [offer.ask(asked) for _ in range(2)]
take = lambda: [name for name, _ in offer.take_calls()]
taken = [name for count in range(5) for name in with_files(count, take)]
print([*taken, *take()] == names)
"""

STOP = StopRequest(CancellationStatus.REQUESTED, "cli", "enough")


def taken(turn: TurnPaths) -> list[Command]:
    return [command for _, command in take_commands(turn)]


def test_commands_are_taken_once_and_in_order(tmp_path: Path) -> None:
    turn = TurnPaths(tmp_path)
    for command in (Say("one"), STOP, Say("two")):
        send(turn, command)
    assert taken(turn) == [Say("one"), STOP, Say("two")]
    assert taken(turn) == []


def test_writer_without_free_descriptors_takes_commands_later(tmp_path: Path) -> None:
    turn = TurnPaths(tmp_path)
    names = [send(turn, command) for command in (STOP, Say("more"))]
    assert output(TAKE_COMMANDS, tmp_path).split() == names


def test_tool_offer_without_free_descriptors_takes_calls_later(tmp_path: Path) -> None:
    assert output(TAKE_CALLS, tmp_path) == "True\n"


@pytest.mark.parametrize("character", ["x", "é", "漢", "😀", "\ud83d", "\0"])
def test_longest_message_arrives_with_any_characters(tmp_path: Path, character: str) -> None:
    turn = TurnPaths(tmp_path)
    text = character * 20_000
    send(turn, Say(text))
    assert taken(turn) == [Say(text)]


def test_oversized_command_is_refused_when_sent(tmp_path: Path) -> None:
    turn = TurnPaths(tmp_path)
    with pytest.raises(UserError, match=f"has 10000[0-9]+ bytes. .* at most {MAX_BYTES}"):
        send(turn, Decide(True, "x" * MAX_BYTES))
    assert list(tmp_path.iterdir()) == []
