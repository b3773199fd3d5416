"""Random plays of one agent: at each boundary, the saved files match the actual ones."""

import random
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from nb_agents.testing import Answer, Call, ScriptedModel, Turn
from tests.kit.runs import Run, TurnPrefix
from tests.kit.sessions import TurnPaths
from tests.kit.snapshots import SnapshotStore
from tests.kit.views import checkpoints_of
from tests.samples import sample, some_or_all
from tests.snapshots.test_store import State, state
from tests.team_kit import events, finish

PLAYS = some_or_all(2, 50)
STEPS = 8
NAMES = ("a", "b", "in/a", "in/b", "link/a", r"in\c")
COMMANDS = (
    "mv {0} {1}",
    "mv in out; mv out in; rm -r in/b",
    "mkdir -p in; echo {0} > in/b",
    "rm -rf {0} in",
    "cp -p {0} {1}",
    "mkdir -p in; ln -sfn in link",
    "rm -f link; mv in link",
    "chmod 600 {0}",
)


class Played:
    """One agent that changes files below a directory, by random tools and commands.

    Args:
        root: The directory of all files.
        seed: The seed of the random changes.
        place: The directory. By default, its workspace.
        meanwhile: Whether files of the workspace change without a call, too.
    """

    def __init__(
        self, root: Path, seed: int, place: Path | None = None, *, meanwhile: bool = False
    ) -> None:
        self._rng, self._meanwhile = random.Random(seed), meanwhile
        self._prefix = f"{place}/" if place else ""
        self._seen: list[State] = []
        self._calls: list[Call] = []
        self._place = place or root / "s" / "task_1" / "workspaces" / "a"
        model = ScriptedModel(self._say)
        keys = {"type": "python", "instance": model, "enable_mcp_command_line": True}
        given = [{"path": str(place), "permission": "write"}] if place else []
        self.team = TeamSpec.model_validate(
            {
                "agents": [{"id": "a", "backend": keys}],
                "orchestrator": {"context_paths": given},
            }
        )
        self.options = RunOptions(session_root=root)
        self.run = finish(nb_agents.start("the task", self.team, "s", options=self.options))
        assert self.run.status == "completed", self.run.view.notices
        self.states = self._seen

    def _say(self, messages: Any) -> Turn:
        done = sum(message.kind == "response" for message in messages)
        if self._meanwhile:
            self._change()
        self._seen.append(state(self._place))
        if done == STEPS:
            return Answer("done")
        if done == len(self._calls):
            self._calls.append(self._next())
        return Turn(calls=(self._calls[done],))

    def _next(self) -> Call:
        path, other = (self._prefix + name for name in self._rng.sample(NAMES, 2))
        content = str(self._rng.randrange(100))
        cd = f"cd {self._place} && " if self._prefix else ""
        command = self._rng.choice(COMMANDS).format(path, other)
        return self._rng.choice(
            (
                Call("write_file", {"path": path, "content": content}),
                Call("delete_file", {"path": path}),
                Call("run_command", {"command": cd + command}),
                Call("run_command", {"command": cd + command}),
            )
        )

    def _change(self) -> None:
        """Change the workspace as a thread of an interpreter may, whenever it wants."""
        path = self._place / self._rng.choice(NAMES)
        with suppress(OSError):
            if path.is_file() and self._rng.random() < 0.5:
                path.unlink()
            else:
                path.write_text(str(self._rng.random()))

    def back(self, to: str | int) -> State:
        """Go back, and return what the place held then."""
        self._seen = []
        finish(self.run.rewind(to))
        return self._seen[0]


def laid(run: Run, tree: str, to: Path) -> State:
    to.mkdir()
    SnapshotStore(run.path.parent).checkout(tree, to / "it")
    try:
        return state(to / "it")
    finally:
        shutil.rmtree(to)


def held_at_points(run: Run, to: Path) -> Iterator[tuple[int, State]]:
    """Each point of a turn, and what a rewind to it would lay in the agent's workspace."""
    for point in checkpoints_of(events(run)):
        tree = TurnPrefix(TurnPaths(run.path), str(point.seq)).prefix.trees.get("a")
        yield point.seq, laid(run, tree, to) if tree else state(run.path / "workspaces" / "a")


@pytest.mark.parametrize("seed", range(PLAYS))
def test_each_boundary_of_a_random_run_has_its_files(tmp_path: Path, seed: int) -> None:
    played = Played(tmp_path, seed)
    ends = [e.seq for e in events(played.run, ev.ToolFinished)]
    assert len(ends) == STEPS == len(played.states) - 1
    for seq, held in held_at_points(played.run, tmp_path / "laid"):
        done = sum(end <= seq for end in ends)
        assert held == played.states[done], (seq, done, played._calls[:done])


@pytest.mark.parametrize("seed", range(PLAYS))
def test_each_writer_starts_from_the_saved_files(tmp_path: Path, seed: int) -> None:
    played = Played(tmp_path, seed, meanwhile=True)
    kept = events(played.run, ev.FilesSaved)
    assert len(kept) == STEPS
    for number, event in enumerate(kept):
        found = laid(played.run, event.tree, tmp_path / "laid")
        assert found == played.states[number], (number, played._calls[: number + 1])


def test_each_call_of_a_play_finds_its_original_user_files(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    played = Played(tmp_path / "sessions", 1, site)
    states, end = [*played.states], state(site)
    for number in sample(range(STEPS, 0, -1), 4):
        assert (
            played.back(f"before a's {number}th model call" if number > 1 else 1)
            == (states[number - 1])
        ), (number, played._calls[:number])
        assert state(site) == end
