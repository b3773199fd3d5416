"""Random recipes with all kinds of steps: each rewind has the same result without old calls."""

import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import nb_agents
from nb_agents import RunOptions
from nb_agents.testing import Call, ScriptedModel, Turn
from tests.samples import some_or_all
from tests.team_kit import finish, team_by_rules
from tests.turns.test_rewind_recipe import approve, go_on_from_each_point

TURNS = some_or_all(1, 20)
"""Number of random turns."""

Steps = list[dict[str, Any]]


def _command(name: str, command: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "type": "bash", "command": command, "output": name, **more}


def _asked(name: str, prompt: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "agent": "a", "prompt": prompt, "output": name, **more}


KINDS: dict[str, Callable[[str], dict[str, Any]]] = {
    "command": lambda n: _command(n, f"echo {n} >> log; mkdir {n}.d; ln -s log {n}.link; wc log"),
    "rename": lambda n: _command(n, f"touch log; mv log old; tac old > log; rm old; echo {n}"),
    "fails": lambda n: _command(
        n, f"echo {n} >> log; exit 3", on_error="continue", output_exit_code=f"{n}_code"
    ),
    "again": lambda n: _command(
        n,
        f"echo {n} >> log; test -e {n}.was || {{ touch {n}.was; exit 1; }}",
        retry={"max_attempts": 2, "initial_delay": 0},
    ),
    "skipped": lambda n: _command(n, f"echo {n} >> log", condition="{{no}} == 'yes'"),
    "each": lambda n: _command(n, "echo {{k}} >> log", foreach="{{names}}", **{"as": "k"}),
    "at once": lambda n: _command(
        n, f"echo {{{{k}}}} > {n}.{{{{k}}}}", foreach="{{names}}", parallel=True, **{"as": "k"}
    ),
    "while": lambda n: {
        "id": n,
        "while_condition": f"{{{{{n}_more}}}} != 'no'",
        "max_while_iterations": 3,
        "steps": [
            _command(f"{n}_in", f"echo {n} >> log; grep -c {n} log"),
            _command(f"{n}_more", f"test $(grep -c {n} log) -lt 2 && echo yes || echo no"),
        ],
    },
    "agent": lambda n: _asked(n, f"Think of {n}."),
    "writer": lambda n: _asked(n, f"Write {n}."),
    "agents": lambda n: _asked(
        n, f"Think of {n} and {{{{k}}}}.", foreach="{{names}}", parallel=True, **{"as": "k"}
    ),
    "recipe": lambda n: {"id": n, "type": "recipe", "recipe": "inner.yaml", "output": n},
}
INNER = {
    "name": "inner",
    "description": "d",
    "version": "1.0.0",
    "steps": [_command("deep", "echo deep >> log; cp log log.bak"), _asked("idea", "Think of it.")],
}


def _model(heard: list[str]) -> ScriptedModel:
    """Write a file and change it where the prompt says so; else give a thought."""

    def reply(messages: Any) -> Turn:
        said = str(messages)
        heard.append(said)
        done = sum(message.kind == "response" for message in messages)
        if (name := re.search(r"Write (s\d+)", said)) and done < 2:
            path = f"{name[1]}.md"
            made = Call("write_file", {"path": path, "content": "one two\n"})
            changed = Call("edit_file", {"path": path, "old": "two", "new": "2"})
            return Turn(calls=((made, changed)[done],))
        return Turn("A thought.")

    return ScriptedModel(reply)


def _recipe(kinds: list[str], gate: int) -> dict[str, Any]:
    steps = [KINDS[kind](f"s{number}") for number, kind in enumerate(kinds)]
    at = 1 + gate % (len(steps) - 1)
    first = {"name": "one", "steps": steps[:at], "approval": {"required": True, "prompt": "On?"}}
    context = {"names": ["x", "y"], "no": "no"}
    context |= {f"{step['id']}_more": "yes" for step in steps if "while_condition" in step}
    stages = [first, {"name": "two", "steps": steps[at:]}]
    head = {"name": "any", "description": "d", "version": "1.0.0", "context": context}
    return {**head, "stages": stages}


@settings(max_examples=TURNS, deadline=None, database=None, suppress_health_check=[*HealthCheck])
@example(["at once", "writer", "while", "recipe"], 1)
@given(st.lists(st.sampled_from([*KINDS]), min_size=2, max_size=5), st.integers(0, 9))
def test_rewind_to_any_checkpoint_of_any_recipe_gives_the_same_outputs_and_files(
    kinds: list[str], gate: int
) -> None:
    heard: list[str] = []
    with TemporaryDirectory() as root:
        place = Path(root)
        (place / "inner.yaml").write_text(yaml.safe_dump(INNER))
        (place / "recipe.yaml").write_text(yaml.safe_dump(_recipe(kinds, gate)))
        team, options = team_by_rules({"a": _model(heard)}), RunOptions(session_root=place)
        run = nb_agents.start("", team, "s", recipe=place / "recipe.yaml", options=options)
        approve(run)
        finish(run)
        assert run.status == "completed", run.view.notices
        go_on_from_each_point(run, heard)
