"""The tools of a run: the output of running tools."""

from pathlib import Path

import pytest

from nb_agents.tools import run_tools
from nb_agents.tools.run_tools import RunTools, RunToolSettings
from tests.kit.tools import ToolContext, ToolKeys

pytestmark = pytest.mark.anyio


class Meanwhile(int):
    """A number that lets the function's thread write more output when it is used."""

    context: ToolContext

    def __ge__(self, other: int) -> bool:
        self.context.tell("late")
        return int(self) >= other


async def never(*_: object) -> None:
    pytest.fail("nobody is asked")


async def test_output_written_during_a_read_is_returned_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = Meanwhile(100)
    monkeypatch.setattr(run_tools, "MAX_UPDATE_CHARS", number)

    def speak(context: ToolContext) -> None:
        number.context = context
        context.tell("early")

    places = RunToolSettings(tmp_path, tmp_path, (), ())
    async with RunTools(places, [speak], pytest.fail, never, lambda: None) as tools:
        [tool] = (await tools.open("a", tmp_path, ToolKeys())).others
        await tool.call({})
        assert tools.take_told() == {"a": "early"}
        assert tools.take_told() == {"a": "late"}
