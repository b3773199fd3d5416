"""Random turns of several agents: each rewind has the same result without old calls."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.testing import Answer, Call, ScriptedModel, Turn, Vote
from tests.kit.sessions import read_journal
from tests.kit.views import checkpoints_of
from tests.samples import sample, some_or_all
from tests.snapshots.test_store import state
from tests.team_kit import events, finish, team_by_rules

TURNS = some_or_all(1, 20)
"""Number of random turns."""

Script = list[tuple[str, dict[str, str]]]

_paths = st.sampled_from(["one.md", "two.md", "in/three.md"])
_calls = st.one_of(
    st.tuples(
        st.just("write_file"),
        st.fixed_dictionaries({"path": _paths, "content": st.sampled_from(["x", "x y\n", ""])}),
    ),
    st.tuples(
        st.just("edit_file"),
        st.fixed_dictionaries({"path": _paths, "old": st.just("x"), "new": st.just("z")}),
    ),
)
_teams = st.lists(st.lists(_calls, max_size=3), min_size=2, max_size=3)


def _model(name: str, script: Script, asked: list[str]) -> ScriptedModel:
    """Call as the script says, answer, vote for the first; the winner writes and presents."""

    def reply(messages: Any) -> Turn:
        said = str(messages)
        asked.append(name)
        done = sum(message.kind == "response" for message in messages)
        if "<FINAL PRESENTATION>" in said:
            last = Call("write_file", {"path": "end.md", "content": "the end"})
            return Turn(f"The end by {name}.") if done else Turn(calls=(last,))
        if f"answer of {name}" in said:
            return Vote("agent1")
        if done < len(script):
            tool, arguments = script[done]
            return Turn(calls=(Call(tool, arguments),))
        return Answer(f"answer of {name}")

    return ScriptedModel(reply)


@settings(max_examples=TURNS, deadline=None, database=None, suppress_health_check=[*HealthCheck])
@given(_teams)
def test_rewind_to_any_checkpoint_of_any_team_gives_the_same_answers_and_files(
    scripts: list[Script],
) -> None:
    asked: list[str] = []
    models = {n: _model(n, s, asked) for n, s in zip("abc", scripts, strict=False)}
    with TemporaryDirectory() as root:
        options = RunOptions(session_root=Path(root))
        run = nb_agents.start("the task", team_by_rules(models), session="s", options=options)
        finish(run)
        assert run.status == "completed", run.view.notices
        want, before = state(run.path / "workspaces"), state(run.path)
        answers = {a.id: a.answers[-1] for a in run.view.agents.values()}
        finished = events(run, ev.ModelFinished)
        points = checkpoints_of(read_journal(run.path / "events.jsonl").events)
        for point in sample(points, 6):
            asked.clear()
            again = finish(run.rewind(point.seq))
            assert (again.status, again.result) == ("completed", run.result), point
            assert {a.id: a.answers[-1] for a in again.view.agents.values()} == answers
            assert state(again.path / "workspaces") == want, point
            assert state(run.path) == before, point
            new = [(e.agent, e.call) for e in events(again, ev.ModelStarted)]
            kept = {(e.agent, e.call) for e in finished if e.seq <= point.seq}
            assert len(asked) == len(new), point
            assert kept.isdisjoint(new), point
