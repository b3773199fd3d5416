"""Tab completion of ``%agents`` and ``%%agents`` lines, for IPython's completer."""

from __future__ import annotations

import inspect
from argparse import Action
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from IPython.core.completer import SimpleCompletion, context_matcher

from nb_agents.jupyter.ipython import actions_of
from nb_agents.jupyter.magic import AgentsMagics
from nb_agents.jupyter.verbs import VERBS
from nb_agents.launch.finding import runs
from nb_agents.options import RunOptions
from nb_agents.presentation.arguments import complete_path, session_names

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


def register(ip: InteractiveShell) -> None:
    """Register the completion of the magics' arguments with a shell."""
    unregister(ip)

    @context_matcher(identifier=__name__)  # type: ignore[untyped-decorator]
    def match(context: Any) -> dict[str, Any]:
        line = context.text_until_cursor
        return {
            "completions": [SimpleCompletion(each) for each in completions(line, ip.user_ns)],
            "matched_fragment": line.rpartition(" ")[2],
            "suppress": _is_ours(line),
        }

    ip.Completer.custom_matchers.append(match)


def unregister(ip: InteractiveShell) -> None:
    """Remove the completion from a shell."""
    matchers = ip.Completer.custom_matchers
    matchers[:] = [m for m in matchers if getattr(m, "matcher_identifier", "") != __name__]


def completions(line: str, names: Mapping[str, Any]) -> list[str]:
    """Return the completions of a line's last word.

    Args:
        line: The line up to the cursor.
        names: The notebook's variables.

    Returns:
        Whole words in the order of their declaration. Empty if the line does not start with a magic
        of nb_agents.
    """
    if not _is_ours(line):
        return []
    *before, word = line.lstrip().split(" ")
    magic, words = before[0], [each for each in before[1:] if each]
    starts = magic == "%%agents" or (words or [word])[0].startswith("-")
    if not starts and not words:
        return _beginning(word, filter(None, VERBS))
    function = AgentsMagics.agents if starts else VERBS.get(words[0])
    if function is None:
        return []
    actions = actions_of(function)
    by_option = {name: action for action in actions for name in action.option_strings}
    last = by_option.get(words[-1]) if words else None
    before_last = by_option.get(words[-2]) if len(words) > 1 else None
    if before_last is not None and before_last.nargs == 2:
        last = before_last
    if last is not None and last.nargs != 0:
        return _values(last, word, names)
    if word.startswith("-"):
        return _beginning(word, (name for name in by_option if name.startswith("--")))
    return [value for a in actions if not a.option_strings for value in _values(a, word, names)]


def _is_ours(line: str) -> bool:
    # IPython completes the name of the magic itself, so these completions start after the space.
    return line.lstrip().startswith(("%agents ", "%%agents "))


def _values(action: Action, word: str, names: Mapping[str, Any]) -> list[str]:
    match action.dest:
        case "config" | "recipe" | "file" | "compare":
            return complete_path(word)
        case "session":
            return _beginning(word, session_names())
        case "run":
            return _beginning(word, _runs())
        case "turn":
            return _beginning(word, [*_runs(), *session_names()])
        case "tools":
            functions = [name for name, value in names.items() if inspect.isroutine(value)]
            before, comma, start = word.rpartition(",")
            matches = _beginning(start, (name for name in functions if name[:1] != "_"))
            return [f"{before}{comma}{name}" for name in matches]
        case "options":
            return _beginning(word, (n for n, v in names.items() if isinstance(v, RunOptions)))
        case _:
            return []


def _beginning(word: str, words: Iterable[str]) -> list[str]:
    return [each for each in words if each.startswith(word)]


def _runs() -> list[str]:
    return [run.id for run in runs()]
