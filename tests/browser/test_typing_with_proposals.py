"""A user edits a notebook while three agents' proposals arrive and are decided; nothing is lost.

The page records the sources of all cells after each transaction. So the tests know what each key
press and each accepted change did, and which content the cells had at each checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.story import Story, server_team
from tests.browser.test_proposals import boxes, tool
from tests.kit.notebook_cells import ChangeDecided, late_events
from tests.kit.sessions import load_session
from tests.kit.views import checkpoints_of
from tests.model_server import ModelServer, Reply, Request
from tests.samples import some_or_all

AGENTS = ("ada", "ben", "eve")
FIRST = [f"# cell {i}\nx{i} = 0\ny{i} = 0" for i in range(6)]
FIRST += [f"# cell spare {i}\nz{i} = 0" for i in range(3)]
PLAYS = some_or_all(1, 20)
ROUNDS = some_or_all(10, 25)
"""A round is what a user does while up to two clicks on proposals are on their way."""
REWINDS = some_or_all(2, 4)

RECORD = """path => {
  const panel = harness.panel(path), notebook = panel.content.model.sharedModel;
  const now = () => notebook.cells.map((cell) => [cell.id, cell.getSource()]);
  const log = (window.record = { states: [{ cells: now(), undo: false }], applied: {} });
  let undoneAt = -1e9;  // the command runs shortly after the key press
  addEventListener("keydown", ({ ctrlKey, key }) => {
    if (ctrlKey && key.toLowerCase() === "z") undoneAt = performance.now();
  }, true);
  notebook.ydoc.on("update", () => {
    const cells = now(), undo = performance.now() - undoneAt < 200;
    const isNew = JSON.stringify(cells) !== JSON.stringify(log.states.at(-1).cells);
    if (isNew) log.states.push({ cells, undo });
  });
  const settings = jupyterapp.serviceManager.serverSettings, send = settings.fetch;
  settings.fetch = async (request, init) => {
    if (request.url.includes("cells_decide")) {
      const last = log.states.length - 1;  // since the change, only others of "Accept all" ran
      const { number, how, cell, above, removed } = JSON.parse(await request.clone().text());
      const isMove = Boolean(above) && !removed;
      if (how === "accepted" || how === "inserted") log.applied[number] ??= { last, cell, isMove };
    }
    return send(request, init);
  };
}"""
CLICK = """([label, pick, ms]) => setTimeout(() => {
  const all = [...document.querySelectorAll(".nba-change button, .nba-changes button")];
  const found = all.filter((each) => each.textContent === label && each.checkVisibility());
  found[pick % found.length]?.click();
}, ms)"""
EDIT = """async ([path, id, line]) => {
  const notebook = harness.panel(path).content;
  const find = () => notebook.widgets.findIndex((cell) => cell.model.id === id);
  if (find() < 0) return false;
  await notebook.scrollToItem(find());
  if (find() < 0) return false;
  notebook.activeCellIndex = find();
  notebook.mode = "edit";
  const { editor } = notebook.widgets[find()];
  editor.focus();
  const at = line % editor.lineCount;
  editor.setCursorPosition({ line: at, column: editor.getLine(at).length });
  return true;
}"""
LABELS = ("Accept",) * 8 + ("Reject", "Reject", "Insert as a new cell", "Accept all", "Reject all")


class Agent:
    """Reads the cells and proposes a change of one of them, until `is_done` is set."""

    def __init__(self, name: str, seed: int) -> None:
        self.name, self.random, self.count, self.is_done = name, Random(f"{name}{seed}"), 0, False

    def __call__(self, request: Request) -> Reply:
        if self.is_done:
            return Reply(text="I wait. ", hang_after=1)
        texts = [str(m["content"]) for m in request.messages if m["role"] == "tool"]
        last = texts[-1].partition("\n\n<TEAM_MESSAGE>")[0] if texts else ""
        read = re.findall(
            r"=== cell (\S+) \[code\] digest (\w+)\n(.*?)(?=\n=== cell|\Z)", last, re.DOTALL
        )
        if read:
            return tool("notebook_propose", changes=[self._change(read)], why="It is better so.")
        ids = re.findall(r"^(\S+) \[code, \d+ lines?\] # cell", last, re.MULTILINE)
        return tool("notebook_read", ids=ids) if ids else tool("notebook_read")

    def _change(self, read: list[tuple[str, str, str]]) -> dict[str, Any]:
        self.count += 1
        mark = f"# {self.name}-{self.count}."
        cell, digest, source = self.random.choice(read)
        below = self.random.choice([each for each, _, _ in read if each != cell])
        first, *rest = source.split("\n")
        change = {"op": "replace", "id": cell, "digest": digest}
        chance = self.random.random()
        if chance < 0.12:
            return {"op": "insert", "after": cell, "source": f"# cell new\n{mark}"}
        if chance < 0.22:
            return change | {"op": "move", "after": below}
        if chance < 0.35 and "spare" in first:
            return change | {"op": "delete"}
        return change | {"source": "\n".join([first, mark, *rest])}


@dataclass(frozen=True)
class Record:
    """The sources of all cells after each transaction, and which transaction applied a change.

    Attributes:
        states: The sources by cell, in their order.
        undone: The indices of the states after an undo or redo.
        applied: By the proposal's number: the index of the state after the change, and the cell.
    """

    states: list[dict[str, str]]
    undone: set[int]
    applied: dict[int, tuple[int, str]]

    @classmethod
    def of(cls, story: Story) -> Record:
        data = story.page.page.evaluate("record")
        states = [dict(each["cells"]) for each in data["states"]]
        applied = {
            int(n): (applied_in(states, **each), each["cell"])
            for n, each in data["applied"].items()
        }
        undone = {n for n, each in enumerate(data["states"]) if each["undo"]}
        undone -= {n for n, _ in applied.values()}
        return cls(states, undone, applied)

    @property
    def applied_at(self) -> set[int]:
        return {index for index, _ in self.applied.values()}

    def changed_at(self, cell: str, after: int) -> list[int]:
        """Return the indices of the states in which a cell's content is new."""
        numbered = enumerate(pairwise(self.states[after:]), after + 1)
        return [n for n, (old, new) in numbered if old.get(cell) != new.get(cell)]


