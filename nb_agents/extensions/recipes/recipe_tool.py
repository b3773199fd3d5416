"""The `recipes` tool, with which agents run the recipes listed in their team file.

A recipe that an agent runs is a run inside the agent's run: a stop of the caller stops it, and its
tokens and cost are counted in a row below the caller's. Its sessions are in the caller's session:

    <session>/recipes/a-review-1/turn_1/

Source: Amplifier's recipes (the operations and the names of the arguments). Approvals are left to
the user.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import anyio
from anyio import to_thread
from pydantic import JsonValue

from nb_agents import events as ev
from nb_agents.agents.capabilities import Results
from nb_agents.cancel import (
    CancellationStatus,
    CancelPolicy,
    CancelToken,
    StopRequest,
    StopSource,
    current_token,
)
from nb_agents.config.tools import ToolKeys
from nb_agents.errors import ConfigError, UserError, error_message
from nb_agents.json_text import json_text
from nb_agents.launch.api import resume, start_verbatim
from nb_agents.options import RunOptions
from nb_agents.session.commands import SessionStore
from nb_agents.session.history import load_turn
from nb_agents.session.layout import RECIPES, sessions_in, turns_of
from nb_agents.tools.base import BuiltInTool, Tool, ToolError, current_call, declare
from nb_agents.turns.drivers import DriverDeps
from nb_agents.view.receipt import total_cost
from nb_agents.view.run_view import RunView

(NAME,) = declare(BuiltInTool("recipes", target="recipe_path"))

CLOSE_S = 5.0
"""Seconds for a recipe to end after its caller was stopped or cancelled."""

MAX_LISTED = 50
"""Maximum number of sessions that the operation "list" returns."""

_UNSAFE = re.compile(r"[^\w.-]+")


class _RecipeRun(Protocol):
    """The methods of `nb_agents.launch.run.Run` used here. The class itself can't be imported."""

    @property
    def session(self) -> str: ...

    @property
    def view(self) -> RunView: ...

    def stop(self, now: bool, *, reason: str, source: StopSource) -> object: ...

    def subscribe(self, callback: Callable[[RunView], None]) -> Callable[[], None]: ...

    def add_done_callback(self, callback: Callable[[], object]) -> None: ...


