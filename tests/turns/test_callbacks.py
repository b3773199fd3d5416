"""Callbacks in options may have fewer parameters than they are called with."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic_ai.exceptions import ModelHTTPError

import nb_agents
from nb_agents import RunOptions, UserError, options
from nb_agents.options import CancelPolicy, Retry, Timeout
from nb_agents.testing import Answer, Gate, ScriptedModel, Turn, scripted_team
from tests.model_server import wait_until
from tests.team_kit import WAIT_S


class Hook(NamedTuple):
    """A function among the options.

    Attributes:
        count: Number of its arguments.
        made: The options that contain it.
        play: Runs a team until the function is called.
    """

    count: int
    made: Callable[[Any], RunOptions]
    play: str


HOOKS: Mapping[str, Hook] = {
    "CancelPolicy.before_cancel": Hook(
        1, lambda f: RunOptions(cancel=CancelPolicy(before_cancel=f)), "ask"
    ),
    "CancelPolicy.after_cancel": Hook(
        1, lambda f: RunOptions(cancel=CancelPolicy(after_cancel=f)), "stop"
    ),
    "CancelPolicy.on_timeout": Hook(
        1, lambda f: RunOptions(cancel=CancelPolicy(on_timeout=f), timeout=0.05), "wait"
    ),
    "Timeout.callback": Hook(1, lambda f: RunOptions(timeout=Timeout(0.05, callback=f)), "wait"),
    "Retry.on_retry": Hook(2, lambda f: RunOptions(retry=Retry(delay=0.0, on_retry=f)), "retry"),
    "Retry.should_retry": Hook(
        1, lambda f: RunOptions(retry=Retry(delay=0.0, should_retry=f)), "fail"
    ),
    "RunOptions.on_complete": Hook(1, lambda f: RunOptions(on_complete=f), "answer"),
    "RunOptions.on_failed": Hook(1, lambda f: RunOptions(on_failed=f), "fail"),
    "RunOptions.on_status_change": Hook(1, lambda f: RunOptions(on_status_change=f), "answer"),
}


def accepting(number: int, calls: list[tuple[Any, ...]], is_async: bool) -> Callable[..., Any]:
    """Return a function of so many parameters, without default, that notes its calls."""
    names = ", ".join("abc"[:number])
    kind = "async def" if is_async else "def"
    space: dict[str, Any] = {"calls": calls}
    exec(f"{kind} hook({names}):\n    calls.append(({names}{',' if names else ''}))", space)
    hook: Callable[..., Any] = space["hook"]
    return hook


def play(what: str, made: RunOptions, calls: list[tuple[Any, ...]]) -> None:
    gate = Gate()
    broken = Turn(error=ModelHTTPError(503, "m"))
    turns = {
        "ask": [Turn(text="x ", gate=gate), Answer("So.")],
        "stop": [Turn(hang=True)],
        "wait": [Turn(hang=True)],
        "retry": [broken, Answer("So.")],
        "fail": [Turn(error=ValueError("broken"))] * 9,
        "answer": [Answer("So.")],
    }[what]
    run = nb_agents.start("t", scripted_team(a=ScriptedModel(*turns)), options=made)
    if what == "ask":
        gate.wait_reached()
        run.stop()
        wait_until(lambda: calls, WAIT_S)
        gate.open()
    elif what == "stop":
        run.stop(now=True)
    run.wait(WAIT_S, raise_on_stop=False)


def test_every_callback_option_is_in_the_table() -> None:
    kinds = [getattr(options, name) for name in options.__all__]
    found = {
        f"{kind.__name__}.{field.name}"
        for kind in kinds
        for field in dataclasses.fields(kind)
        if "Callable" in str(field.type)
    }
    assert found == set(HOOKS)


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
@pytest.mark.parametrize("name", HOOKS)
def test_callback_gets_as_many_arguments_as_it_accepts(
    name: str, is_async: bool, tmp_path: Path
) -> None:
    hook = HOOKS[name]
    for number in range(hook.count + 1):
        calls: list[tuple[Any, ...]] = []
        made = hook.made(accepting(number, calls, is_async))
        play(hook.play, dataclasses.replace(made, session_root=tmp_path / str(number)), calls)
        assert {len(each) for each in calls} == {number}


@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.parametrize("wrong", ["more", "keyword", "no function"])
def test_callback_with_unsupported_parameters_is_rejected(name: str, wrong: str) -> None:
    hook = HOOKS[name]
    given: Any = {
        "more": accepting(hook.count + 1, [], is_async=False),
        "keyword": lambda *, must: must,
        "no function": "stop",
    }[wrong]
    with pytest.raises(UserError, match=f"^{name.partition('.')[2]} ") as told:
        hook.made(given)
    assert "Use a function with " in str(told.value)


def test_callback_without_parameters_can_veto(tmp_path: Path) -> None:
    gate, after = Gate(), list[bool]()
    policy = CancelPolicy(
        before_cancel=lambda: False,  # as in the document of OS Protocol
        after_cancel=lambda: after.append(True),
    )
    model = ScriptedModel(Turn(text="x ", gate=gate), Answer("So."))
    made = RunOptions(session_root=tmp_path, cancel=policy)
    run = nb_agents.start("t", scripted_team(a=model), options=made)
    gate.wait_reached()
    assert run.stop().status == "vetoed"
    assert run.stop(now=True).changed
    gate.open()
    run.wait(WAIT_S, raise_on_stop=False)
    assert after == [True]
    assert not [each for each in run.view.notices if "hook" in each]


def test_callback_without_a_signature_gets_all_arguments() -> None:
    with pytest.raises(ValueError):
        inspect.signature(dict)
    assert RunOptions(on_complete=dict).on_complete is dict
