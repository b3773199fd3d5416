"""Decisions by calls, from an agent that reaches them by MCP."""

from collections.abc import Sequence
from typing import Any

import pytest

from nb_agents.agents import voting
from nb_agents.agents.ballot import DECIDED, TAKEN, Ballot
from nb_agents.agents.decisions import (
    Answered,
    Decision,
    Note,
    Offer,
    Refused,
    Stale,
    Submitted,
    Verdict,
    Voted,
)
from nb_agents.agents.message_json import Opening
from nb_agents.agents.runner import Round
from nb_agents.agents.stop_scope import StopScope
from nb_agents.cancel import CancelToken
from nb_agents.errors import ModelCallError
from nb_agents.tools.base import Toolbox
from nb_agents.tools.tool_server import ToolServer

pytestmark = pytest.mark.anyio

VERDICTS = {
    "agent1": Verdict("ada", ""),
    "agent2": Verdict("ben", voting.STALE),
    "agent3": Verdict("", "Vote for agent1 or agent2."),
}


class Seat:
    """A place in a team of which two have answered."""

    def __init__(self, offer: Offer, refusal: str = "") -> None:
        self._offer, self._refusal = offer, refusal

    def offer(self) -> Offer:
        return self._offer

    def judge_answer(self, answer: str) -> str:
        return self._refusal

    def judge_vote(self, label: str) -> Verdict:
        return VERDICTS[label]

    def note(self, *, was_refused: bool) -> Note:
        return Note()

    def hear(self) -> str:
        return ""


def round_of(offer: Offer, refusal: str = "") -> Round:
    scope = StopScope(CancelToken())
    return Round("a", 1, Opening("", ("Why?",)), Toolbox(), Seat(offer, refusal), print, scope)


MEMBER, JUDGE = Offer(voters=("agent1", "agent2")), Offer(judges=True)
VOTE = {"agent_id": "agent1", "reason": "short"}


def names(ballot: Ballot) -> Sequence[str]:
    return [tool.name for tool in ballot.tools()]


async def test_an_agent_is_offered_what_it_may_decide() -> None:
    assert names(Ballot(round_of(MEMBER))) == ["new_answer", "vote"]
    assert names(Ballot(round_of(Offer()))) == ["new_answer"]
    assert names(Ballot(round_of(JUDGE))) == ["submit", "restart_orchestration"]


@pytest.mark.parametrize(
    ("offer", "name", "args", "decision"),
    [
        (MEMBER, "new_answer", {"content": " 42 "}, Answered("42")),
        (MEMBER, "vote", VOTE, Voted("ada", "short")),
        (MEMBER, "vote", {"agent_id": "agent2", "reason": ""}, Stale("ben")),
        (JUDGE, "submit", {"confirmed": True}, Submitted()),
        (
            JUDGE,
            "restart_orchestration",
            {"reason": "wrong", "instructions": "again"},
            Refused("wrong", "again"),
        ),
    ],
)
async def test_a_call_over_mcp_decides(
    offer: Offer, name: str, args: dict[str, Any], decision: Decision
) -> None:
    from nb_agents.tools.mcp_sdk import connect, http_transport

    round = round_of(offer)
    ballot = Ballot(round)
    async with ToolServer() as server:
        address = await server.offer(ballot.tools)
        async with connect(http_transport(address.url, address.headers, 5)) as client:
            result = await client.call_tool(name, args)
    assert (round.decision, ballot.ended.is_set()) == (decision, True)
    assert result["content"][0]["text"] == TAKEN


@pytest.mark.parametrize(
    ("name", "args", "told"),
    [
        ("new_answer", {"content": " "}, "empty"),
        ("new_answer", {"content": "again"}, "one too many"),
        ("vote", {"agent_id": "agent3"}, "Vote for agent1 or agent2."),
    ],
)
async def test_what_does_not_count_is_told_and_decides_nothing(
    name: str, args: dict[str, Any], told: str
) -> None:
    round = round_of(MEMBER, refusal="one too many")
    ballot = Ballot(round)
    tool = next(tool for tool in ballot.tools() if tool.name == name)
    result = await tool.call(args)
    assert result.is_error and told in result
    assert round.decision is None and not ballot.ended.is_set()


async def test_the_first_decision_stands() -> None:
    round = round_of(MEMBER)
    ballot = Ballot(round)
    answer, vote = ballot.tools()
    assert await answer.call({"content": "42"}) == TAKEN
    late = await vote.call(VOTE)
    assert late.is_error and DECIDED in late
    assert round.decision == Answered("42")


async def test_an_agent_whose_decisions_are_refused_three_times_is_out() -> None:
    ballot = Ballot(round_of(MEMBER, refusal="one too many"))
    answer, vote = ballot.tools()
    for tool, args in ((answer, {"content": "1"}), (vote, {"agent_id": "agent3"})):
        await tool.call(args)
        ballot.check("m")
        assert not ballot.ended.is_set()
    await answer.call({"content": "2"})
    assert ballot.ended.is_set()
    with pytest.raises(ModelCallError, match="no answer that counts in 3 tries.*one too many"):
        ballot.check("m")
