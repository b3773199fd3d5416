"""Stop and kill each external agent from npm in each state, and write the results.

    python -m tests.acp [TYPE... | chain]

It writes `docs/explain/programs.md`, unless you name types. `chain` stops and kills teams inside
teams instead; `docs/explain/stopping.md` has its results.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.table import machine
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
from tests.kit.programs import PROGRAM_TYPES

PAGE = Path(__file__).parents[2] / "docs" / "explain" / "programs.md"
_AT = {
    "stream": "During a stream",
    "tool": "During a tool call",
    "question": "With an open question",
}
_NOTES = {
    "stream": "The model sends 20 words per second. The column *words* shows the words that the "
    "model sent, and those in the journal. After a kill, the model sends until the connection is "
    "closed.",
    "tool": "The tool is a shell command with two processes. It writes a file, which should be "
    "kept.",
    "question": "The agent has asked for permission to run a command, and nobody has answered.",
}
_STOPS = {"graceful": "graceful stop", "at once": "immediate stop", "kill": "kill -9"}

Seen = Mapping[Case, Outcome | str]
"""The outcome of each case, or why it failed."""


def main(kinds: Sequence[str]) -> int:
    """Play the cases of the named types, or all cases. Return the exit status."""
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
            "# External agents, stopped and killed",
            "",
            "This page shows what remains of [external agents](../howto/own-agents.md) from npm "
            "after a graceful stop, an immediate stop and a kill -9 of the kernel. `make acp` "
            "measures this on your machine and writes this page. The agents are real. Their "
            "model is a local server that speaks each agent's protocol, so logins were not "
            "tested.",
            "",
            f"Measured on {datetime.now(UTC):%Y-%m-%d}: {where}. Other work was running, so times "
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
    yield _line(
        *("agent", "stop", "connection closed, s", "all ended, s", "processes left"),
        *(*cells, "resume"),
    )
    yield _line(*["---"] * (6 + len(cells)))
    for kind in PROGRAMS:
        for how in STOPS:
            case = Case(kind, at, how)  # type: ignore[arg-type]
            if case in seen:
                yield _row(case, seen[case])
    for kind in PROGRAMS:
        if why := NO_STATE.get((kind, at), ""):
            yield f"\n`{kind}` is never in this state: {why}."
    yield ""


def _row(case: Case, seen: Outcome | str) -> str:
    how = _STOPS[case.how].removesuffix(" stop")
    if isinstance(seen, str):
        return _line(f"`{case.kind}`", how, f"failed: {seen}")
    closed = "" if seen.closed_s is None else f"{seen.closed_s:.2f}"
    special = {
        "stream": [f"{seen.sent} / {seen.journalled}"],
        "tool": ["yes" if seen.keeps_files else "no"],
    }.get(case.at, [])
    is_whole = case.at == "stream" or seen.answer.endswith("All done.")
    ended = "not needed" if is_whole else f"had ended with {seen.answer!r}"
    by = {"our note": "our summary"}.get(seen.goes_on_by, seen.goes_on_by)
    resume = f"{seen.resumed}, using {by}" if seen.resumed else ended
    left = str(len(seen.left))
    return _line(f"`{case.kind}`", how, closed, f"{seen.ended_s:.2f}", left, *special, resume)


def _programs(seen: Seen) -> Iterable[str]:
    yield "## The agents\n"
    yield _line(
        *("agent", "package", "Node.js", "model's protocol", "first request, s", "reports tokens")
    )
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
    yield "## Limitations\n"
    for kind in PROGRAMS:
        played = {case: each for case, each in seen.items() if case.kind == kind}
        found = {case: each for case, each in played.items() if isinstance(each, Outcome)}
        if not found:
            continue
        told = [f"{why}" for (other, _), why in NO_STATE.items() if other == kind]
        if not any(each.usage for each in found.values()):
            told.append("it reports no tokens")
        lost = [case for case, each in found.items() if each.goes_on_by == "our note"]
        if lost:
            where = ", ".join(f"{_STOPS[case.how]} during a {case.at}" for case in lost)
            told.append(f"it could not resume its own session ({where})")
        late = max((each.ended_s for case, each in found.items() if case.how == "at once"))
        if late > 1:
            told.append(f"its last process ended {late:.1f} s after an immediate stop")
        yield f"- `{kind}`: {'; '.join(told) or 'none'}."
    yield ""


def _line(*cells: str) -> str:
    escaped = (cell.replace("|", "\\|").replace("\n", " ").replace("<", "\\<") for cell in cells)
    return f"| {' | '.join(escaped)} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
