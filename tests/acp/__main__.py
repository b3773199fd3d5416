"""Stop and kill all agents of others that npm has, at each state, and write what was seen.

    python -m tests.acp [TYPE... | chain]

`docs/explain/programs.md` is written from it, unless only some types are named. `chain` stops and
kills teams within teams instead; `docs/explain/stopping.md` has what was seen.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from nb_agents.config.programs import PROGRAM_TYPES
from tests import canaries
from tests.acp import chain
from tests.acp.real_agents import (
    CASES,
    NO_STATE,
    PROGRAMS,
    STATES,
    STOPS,
    VENV,
    Case,
    Outcome,
    place_of,
    play,
    version_of,
)
from tests.bench.table import machine

PAGE = Path(__file__).parents[2] / "docs" / "explain" / "programs.md"
_AT = {
    "stream": "In a stream",
    "tool": "With a tool in flight",
    "question": "With a question open",
}
_NOTES = {
    "stream": "The model sends 20 words a second. Words: sent by the model, and journalled. After "
    "a kill the model sends on until the connection is closed.",
    "tool": "The tool is a shell command, which holds two processes; its file is to be kept.",
    "question": "The program has asked whether it may run a command, and nobody has answered.",
}

Seen = Mapping[Case, Outcome | str]
"""What each case has shown, or why it has failed."""


def main(kinds: Sequence[str]) -> int:
    """Play the cases of some types, of all if none is named; return the exit status."""
    canaries.plant(os.environ)
    if kinds == ["chain"]:
        return chain.measure(chain.COUNTS)
    os.environ["PATH"] = f"{VENV / 'bin'}:{os.environ['PATH']}"
    seen: dict[Case, Outcome | str] = {}
    for case in CASES:
        if place_of(case.kind) and case.kind in (kinds or PROGRAMS):
            seen[case] = _seen(case)
            print(" ".join(case), seen[case], flush=True)
    text = page(seen)
    print(text)
    if not kinds:
        PAGE.write_text(text, "utf-8")
    return any(isinstance(each, str) or _misses(case, each) for case, each in seen.items())


def _seen(case: Case) -> Outcome | str:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        root = Path(folder).resolve() / "root"
        root.mkdir()
        os.environ["XDG_STATE_HOME"] = folder
        try:
            return play(case, root)
        except Exception as exc:
            return f"{type(exc).__name__}: {exc}"


def _misses(case: Case, seen: Outcome) -> bool:
    is_late = case.how == "at once" and (seen.closed_s or 0) > 0.3
    is_lost = case.how != "kill" and not seen.sent - 3 <= seen.journalled <= seen.sent
    is_cut = seen.resumed not in ("", "completed") or seen.keeps_files is False
    return bool(seen.left) or is_late or is_lost or is_cut


def page(seen: Seen) -> str:
    """Return the page of the site."""
    where, _ = machine()
    return "\n".join(
        [
            "# Agents from npm, stopped and killed",
            "",
            "What a stop, a stop at once and a kill -9 of the kernel leave of the programs that "
            "[your own agents](../howto/own-agents.md) may be. `make acp` measures it on your "
            "machine and writes this page. The programs are real; their model is a local server "
            "that speaks the protocol of each, so no login was tried.",
            "",
            f"Written on {datetime.now(UTC):%Y-%m-%d}: {where}. Other work ran beside it, so times "
            "are upper bounds.",
            "",
            *(line for at in STATES for line in _section(at, seen)),
            *_programs(seen),
            *_not_done(seen),
        ]
    )


def _section(at: str, seen: Seen) -> Iterable[str]:
    yield f"## {_AT[at]}\n\n{_NOTES[at]}\n"
    cells = {"stream": ["words"], "tool": ["file kept"]}.get(at, [])
    yield _line("agent", "stop", "connection closed, s", "all ended, s", "left", *cells, "resume")
    yield _line(*["---"] * (6 + len(cells)))
    for kind in PROGRAMS:
        for how in STOPS:
            case = Case(kind, at, how)  # type: ignore[arg-type]
            if case in seen:
                yield _row(case, seen[case])
    for kind in PROGRAMS:
        if why := NO_STATE.get((kind, at), ""):
            yield f"\n`{kind}` has no such state: {why}."
    yield ""


def _row(case: Case, seen: Outcome | str) -> str:
    how = {"kill": "kill -9"}.get(case.how, case.how)
    if isinstance(seen, str):
        return _line(f"`{case.kind}`", how, f"failed: {seen}")
    closed = "" if seen.closed_s is None else f"{seen.closed_s:.2f}"
    special = {
        "stream": [f"{seen.sent} / {seen.journalled}"],
        "tool": ["yes" if seen.keeps_files else "no"],
    }.get(case.at, [])
    is_whole = case.at == "stream" or seen.answer.endswith("All done.")
    ended = "had completed" if is_whole else f"had ended with {seen.answer!r}"
    resume = f"{seen.resumed}, by {seen.goes_on_by}" if seen.resumed else ended
    left = str(len(seen.left))
    return _line(f"`{case.kind}`", how, closed, f"{seen.ended_s:.2f}", left, *special, resume)


def _programs(seen: Seen) -> Iterable[str]:
    yield "## The programs\n"
    yield _line("agent", "package", "Node", "model's protocol", "first request, s", "tells tokens")
    yield _line(*["---"] * 6)
    for kind in PROGRAMS:
        known = PROGRAM_TYPES[kind]
        found = [
            each for case, each in seen.items() if case.kind == kind and isinstance(each, Outcome)
        ]
        if not found:
            yield _line(f"`{kind}`", known.package, "", "not installed by npm here", "", "")
            continue
        yield _line(
            f"`{kind}`",
            f"{known.package} {version_of(kind)}",
            f">= {known.node}" if known.node else "its own",
            found[0].wire,
            f"{min(each.first_request_s for each in found):.1f}",
            "yes" if any(each.usage for each in found) else "no",
        )
    yield ""


def _not_done(seen: Seen) -> Iterable[str]:
    yield "## What each does not do\n"
    for kind in PROGRAMS:
        played = {case: each for case, each in seen.items() if case.kind == kind}
        found = {case: each for case, each in played.items() if isinstance(each, Outcome)}
        if not found:
            continue
        told = [f"{why}" for (other, _), why in NO_STATE.items() if other == kind]
        if not any(each.usage for each in found.values()):
            told.append("it tells no tokens")
        lost = [case for case, each in found.items() if each.goes_on_by == "our note"]
        if lost:
            where = ", ".join(f"{case.at} {case.how}" for case in lost)
            told.append(f"it could not go on with its own session ({where})")
        late = max((each.ended_s for case, each in found.items() if case.how == "at once"))
        if late > 1:
            told.append(f"after a stop at once its last process ended only {late:.1f} s later")
        yield f"- `{kind}`: {'; '.join(told) or 'it does all of this'}."
    yield ""


def _line(*cells: str) -> str:
    escaped = (cell.replace("|", "\\|").replace("\n", " ").replace("<", "\\<") for cell in cells)
    return f"| {' | '.join(escaped)} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
