"""The commands of the table of verbs."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from nb_agents.cli.application import Json, Root, app, live_names
from nb_agents.cli.printing import say, say_json, shown, table, warn
from nb_agents.cli.starting import work
from nb_agents.presentation.arguments import session_names
from nb_agents.presentation.asking import TERMINAL
from nb_agents.verbs.table import VERBS, carry_out
from nb_agents.verbs.verb import Caller, Outcome, Parameter, Verb

_COMPLETIONS = {"run": live_names, "session": session_names}


def _add(verb: Verb) -> None:
    """Add a verb to the application, with an argument or option for each of its parameters."""

    def command(root: Any, as_json: bool, **given: Any) -> None:
        done = carry_out(verb, Caller("cli", TERMINAL, root, _confirm), given)
        if done.begin is not None:
            work(done.begin, as_json)
        _tell(done, as_json)

    declared = [_keyword(each.name, _type_of(each), _default(each)) for each in verb.on_lines]
    shared = [_keyword("root", Root, None), _keyword("as_json", Json, False)]
    command.__signature__ = inspect.Signature([*declared, *shared])  # type: ignore[attr-defined]
    command.__annotations__ = {}
    command.__doc__ = verb.help
    app.command(verb.name)(command)


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _default(parameter: Parameter) -> Any:
    return inspect.Parameter.empty if parameter.is_required else parameter.default


def _type_of(parameter: Parameter) -> Any:
    help = f"{parameter.help[:1].upper()}{parameter.help[1:]}."
    if not parameter.is_option:
        completion = _COMPLETIONS.get(parameter.name)
        argument = typer.Argument(help=help, autocompletion=completion)
        return Annotated[str | None if parameter.default is None else str, argument]
    option = typer.Option(parameter.flag, help=help)
    if parameter.default is False:
        return Annotated[bool, option]
    return Annotated[str | None if parameter.default is None else str, option]


def _confirm(question: str) -> bool:
    return typer.confirm(shown(question), err=True)


def _tell(outcome: Outcome, as_json: bool) -> None:
    if outcome.heads:
        table(outcome.heads, outcome.rows, as_json, outcome.said)
    elif as_json:
        say_json({**outcome.facts, "said": outcome.said})
    else:
        say(outcome.said)
    for note in outcome.notes:
        warn(note)


for _verb in VERBS.values():
    _add(_verb)