class RecipeTool:
    """The `recipes` tool, which lets agents run recipes.

    Args:
        deps: The turn's spec, and the run's functions.
    """

    def __init__(self, deps: DriverDeps) -> None:
        self._spec = spec = deps.spec
        self._emit = deps.emit
        self._admit = deps.admit
        self._past = spec.resumed.past.children if spec.resumed else {}
        self._rows = {*self._past}
        self._root = spec.paths.path.parent / RECIPES

    def tools(self, keys: ToolKeys) -> list[Tool]:
        """Return the tool, or no tool if the team file lists no recipes for the agent."""
        if not keys.recipes:
            return []
        allowed = {_name_of(path): path for path in keys.recipes}

        async def recipes(
            operation: Literal["list", "validate", "execute", "resume", "cancel"],
            recipe_path: str = "",
            context: dict[str, JsonValue] | None = None,
            session_id: str = "",
            immediate: bool = False,
        ) -> str:
            """Run recipes, which are workflows of steps defined in files.

            Args:
                operation: "list" returns the recipes and their sessions, with their states;
                    "validate" checks a recipe; "execute" runs one and waits for its result;
                    "resume" continues an incomplete session; "cancel" stops a running one.
                recipe_path: For validate and execute: the recipe, as in the list.
                context: For execute: the initial values of the recipe.
                session_id: For resume and cancel: the session, as in the list.
                immediate: For cancel: whether to interrupt the current step instead of letting it
                    finish.
            """
            try:
                match operation:
                    case "list":
                        return await to_thread.run_sync(self._list, [*allowed])
                    case "validate":
                        return await to_thread.run_sync(self._validate, _path(allowed, recipe_path))
                    case "execute":
                        return await self._execute(_path(allowed, recipe_path), context or {})
                    case "resume":
                        return await self._resume(session_id)
                    case "cancel":
                        return await to_thread.run_sync(self._cancel, session_id, immediate)
            except (UserError, OSError) as exc:
                raise ToolError(str(exc)) from exc

        return [Tool(recipes, is_repeatable=True)]

    def note(self, agent: str) -> Results:
        """Return nothing, because the tool's results are all that an agent gets."""
        return Results()

    def _list(self, names: Sequence[str]) -> str:
        store = SessionStore(self._root)
        sessions = [
            {
                "session_id": path.name,
                "state": load_turn(turns_of(path)[-1]).state,
                "cancellation": store.get_cancellation_status(path.name).name,
            }
            for path in sessions_in(self._root).by_use[:MAX_LISTED]
        ]
        return json_text({"recipes": names, "sessions": sessions})

    def _validate(self, path: str) -> str:
        from nb_agents.extensions.recipes.check import check
        from nb_agents.extensions.recipes.recipe import Recipe

        try:
            report = check(Recipe.from_file(path), self._spec.team)
        except ConfigError as exc:  # not a recipe at all
            return json_text({"is_valid": False, "errors": [str(exc)], "warnings": []})
        faults, warnings = (list(map(str, each)) for each in (report.faults, report.warnings))
        return json_text({"is_valid": not faults, "errors": faults, "warnings": warnings})

    def _cancel(self, session_id: str, immediate: bool) -> str:
        self._find(session_id)
        call = current_call()
        done = SessionStore(self._root).request_cancellation(
            session_id, immediate=immediate, source="parent", reason=f"cancelled by {call.agent}"
        )
        return json_text(
            {"session_id": session_id, "changed": done.changed, "message": done.message}
        )

    def _find(self, session_id: str) -> Path:
        """Return the directory of a recipe's session. Only ids of sessions are accepted."""
        for path in sessions_in(self._root).by_use:
            if path.name == session_id:
                return path
        raise ToolError(f'there is no session {session_id!r}. "list" returns the sessions.')

    async def _execute(self, path: str, context: Mapping[str, Any]) -> str:
        call = current_call()
        begun = self._begun_by(call.agent, call.id) if call.is_repeated else ""
        row = begun or self._new_row(call.agent, path)
        session = _session_of(row)
        if begun and turns_of(self._root / session):
            return await self._resume(session, row)
        start = partial(
            start_verbatim,
            config=self._spec.team,
            session=session,
            recipe=path,
            context=context,
            options=self._options(),
        )
        return await self._run(row, path, start, RunView())

    async def _resume(self, session_id: str, row: str = "") -> str:
        path = await to_thread.run_sync(self._find, session_id)
        last = await to_thread.run_sync(load_turn, turns_of(path)[-1])
        if last.is_complete:
            return _result(session_id, last.view)
        row = row or self._new_row(current_call().agent, session_id)
        again = partial(resume, session_id, self._spec.team, options=self._options())
        return await self._run(row, session_id, again, last.view)

    def _options(self) -> RunOptions:
        options = self._spec.options
        grace_s = self._spec.cancel.grace_timeout_s
        return RunOptions(
            session_root=self._root,
            retry=options.retry,
            approval=options.approval,
            cancel=CancelPolicy(grace_timeout_s=grace_s),
            context_paths=options.context_paths,
            wait_for_quota=options.wait_for_quota,
            detach=False,
        )

    def _begun_by(self, agent: str, call_id: str) -> str:
        """Return the row of the recipe that an interrupted call had started, or ""."""
        calls = (each.called for each in self._past.values())
        rows = (c.agent for c in calls if (c.caller, c.call_id) == (agent, call_id))
        return next(rows, "")

    def _new_row(self, agent: str, path: str) -> str:
        """Return an unused row id with an unused session."""
        for number in range(1, 10_000):
            row = f"{agent}/{_name_of(path)}#{number}"
            if row not in self._rows and not (self._root / _session_of(row)).exists():
                self._rows.add(row)
                return row
        raise ToolError("too many recipes were run in this session.")

    async def _run(
        self, row: str, name: str, begin: Callable[[], _RecipeRun], before: RunView
    ) -> str:
        """Run a recipe to its end, as a row of the caller's run.

        Args:
            row: The row's id.
            name: The recipe's file or its session.
            begin: Starts or resumes the run.
            before: The recipe's view before this run. Its tokens and cost are already counted.
        """
        above = current_token() or CancelToken()
        above.checkpoint()
        call, token = current_call(), above.child(row)
        self._emit(
            ev.AgentCalled(
                agent=row,
                caller=call.agent,
                name=_name_of(name),
                model="recipe",
                workspace="",
                input=name,
                call_id=call.id,
            )
        )
        self._admit(row, token)
        try:
            run = await to_thread.run_sync(begin)
        except Exception as exc:
            self._emit(ev.AgentFailed(agent=row, error=error_message(exc)))
            raise
        try:
            await _follow(run, token, _Spent(row, before, self._emit))
        finally:
            self._end(row, run.view)
        above.checkpoint()
        return _result(run.session, run.view)

    def _end(self, row: str, view: RunView) -> None:
        if view.status == "failed":
            self._emit(ev.AgentFailed(agent=row, error=f"the recipe {view.state}"))
        else:
            outcome: Any = "finished" if view.status == "completed" else "stopped"
            self._emit(ev.AgentEnded(agent=row, outcome=outcome, text=view.answer))


