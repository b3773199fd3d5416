"""Tests of decisions by tool calls over MCP."""

from collections.abc import Sequence
from typing import Any

import pytest

from nb_agents.agents.ballot import ALREADY_DECIDED, RECORDED, Ballot
from nb_agents.errors import ModelCallError
from tests.kit.agents import (
    Answered,
    Decision,
    Note,
    Offer,
    Opening,
    Rejected,
    Round,
    Stale,
    StopScope,
    Submitted,
    Verdict,
    Voted,
    voting,
)
from tests.kit.programs import ToolServer
from tests.kit.runs import CancelToken
from tests.kit.tools import Toolbox

pytestmark = pytest.mark.anyio

VERDICTS = {
    "agent1": Verdict("ada", ""),
    "agent2": Verdict("ben", voting.STALE),
    "agent3": Verdict("", "Vote for agent1 or agent2."),
}


class Seat:
    """The round context of an agent in a team with two answers."""

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

    def take_messages(self) -> str:
        return ""


def round_of(offer: Offer, refusal: str = "") -> Round:
    scope = StopScope(CancelToken())
    return Round("a", 1, Opening("", ("Why?",)), Toolbox(), Seat(offer, refusal), print, scope)


MEMBER, JUDGE = Offer(voters=("agent1", "agent2")), Offer(judges=True)
VOTE = {"agent_id": "agent1", "reason": "short"}


def names(ballot: Ballot) -> Sequence[str]:
    return [tool.name for tool in ballot.tools()]


async def test_agent_is_offered_only_permitted_decisions() -> None:
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
            Rejected("wrong", "again"),
        ),
    ],
)
async def test_decision_can_be_a_call_over_mcp(
    offer: Offer, name: str, args: dict[str, Any], decision: Decision
) -> None:
    from tests.kit.mcp import connect, http_transport

    round = round_of(offer)
    ballot = Ballot(round)
    async with ToolServer() as server:
        address = await server.offer(ballot.tools)
        async with connect(http_transport(address.url, address.headers, 5)) as client:
            result = await client.call_tool(name, args)
    assert (round.decision, ballot.ended.is_set()) == (decision, True)
    assert result["content"][0]["text"] == RECORDED


@pytest.mark.parametrize(
    ("name", "args", "told"),
    [
        ("new_answer", {"content": " "}, "empty"),
        ("new_answer", {"content": "again"}, "one too many"),
        ("vote", {"agent_id": "agent3"}, "Vote for agent1 or agent2."),
    ],
)
async def test_invalid_decision_is_rejected_with_a_reason(
    name: str, args: dict[str, Any], told: str
) -> None:
    round = round_of(MEMBER, refusal="one too many")
    ballot = Ballot(round)
    tool = next(tool for tool in ballot.tools() if tool.name == name)
    result = await tool.call(args)
    assert result.is_error and told in result
    assert round.decision is None and not ballot.ended.is_set()


async def test_first_decision_counts() -> None:
    round = round_of(MEMBER)
    ballot = Ballot(round)
    answer, vote = ballot.tools()
    assert await answer.call({"content": "42"}) == RECORDED
    late = await vote.call(VOTE)
    assert late.is_error and ALREADY_DECIDED in late
    assert round.decision == Answered("42")


async def test_agent_fails_after_three_rejected_decisions() -> None:
    ballot = Ballot(round_of(MEMBER, refusal="one too many"))
    answer, vote = ballot.tools()
    for tool, args in ((answer, {"content": "1"}), (vote, {"agent_id": "agent3"})):
        await tool.call(args)
        ballot.check("m")
        assert not ballot.ended.is_set()
    await answer.call({"content": "2"})
    assert ballot.ended.is_set()
    with pytest.raises(ModelCallError, match="no valid answer in 3 attempts.*one too many"):
        ballot.check("m")
