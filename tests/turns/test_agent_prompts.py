"""The prompt that an agent had when it made a call."""

from __future__ import annotations

from nb_agents import events as ev
from nb_agents.launch.agent_prompts import MAX_PROMPT, Prompts


def test_prompt_is_the_last_one_that_an_agent_got_before_a_call() -> None:
    prompts = Prompts(
        [
            ev.TurnStarted(
                session="s", turn=1, task="Write  a\npage", agents=(), timeout_s=9, at=1, seq=1
            ),
            ev.UserMessage(text="Shorter", to="ada", at=3, seq=2),
            ev.AgentCalled(
                agent="ada/critic#1",
                caller="ada",
                name="critic",
                model="m",
                workspace="w",
                input="Read it",
                at=4,
                seq=3,
            ),
            ev.StepStarted(step="draft[0]", unit="agent", asks="x" * 900, at=5, seq=4),
        ]
    )
    assert [prompts.of("ada", at) for at in (0, 2, 9)] == ["", "Write a page", "Shorter"]
    assert prompts.of("ben", 9) == "Write a page"
    assert prompts.of("ada/critic#1", 9) == "Read it"
    assert prompts.of("draft[0]", 9) == "x" * MAX_PROMPT