def applied_in(states: list[dict[str, str]], last: int, cell: str, isMove: bool) -> int:
    """Return the index of the latest state in which the cell was changed, up to `last`."""
    for n in range(last, 0, -1):
        old, new = states[n - 1], states[n]
        is_moved = old.keys() == new.keys() and [*old] != [*new]
        if is_moved if isMove else old.get(cell) != new.get(cell):
            return n
    raise AssertionError(f"no change of {cell}")


@pytest.mark.parametrize("seed", range(PLAYS))
def test_interleavings_lose_no_keystroke(
    story: Story, server: ModelServer, artifacts: Path, seed: int
) -> None:
    agents = [Agent(name, seed) for name in AGENTS]
    for agent in agents:
        server.script(f"m-{agent.name}", agent)
    story.open(*FIRST)
    story.page.page.evaluate(RECORD, story.page.notebook)
    team = server_team(server, **{name: f"m-{name}" for name in AGENTS})
    story.start("Improve the cells", f"--notebook propose {story.team(team)}")
    expect(boxes(story).first).to_be_visible()
    random = Random(seed)
    words = [play_round(story, random, n) for n in range(ROUNDS)]
    for agent in agents:
        agent.is_done = True
    story.page.command("nb-agents:stop-all-now")
    expect(boxes(story)).to_have_count(0)
    story.page.wait_until(lambda: not open_numbers(story), what="all decisions")

    story.page.wait_until(lambda: Record.of(story).applied.keys() == applied(story))
    record = Record.of(story)
    typed = [word for word in words if word]
    read = {each["number"]: each["base_source"] for each in story.events("change_proposed")}
    new = [each.number for each in decided(story) if each.how == "inserted"]
    copied = {record.applied[n][1]: read[n] for n in new}
    check_words(record, typed, copied)
    check_marks(story, record, copied)
    check_rest(record)
    rewound = [*rewind_to_some(story, random, typed, copied)]
    report = f"seed {seed}: {len(typed)} words, {len(record.applied)} changes applied, {rewound}\n"
    with (artifacts / "typing-with-proposals.txt").open("a") as file:
        file.write(report)