class _Spent:
    """Emits the tokens and cost of an agent's recipe, as if its row made model calls.

    Args:
        row: The row's id.
        before: The recipe's view before this run. Its tokens and cost are already counted.
        emit: Called with each event.
    """

    def __init__(self, row: str, before: RunView, emit: Callable[[ev.Event], None]) -> None:
        self._row = row
        self._before = _usage(before)
        self._emit = emit
        self._calls = 0

    def count(self, view: RunView) -> None:
        """Emit the tokens and cost since the last call of this method."""
        now, last = _usage(view), self._before
        if now == last:
            return
        is_priced = now.cost is not None and last.cost is not None
        used = ev.Usage(
            input_tokens=max(0, now.input_tokens - last.input_tokens),
            output_tokens=max(0, now.output_tokens - last.output_tokens),
            cost=max(0.0, (now.cost or 0.0) - (last.cost or 0.0)) if is_priced else None,
        )
        self._before, self._calls = now, self._calls + 1
        row, call = self._row, self._calls
        self._emit(ev.ModelStarted(agent=row, call=call))
        self._emit(ev.ModelFinished(agent=row, call=call, response="", usage=used, form="recipe"))


async def _follow(run: _RecipeRun, token: CancelToken, spent: _Spent) -> None:
    """Wait until a recipe's run ends. Forwards stops of its caller and counts its cost."""
    loop, is_over = asyncio.get_running_loop(), anyio.Event()

    def stop(request: StopRequest) -> None:
        now = request.level >= CancellationStatus.IMMEDIATE
        run.stop(now, reason=request.reason, source="parent")

    unsubscribe = token.on_request(stop)

    def count(view: RunView) -> None:
        loop.call_soon_threadsafe(spent.count, view)

    unsubscribe_view = run.subscribe(count)
    run.add_done_callback(lambda: loop.call_soon_threadsafe(is_over.set))
    try:
        await is_over.wait()
    finally:
        if not is_over.is_set():  # the caller was cancelled
            run.stop(True, reason="its caller was stopped", source="parent")
            with anyio.move_on_after(CLOSE_S, shield=True):
                await is_over.wait()
        unsubscribe_view()
        unsubscribe()
        spent.count(run.view)


def _usage(view: RunView) -> ev.Usage:
    agents = view.agents.values()
    sent, received = sum(a.input_tokens for a in agents), sum(a.output_tokens for a in agents)
    return ev.Usage(input_tokens=sent, output_tokens=received, cost=total_cost(view))


def _result(session: str, view: RunView) -> str:
    """Return a recipe's result for the model. Raises ToolError if the recipe is incomplete."""
    if view.status == "completed":
        outputs: Any = view.outputs or view.answer
        return json_text({"session_id": session, "status": "completed", "result": outputs})
    why = f" ({view.stop.reason})" if view.stop and view.stop.reason else ""
    raise ToolError(
        f"the recipe {view.state}{why}. Its session is {session!r}: "
        f'recipes(operation="resume", session_id={session!r}) continues it.'
    )


def _path(allowed: Mapping[str, str], name: str) -> str:
    allowed_path = allowed.get(name) or next(
        (path for path in allowed.values() if path == name), ""
    )
    if not allowed_path:
        raise ToolError(f"there is no recipe {name!r}. Your recipes: {', '.join(allowed)}.")
    return allowed_path


def _name_of(path: str) -> str:
    return Path(path).name


def _session_of(row: str) -> str:
    return _UNSAFE.sub("-", row)
