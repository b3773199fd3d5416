"""A recipe that uses every feature, and the checks for its result."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nb_agents import events as ev
from nb_agents.options import RunOptions
from nb_agents.testing import scripted_team
from tests.kit.runs import Preview, resume
from tests.model_server import wait_until
from tests.recipes.live import Echo, begin, write

__all__ = ["assert_nothing_ran_twice", "assert_truthful", "play_rich", "write_rich"]

MAIN = """
context: {names: [a, b]}
stages:
- name: gather
  steps:
  - {id: draft, agent: worker, prompt: "Draft {{names}}", output: draft}
  - {id: each, type: bash, foreach: "{{names}}", collect: each,
     command: "printf %s {{item}} | tee each-{{item}}"}
  approval: {required: true, prompt: "Use {{draft}}?"}
- name: work
  steps:
  - {id: review, agent: worker, foreach: "{{names}}", parallel: 2, collect: reviews,
     prompt: "Review {{item}} of {{draft}}: {{_approval_message}}"}
  - {id: flaky, type: bash, output: flaky, retry: {max_attempts: 2, initial_delay: 0.01},
     command: "if [ -e mark ]; then echo fine; else touch mark; exit 1; fi"}
  - {id: nested, type: recipe, recipe: middle.yaml, output: nested,
     context: {text: "{{draft}}"}}
  - {id: end, agent: worker, output: end, prompt: "End {{reviews}} {{nested}} {{flaky}} {{each}}"}
"""
MIDDLE = """
steps:
- id: loop
  while_condition: "{{_loop_index}} < 2"
  collect: thoughts
  steps:
  - {id: think, agent: worker, prompt: "Think {{text}} {{_loop_index}}", output: thought}
- {id: deeper, type: recipe, recipe: deep.yaml, foreach: "{{thoughts}}", parallel: true,
   collect: deep, context: {text: "{{item}}"}}
"""
DEEP = """
steps:
- {id: sum, agent: worker, prompt: "Sum {{text}}", output: sum}
"""


def write_rich(root: Path) -> Path:
    """Write the recipe and the recipes that it calls."""
    write(root, DEEP, "deep")
    write(root, MIDDLE, "middle")
    return write(root, MAIN)


def play_rich(recipe: str) -> None:
    """Start or resume the recipe in a process that may be killed."""
    path = Path(recipe)
    if (path.parent / "sessions" / "s").exists():
        options = RunOptions(session_root=path.parent / "sessions")
        run = resume("s", scripted_team(None, worker=Echo()), options=options)
    else:
        run = begin(path)
    wait_until(lambda: run.view.gates or run.is_over)
    if not run.is_over:
        run.approve("fine", "me")
    run.wait(200, raise_on_stop=False)


def assert_nothing_ran_twice(events: Sequence[Any]) -> None:
    """Check that no finished work began again, over any number of turns."""
    finished: set[str] = set()
    for event in events:
        if isinstance(event, ev.StepStarted):
            assert event.step not in finished, event
        elif isinstance(event, ev.StepFinished):
            assert event.step not in finished, event
            finished.add(event.step)
    calls = [(e.agent, str(e.response["parts"])) for e in events if isinstance(e, ev.ModelFinished)]
    assert max(Counter(calls).values()) == 1, Counter(calls)
    tools = [e for e in events if isinstance(e, ev.ToolFinished) and e.outcome == "ok"]
    assert [t.agent for t in tools] == ["gather/draft"]


def assert_truthful(told: Preview, old: Sequence[Any], new: Sequence[Any]) -> None:
    """Check that the notices before a resume describe what the resume did."""
    again = told.recipe
    assert again is not None
    ended = {e.step for e in old if isinstance(e, ev.StepFinished) and e.output is not None}
    assert again.finished == len(ended)
    assert told.calls == sum(isinstance(e, ev.ModelFinished) for e in old)
    assert set(told.asked_again) == _asked_first(new) & _left_open(old)
    assert set(again.cut) | set(again.tried) == _begun(old, "bash") & _begun(new, "bash")
    assert set(again.failed) == _failed(old) & _begun(new, "agent")
    assert set(again.gates) == _gates(old) & _gates(new)
    loaded = {e.step for e in new if isinstance(e, ev.RecipeLoaded)}
    assert set(again.next) <= _begun(new, "bash") | _begun(new, "agent") | _gates(new) | loaded


def _asked_first(events: Sequence[Any]) -> set[str]:
    """Return the agents that first sent a request, in a round that had already begun."""
    first: dict[str, Any] = {}
    for event in events:
        if isinstance(event, ev.ModelStarted | ev.ToolStarted | ev.RoundStarted):
            first.setdefault(event.agent, event)
    return {agent for agent, event in first.items() if isinstance(event, ev.ModelStarted)}


def _left_open(events: Sequence[Any]) -> set[str]:
    """Return the agents with an unanswered last request in their current round."""
    kinds = (ev.RoundStarted, ev.ModelStarted, ev.ModelFinished)
    last = {e.agent: e for e in events if isinstance(e, kinds)}
    return {agent for agent, event in last.items() if isinstance(event, ev.ModelStarted)}


def _begun(events: Sequence[Any], unit: str) -> set[str]:
    return {e.step for e in events if isinstance(e, ev.StepStarted) and e.unit == unit}


def _failed(events: Sequence[Any]) -> set[str]:
    """Return the agent steps that failed and have not begun again."""
    last = {e.step: e for e in events if isinstance(e, ev.StepStarted | ev.StepFailed)}
    return {step for step, event in last.items() if isinstance(event, ev.StepFailed)}


def _gates(events: Sequence[Any]) -> set[str]:
    return {e.step for e in events if isinstance(e, ev.ApprovalAsked)}