def play_round(story: Story, random: Random, n: int) -> str:
    """Edit a cell while clicks are on their way. Returns the typed word, or ""."""
    page = story.page.page
    for _ in range(random.randrange(3)):
        click = [random.choice(LABELS), random.randrange(100), random.randrange(250)]
        page.evaluate(CLICK, click)
    cells = [id_ for id_, source in current(story).items() if source.startswith("# cell")]
    where = [story.page.notebook, random.choice(cells), random.randrange(9)]
    if not page.evaluate(EDIT, where):  # it was deleted
        return ""
    if random.random() < 0.2:
        for _ in range(random.randrange(1, 4)):
            page.keyboard.press("Control+z")
        if random.random() < 0.5:
            page.keyboard.press("Control+Shift+z")
        return ""
    word = f" #u{n}u"
    page.keyboard.type(word, delay=random.choice([0, 5, 30]))
    page.wait_for_timeout(random.randrange(400))  # what agents do meanwhile is a part of the play
    return word


def current(story: Story) -> dict[str, str]:
    return dict(story.page.page.evaluate("record.states.at(-1).cells"))


def check_words(record: Record, words: list[str], copied: Mapping[str, str]) -> None:
    """Each word is there once, unless the user undid it or accepted to delete its cell."""
    removed = set[str]()
    for n, (old, new) in enumerate(pairwise(record.states), 1):
        gone = [word for word in words if text_of(old).count(word) > text_of(new).count(word)]
        is_delete = len(old.keys() - new.keys()) == 1 and n in record.applied_at
        assert not gone or n in record.undone or is_delete, (gone, old, new)
        removed |= {*gone}
    for word in words:
        found = count(word, record.states[-1], copied)
        assert found == 1 or (found == 0 and word in removed), (word, record.states[-1])


def check_marks(story: Story, record: Record, copied: Mapping[str, str]) -> None:
    """Each accepted change is present once, unless the user undid it or accepted a deletion."""
    expected = set[str]()
    for change in story.events("change_proposed"):
        if change["number"] not in record.applied:
            continue
        index, cell = record.applied[change["number"]]
        before, after = record.states[index - 1], record.states[index]
        different = {each for each in before | after if before.get(each) != after.get(each)}
        assert different <= {cell}, "a change edits no other cell"
        for mark in marks(change["source"]) - marks(change["base_source"]):
            expected.add(mark)
            assert mark in after[cell] and mark not in text_of(before)
            later = pairwise(record.states[index:])
            removed = any(mark in text_of(a) and mark not in text_of(b) for a, b in later)
            found = count(mark, record.states[-1], copied)
            assert found == 1 or (found == 0 and removed), mark
    assert marks(text_of(record.states[-1])) <= expected


def decided(story: Story) -> list[ChangeDecided]:
    """Return the decisions. A report that comes after a stop is recorded after the turn's end."""
    turn = load_session(story.sessions()[0]).turns[0]
    events = [*turn.events, *late_events(turn.paths)]
    return [each for each in events if isinstance(each, ChangeDecided)]


def applied(story: Story) -> set[int]:
    return {each.number for each in decided(story) if each.how in ("accepted", "inserted")}


def marks(text: str) -> set[str]:
    return {*re.findall(r"# \w+-\d+\.", text)}


def count(text: str, cells: Mapping[str, str], copied: Mapping[str, str]) -> int:
    """Count a text, except where "Insert as a new cell" has copied it from another cell."""
    return sum(cells[each].count(text) for each in cells if text not in copied.get(each, ""))


