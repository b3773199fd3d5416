"""The tools of a run: what is shown of those at work."""

from pathlib import Path

import pytest

from nb_agents.config.tools import ToolKeys
from nb_agents.tools import run_tools
from nb_agents.tools.base import ToolContext
from nb_agents.tools.run_tools import RunTools, ToolPlaces

pytestmark = pytest.mark.anyio


class Meanwhile(int):
    """A number; while it is used, the function's thread tells more."""

    context: ToolContext

    def __ge__(self, other: int) -> bool:
        self.context.tell("late")
        return int(self) >= other


async def never(*_: object) -> None:
    pytest.fail("nobody is asked")


async def test_what_a_thread_tells_while_it_is_taken_comes_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = Meanwhile(100)
    monkeypatch.setattr(run_tools, "MAX_TOLD", number)

    def speak(context: ToolContext) -> None:
        number.context = context
        context.tell("early")

    places = ToolPlaces(tmp_path, tmp_path, (), ())
    async with RunTools(places, [speak], pytest.fail, never, lambda: None) as tools:
        [tool] = (await tools.open("a", tmp_path, ToolKeys())).others
        await tool.call({})
        assert tools.take_told() == {"a": "early"}
        assert tools.take_told() == {"a": "late"}