def check_rest(record: Record) -> None:
    """Cells that the user did not undo contain only the first text, words and accepted lines."""
    undone = {
        cell
        for n in record.undone
        for cell in record.states[n] | record.states[n - 1]
        if record.states[n].get(cell) != record.states[n - 1].get(cell)
    }
    for cell, source in record.states[-1].items():
        rest = re.sub(r"(^|\n)# \w+-\d+\.(?=\n|$)", "", re.sub(r" #u\d+u", "", source))
        if source.startswith("# cell") and cell not in undone:
            assert rest in (*FIRST, "# cell new"), source


def rewind_to_some(
    story: Story, random: Random, words: list[str], copied: Mapping[str, str]
) -> Iterator[int]:
    """Rewind to checkpoints, latest first, and check the cells. Yields the checkpoints."""
    session = story.sessions()[0]
    points = [each.seq for each in checkpoints_of(load_session(session).turns[0].events)]
    seqs = {each.number: each.seq or points[-1] for each in decided(story)}
    remaining = Record.of(story).applied
    for turn, point in enumerate(sorted(random.sample(points, REWINDS), reverse=True), 2):
        record = Record.of(story)
        after = {number: each for number, each in remaining.items() if seqs[number] > point}
        story.run(f"%agents rewind {session.name}/1 --to {point}", wait=False)
        kind = "changes_reverted" if after else "turn_started"
        [event] = wait_event(story, kind, turn)
        done = event.get("changes", [])
        remaining = {n: each for n, each in remaining.items() if f"1/{n}" not in done}
        check_rewind(record, sorted(after.values()), current(story))
        shown = [word for word in words if count(word, record.states[-1], copied)]
        assert [word for word in shown if word not in text_of(current(story))] == []
        yield point
        story.page.command("nb-agents:stop-all-now")
        wait_event(story, "turn_ended", turn)


def wait_event(story: Story, kind: str, turn: int) -> list[dict[str, Any]]:
    """Wait until the journal of a turn has an event. Returns the events of the kind."""
    journal = story.turn(turn) / "events.jsonl"
    found: list[dict[str, Any]] = story.page.wait_until(
        lambda: journal.exists() and story.events(kind, turn),
        what=f"{kind} in turn {turn}",
        seen=story.page.output_text,
    )
    return found


def check_rewind(record: Record, changes: list[tuple[int, str]], found: dict[str, str]) -> None:
    """The cells are as at the checkpoint, and those that the user edited since are unchanged.

    Args:
        record: What happened before the rewind.
        changes: The states after the changes that are taken back, each with its cell.
        found: The cells after the rewind.
    """
    last = record.states[-1]
    cells = last.keys() | {cell for _, cell in changes}
    for cell in cells:
        source = expected_source(record, cell, [index for index, c in changes if c == cell])
        assert found.get(cell) == source, (cell, last.get(cell), source)
    first = record.states[changes[0][0] - 1] if changes else last
    if all(found.get(cell) == first.get(cell) for _, cell in changes):
        order = [*first]
        assert [cell for cell in found if cell in first] == [
            each for each in order if each in found
        ]


def expected_source(record: Record, cell: str, changes: list[int]) -> str | None:
    """Return the content of a cell after a rewind, from what was recorded. None means no cell.

    Args:
        record: All states.
        cell: The cell.
        changes: The indices of the states after the changes that the rewind takes back.
    """
    found = record.states[-1].get(cell)
    if changes and record.changed_at(cell, changes[0] - 1) == changes:
        return record.states[changes[0] - 1].get(cell)  # only agents have changed it
    for index in reversed(changes):
        before, after = record.states[index - 1].get(cell), record.states[index].get(cell)
        if found == after:
            found = before
        elif found != before:
            break
    return found


def text_of(cells: Mapping[str, str]) -> str:
    return "\n".join(cells.values())


def open_numbers(story: Story) -> set[Any]:
    decided = {e["number"] for e in story.events("change_decided")}
    return {e["number"] for e in story.events("change_proposed")} - decided
