"""Users edit a notebook while three agents' proposals arrive and are decided.

Each page records the sources of all cells after each transaction. So the checks know what each key
press, command, undo and accepted change did, and which content the cells had at each checkpoint.
Each word has letters of one user only, so words of two users that were typed at the same place are
told apart.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from playwright.sync_api import expect

from tests.browser.story import Story, server_team
from tests.browser.test_proposals import boxes, tool
from tests.kit.notebook_cells import ChangeDecided, late_events
from tests.kit.sessions import load_session
from tests.kit.views import checkpoints_of
from tests.model_server import ModelServer, Reply, Request
from tests.samples import some_or_all

__all__ = ["FIRST", "OWN", "Person", "Play", "agents_of", "append_line", "cursor_cells"]

AGENTS = ("ada", "ben", "eve")
FIRST = [f"# cell {i}\nx{i} = 0\ny{i} = 0" for i in range(6)]
FIRST += [f"# cell spare {i}\nz{i} = 0" for i in range(3)]
OWN = "# own cell of "
"""In such a cell, another user neither types nor gives a command."""
ROUNDS = some_or_all(8, 25)
"""A round is what users do while up to two clicks of each on proposals are on their way."""
REWINDS = some_or_all(2, 1000)
LABELS = ("Accept",) * 8 + ("Reject", "Reject", "Insert as a new cell", "Accept all", "Reject all")
COMMANDS = {
    "notebook:insert-cell-below": 4,
    "notebook:move-cell-down": 3,
    "notebook:move-cell-up": 3,
    "notebook:split-cell-at-cursor": 3,
    "notebook:merge-cell-below": 2,
    "notebook:delete-cell": 1,
    "notebook:undo-cell-action": 1,
}

RECORD = """path => {
  const panel = harness.panel(path), notebook = panel.content.model.sharedModel;
  const now = () => notebook.cells.map((cell) => [cell.id, cell.getSource()]);
  const first = { cells: now(), how: "" };
  const log = (window.record = { states: [first], applied: {}, command: "" });
  notebook.ydoc.on("afterTransaction", ({ local, origin }) => {
    const cells = now();
    if (JSON.stringify(cells) === JSON.stringify(log.states.at(-1).cells)) return;
    const isUndo = Array.isArray(origin?.undoStack);  // an UndoManager of Yjs
    log.states.push({ cells, how: local ? (isUndo ? "undo" : log.command) : "remote" });
  });
  const settings = jupyterapp.serviceManager.serverSettings, send = settings.fetch;
  settings.fetch = async (request, init) => {
    if (request.url.includes("cells_decide")) {
      const last = log.states.length - 1;  // since the change, only others of "Accept all" ran
      const { number, how, cell, found } = JSON.parse(await request.clone().text());
      const isApplied = ["accepted", "inserted"].includes(how);
      if (isApplied) log.applied[number] ??= { last, how, cell, found };
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
  notebook.deselectAll();
  notebook.activeCellIndex = find();
  notebook.mode = "edit";
  const { editor } = notebook.widgets[find()];
  editor.focus();
  const at = line % editor.lineCount;
  editor.setCursorPosition({ line: at, column: editor.getLine(at).length });
  return true;
}"""
COMMAND = """async ([path, command, own]) => {
  const notebook = harness.panel(path).content, at = notebook.activeCellIndex;
  const below = notebook.widgets[at + 1]?.model.sharedModel.getSource() ?? "%";
  if (command.includes("merge") && (below.startsWith("%") || !below.includes(own))) return "";
  record.command = command;
  try {
    await jupyterapp.commands.execute(command);
  } finally {
    record.command = "";
  }
  return notebook.activeCell.model.id;
}"""
CURSOR_CELLS = """path => {
  const notebook = harness.panel(path).content.model.sharedModel, { awareness } = notebook;
  const others = [...awareness.getStates()].filter(([client]) => client !== awareness.clientID);
  const types = others.flatMap(([, { cursors }]) => cursors ?? []).map(({ head }) => head?.type);
  const isIn = ({ id }, type) => id.client === type?.client && id.clock === type?.clock;
  return types.map((type) => notebook.cells.findIndex(({ ysource }) => isIn(ysource._item, type)));
}"""


# --- the agents and users -------------------------------------------------------------------------


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
        if len(read) > 1:
            return tool("notebook_propose", changes=[self._change(read)], why="It is better so.")
        ids = re.findall(r"^(\S+) \[code, \d+ lines?\] # ", last, re.MULTILINE)
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


def agents_of(server: ModelServer, seed: int) -> tuple[list[Agent], dict[str, Any]]:
    """Return three agents, and a team of them."""
    agents = [Agent(name, seed) for name in AGENTS]
    for agent in agents:
        server.script(f"m-{agent.name}", agent)
    return agents, server_team(server, **{name: f"m-{name}" for name in AGENTS})


@dataclass
class Person:
    """A user at a page.

    Attributes:
        story: The page.
        letters: The letters of the user's words: ten digits and one for both ends.
        name: The user's name in `OWN` cells, or "" for a user who is alone.
        others: The names of the other users.
        words: The words that the user has typed.
    """

    story: Story
    letters: str = "ABCDEFGHIJK"
    name: str = ""
    others: tuple[str, ...] = ()
    words: list[str] = field(default_factory=list)

    @property
    def own(self) -> str:
        return f"{OWN}{self.name}" if self.name else ""

    def start_recording(self) -> None:
        self.story.page.page.evaluate(RECORD, self.story.page.notebook)

    def cells(self) -> dict[str, str]:
        """Return the current cells."""
        return dict(self.story.page.page.evaluate("record.states.at(-1).cells"))

    def act(self, random: Random) -> str:
        """Put the cursor somewhere, and maybe give a command. Returns the word to type, or ""."""
        page, path = self.story.page.page, self.story.page.notebook
        for _ in range(random.randrange(3)):
            click = [random.choice(LABELS), random.randrange(100), random.randrange(250)]
            page.evaluate(CLICK, click)
        others = [f"{OWN}{each}" for each in self.others]
        cells = {
            id_: source
            for id_, source in self.cells().items()
            if not source.startswith("%") and not any(each in source for each in others)
        }
        chance = random.random()
        if chance < 0.35:
            cells = {id_: source for id_, source in cells.items() if self.own in source} or cells
        chosen = random.choice([*cells])
        place = [path, chosen, random.randrange(9)]
        if not page.evaluate(EDIT, place):  # it was deleted
            return ""
        if chance < 0.35:
            [command] = random.choices([*COMMANDS], [*COMMANDS.values()])
            # The lower half of a split cell would not be marked as the user's own.
            is_shared = any(each in command for each in ("undo", "split"))
            is_free = self.own in cells[chosen] and not (self.name and is_shared)
            if not is_free or not (new := page.evaluate(COMMAND, [path, command, self.own])):
                return ""
            if "insert" not in command or not page.evaluate(EDIT, [path, new, 0]):
                return ""
            page.keyboard.type(self.own or "# own cell")
        elif chance < 0.5:
            for _ in range(random.randrange(1, 4)):
                page.keyboard.press("Control+z")
            if random.random() < 0.5:
                page.keyboard.press("Control+Shift+z")
            return ""
        number = "".join(self.letters[int(each)] for each in str(len(self.words)))
        self.words.append(self.letters[10] + number + self.letters[10])
        return self.words[-1]


def type_words(people: Sequence[Person], words: Sequence[str], random: Random) -> None:
    """Type words, the keys of the users mixed, while agents and clicks are at work."""
    left = {i: [*word] for i, word in enumerate(words) if word}
    delay = random.choice([0, 5, 30])
    while left:
        i = random.choice([*left])
        page = people[i].story.page.page
        page.keyboard.press(left[i].pop(0))
        page.wait_for_timeout(delay)  # what agents do meanwhile is a part of the play
        left = {n: keys for n, keys in left.items() if keys}
    people[0].story.page.page.wait_for_timeout(random.randrange(400))


# --- what happened --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """The sources of all cells after each transaction of a page, and which one applied a change.

    Attributes:
        states: The sources by cell, in their order.
        how: By state: the user's command that led to it, "undo", "remote", or "" for others.
        applied: The index of the state after each change that this page applied, by its number.
        cells: The cell of each such change.
    """

    states: list[dict[str, str]]
    how: list[str]
    applied: dict[int, int]
    cells: dict[int, str]

    @classmethod
    def of(cls, person: Person, proposals: Mapping[int, Mapping[str, Any]]) -> Record:
        data = person.story.page.page.evaluate("record")
        states = [dict(each["cells"]) for each in data["states"]]
        done = {int(n): each for n, each in data["applied"].items()}
        applied = {
            n: applied_in(states, proposals[n], each["last"], each["how"], each["cell"])
            for n, each in done.items()
            if not each["found"]  # it was there already, such as a move to the cell's own place
        }
        cells = {n: each["cell"] for n, each in done.items() if n in applied}
        return cls(states, [each["how"] for each in data["states"]], applied, cells)

    def steps(self) -> Iterator[tuple[int, dict[str, str], dict[str, str]]]:
        """Yield the index, the state before and the state of each transaction."""
        for n, (old, new) in enumerate(pairwise(self.states), 1):
            yield n, old, new

    def changed_at(self, cell: str, after: int) -> list[int]:
        """Return the indices of the states in which a cell's content is new."""
        return [n for n, old, new in self.steps() if n > after and old.get(cell) != new.get(cell)]


def applied_in(
    states: Sequence[dict[str, str]], change: Mapping[str, Any], last: int, how: str, cell: str
) -> int:
    """Return the index of the latest state, up to `last`, to which exactly this change led."""
    op = "insert" if how == "inserted" else change["op"]
    for n in range(last, 0, -1):
        if is_change(states[n - 1], states[n], op, cell, change):
            return n
    raise AssertionError(f"no {op} of {cell}: {change}, {states[last - 1]}, {states[last]}")


def is_change(
    old: dict[str, str], new: dict[str, str], op: str, cell: str, change: Mapping[str, Any]
) -> bool:
    """Return whether a transaction did what was proposed, and nothing else."""
    rest = [each for each in old.items() if each[0] != cell]
    if rest != [each for each in new.items() if each[0] != cell]:
        return False
    before = None if op == "insert" else change["base_source"]
    after = {"delete": None, "move": before}.get(op, change["source"])
    has_place = op != "replace" or [*old] == [*new]
    is_moved = op != "move" or [*old] != [*new]
    return has_place and is_moved and (old.get(cell), new.get(cell)) == (before, after)


# --- the checks -----------------------------------------------------------------------------------


def cursor_cells(story: Story) -> list[int]:
    """Return the indices of the cells with the cursors of other users, as this page knows them."""
    found: list[int] = story.page.page.evaluate(CURSOR_CELLS, story.page.notebook)
    return found


def append_line(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(f"{line}\n")


class Play:
    """A play of users and agents in one notebook.

    Args:
        people: The users. The first one has started the run.
        agents: The agents.
        random: What the users do.

    Attributes:
        proposals: All proposals by number, once the rounds are over.
        copies: The texts that "Insert as a new cell" copied, by cell, once the rounds are over.
    """

    def __init__(self, people: Sequence[Person], agents: Iterable[Agent], random: Random) -> None:
        self.people, self.agents, self.random = [*people], [*agents], random
        self.story = self.people[0].story
        self.concurrent = set[str]()
        self.decided: list[ChangeDecided] = []
        self.proposals: dict[int, dict[str, Any]] = {}
        self.copies: dict[str, str] = {}

    def rounds(self) -> None:
        """Play all rounds, stop the run, and wait until everything is recorded."""
        for _ in range(ROUNDS):
            words = [each.act(self.random) for each in self.people]
            type_words(self.people, words, self.random)
        for agent in self.agents:
            agent.is_done = True
        self.story.page.command("nb-agents:stop-all-now")
        for person in self.people:
            expect(boxes(person.story)).to_have_count(0)
        wait = self.story.page.wait_until
        wait(lambda: not self._open_numbers(), what="all decisions")
        seen = lambda: (self._reported(), self._read_decisions())  # noqa: E731
        wait(lambda: self._reported() == self.applied(), what="the reports", seen=seen)
        wait(self._is_same, what="the same notebook on all pages")
        self.proposals = self._read_proposals()
        self.copies = self._copies()

    def check(self) -> None:
        """Check each transaction, each typed word and each accepted change."""
        self.records = [Record.of(each, self.proposals) for each in self.people]
        applied = [number for record in self.records for number in record.applied]
        assert len(applied) == len({*applied}), "a change was applied twice"
        removed = set[str]()
        for person, record in zip(self.people, self.records, strict=True):
            for n, old, new in record.steps():
                check_step(record, n, old, new, person.letters)
                removed |= self._removed(record, n, old, new)
        last = self.records[0].states[-1]
        self._check_words(removed, last)
        self._check_marks(removed, last)

    def report(self) -> str:
        """Return how much happened."""
        count = sum(len(record.applied) for record in self.records)
        commands = sum(how in COMMANDS for record in self.records for how in record.how)
        return (
            f"{ROUNDS} rounds, {len(self._words())} words, {commands} commands, {count} changes "
            f"applied, {len(self.concurrent)} words lost to a concurrent deletion or move"
        )

    def _removed(
        self, record: Record, n: int, old: dict[str, str], new: dict[str, str]
    ) -> set[str]:
        """Return the words and marks that a transaction removed. It must have been allowed to."""
        if record.how[n] == "remote":  # the other page checks it
            return set()
        every = [*self._words(), *marks(text_of(old))]
        gone = {each for each in every if self._count(each, old) > self._count(each, new)}
        is_delete = n in record.applied.values() and len(old.keys() - new.keys()) == 1
        is_allowed = record.how[n] in ("undo", "notebook:delete-cell") or is_delete
        assert not gone or is_allowed, (gone, record.how[n], old, new)
        return gone

    def _check_words(self, removed: set[str], last: dict[str, str]) -> None:
        """Each word is there once, unless a user undid it or deleted its cell.

        A page learns with a delay that another user has put the cursor into a cell. If it deletes
        or moves the cell in between, that user's keys are lost.
        """
        for person, record in zip(self.people, self.records, strict=True):
            found = {word: self._count(word, last) for word in person.words}
            assert max(found.values(), default=0) < 2, (found, last)
            lost = {word for word, number in found.items() if number == 0} - removed
            assert len(lost) <= len(taken_away(record)), (lost, last)
            self.concurrent |= lost

    def _check_marks(self, removed: set[str], last: dict[str, str]) -> None:
        """Each accepted change is present once, unless a user undid it or deleted its cell."""
        expected = set[str]()
        for number, change in self.proposals.items():
            if not any(number in record.applied for record in self.records):
                continue
            for mark in marks(change["source"]) - marks(change["base_source"] or ""):
                expected.add(mark)
                found = self._count(mark, last)
                assert found == 1 or (found == 0 and mark in removed), (mark, found, last)
        assert marks(text_of(last)) <= expected

    def _words(self) -> list[str]:
        return [word for person in self.people for word in person.words]

    def _count(self, text: str, cells: Mapping[str, str]) -> int:
        """Count a text, except where "Insert as a new cell" has copied it from another cell."""
        person = next((each for each in self.people if text[0] in each.letters), None)
        keep = person.letters if person and text[0] != "#" else ""
        copies = self.copies
        return sum(
            (only(source, keep) if keep else source).count(text)
            for cell, source in cells.items()
            if (only(copies.get(cell, ""), keep) if keep else copies.get(cell, "")).count(text) == 0
        )

    def _copies(self) -> dict[str, str]:
        """Return the texts that were copied into new cells, by cell."""
        proposals, found = self.proposals, dict[str, str]()
        for each in self.decided:
            if each.how == "inserted":
                found[each.cell] = proposals[each.number]["base_source"]
        return found

    # Decisions

    def _read_proposals(self) -> dict[int, dict[str, Any]]:
        """Return the proposals of the first turn by number."""
        return {each["number"]: each for each in self.story.events("change_proposed")}

    def _read_decisions(self) -> list[ChangeDecided]:
        """Return the decisions. A report after a stop is recorded after the turn's end."""
        turn = load_session(self.story.sessions()[0]).turns[0]
        events = [*turn.events, *late_events(turn.paths)]
        return [each for each in events if isinstance(each, ChangeDecided)]

    def applied(self) -> set[int]:
        """Return the numbers of the changes that the session counts as applied."""
        self.decided = self._read_decisions()
        return {each.number for each in self.decided if each.how in ("accepted", "inserted")}

    def _open_numbers(self) -> set[int]:
        return self._read_proposals().keys() - {each.number for each in self._read_decisions()}

    def _reported(self) -> set[int]:
        pages = [each.story.page.page for each in self.people]
        found = [page.evaluate("Object.keys(record.applied)") for page in pages]
        return {int(number) for numbers in found for number in numbers}

    def _is_same(self) -> bool:
        first, *rest = (person.cells() for person in self.people)
        return all([*first.items()] == [*each.items()] for each in rest)

    # Rewinds

    def rewinds(self) -> list[int]:
        """Rewind to checkpoints, latest first, and check the cells. Returns the checkpoints.

        Of the checkpoints between two accepted changes, which are all the same for cells, only the
        last one is used.
        """
        session = self.story.sessions()[0]
        points = [each.seq for each in checkpoints_of(load_session(session).turns[0].events)]
        seqs = {each.number: each.seq or points[-1] for each in self.decided}
        remaining = {number for record in self.records for number in record.applied}
        self._leave_cells()
        chosen = different_points(points, [seqs[each] for each in remaining])
        count = min(REWINDS, len(chosen))
        done = list[int]()
        for turn, point in enumerate(sorted(self.random.sample(chosen, count), reverse=True), 2):
            after = {number for number in remaining if seqs[number] > point}
            reverted = self._rewind(turn, point, after)
            assert reverted <= after
            remaining -= reverted
            done.append(point)
        return done

    def _leave_cells(self) -> None:
        """Put all cursors into the first cell. A cell with a cursor is not removed or moved."""
        first = next(iter(self.people[0].cells()))
        for person in self.people:
            place = [person.story.page.notebook, first, 0]
            assert person.story.page.page.evaluate(EDIT, place)
        if len(self.people) > 1:
            self.story.page.wait_until(
                lambda: {*cursor_cells(self.story)} == {0}, what="cursors in the first cell"
            )

    def _rewind(self, turn: int, point: int, after: set[int]) -> set[int]:
        """Rewind to a checkpoint and check the cells. Returns the changes that were taken back."""
        record = Record.of(self.people[0], self.proposals)
        name = self.story.sessions()[0].name
        self.story.run(f"%agents rewind {name}/1 --to {point}", wait=False)
        [event] = self._wait_event("changes_reverted" if after else "turn_started", turn)
        found, last = self.people[0].cells(), record.states[-1]
        self._check_rewind(record, after, found)
        shown = [word for word in self._words() if self._count(word, last)]
        assert [word for word in shown if not self._count(word, found)] == []
        self.story.page.command("nb-agents:stop-all-now")
        self._wait_event("turn_ended", turn)
        return {int(each.split("/")[1]) for each in event.get("changes", [])} & after

    def _wait_event(self, kind: str, turn: int) -> list[dict[str, Any]]:
        """Wait until the journal of a turn has an event. Returns the events of the kind."""
        journal = self.story.turn(turn) / "events.jsonl"
        found: list[dict[str, Any]] = self.story.page.wait_until(
            lambda: journal.exists() and self.story.events(kind, turn),
            what=f"{kind} in turn {turn}",
            seen=self.story.page.output_text,
        )
        return found

    def _check_rewind(self, record: Record, after: set[int], found: dict[str, str]) -> None:
        """The cells are as at the checkpoint, and those that users edited since are unchanged.

        Args:
            record: What happened before the rewind.
            after: The numbers of the changes after the checkpoint.
            found: The cells after the rewind.
        """
        last, changes = record.states[-1], self._changes(after)
        for cell in last.keys() | changes.keys():
            source = self._expected_source(record, cell, changes.get(cell, []))
            assert found.get(cell) == source, (cell, last.get(cell), source, changes.get(cell))
        numbers = after & record.applied.keys()
        if numbers != after or not after:
            return
        index = min(record.applied[each] for each in after)
        first, others = record.states[index - 1], [how for r in self.records[1:] for how in r.how]
        by_users = {*record.how[index:], *others} & {*COMMANDS, "undo"}
        is_as_before = all(found.get(cell) == first.get(cell) for cell in changes)
        if is_as_before and not by_users:
            order = [each for each in first if each in found]
            assert [cell for cell in found if cell in first] == order

    def _changes(self, numbers: set[int]) -> dict[str, list[tuple[int, str | None, str | None]]]:
        """Return the number, source before and source after of changes, oldest first, by cell."""
        proposals, found = self.proposals, dict[str, list[tuple[int, str | None, str | None]]]()
        for each in sorted(self.decided, key=lambda event: event.at):
            if each.number not in numbers or each.how not in ("accepted", "inserted"):
                continue
            change = proposals[each.number]
            op = "insert" if each.how == "inserted" else change["op"]
            before = None if op == "insert" else change["base_source"]
            left = {"delete": None, "move": before}.get(op, change["source"])
            found.setdefault(each.cell, []).append((each.number, before, left))
        return found

    def _expected_source(
        self,
        record: Record,
        cell: str,
        changes: Sequence[tuple[int, str | None, str | None]],
    ) -> str | None:
        """Return the content of a cell after a rewind. None means no cell.

        Args:
            record: What happened before the rewind.
            cell: The cell.
            changes: The changes of the cell that the rewind takes back.
        """
        found = record.states[-1].get(cell)
        indices = [record.applied[n] for n, _, _ in changes if n in record.applied]
        edits = [record.applied.get(n) for n, before, after in changes if before != after]
        if len(indices) == len(changes) and indices:
            if record.changed_at(cell, indices[0] - 1) == edits:
                return record.states[indices[0] - 1].get(cell)  # only agents have changed it
        for _, before, after in reversed(changes):
            if found == after:
                found = before
            elif found != before:
                break
        return found


def taken_away(record: Record) -> list[int]:
    """Return the states in which another page deleted or moved the cell where the user typed."""
    found, cell = list[int](), ""
    for n, old, new in record.steps():
        changed = [each for each in new if old.get(each) != new[each]]
        if record.how[n] == "" and n not in record.applied.values():
            cell = changed[0]
        before = [each for each in old if each in new]
        after = [each for each in new if each in old]
        is_moved = before != after and without(before, cell) == without(after, cell)
        if record.how[n] == "remote" and cell and (cell not in new or is_moved):
            found.append(n)
            cell = ""
    return found


def check_step(
    record: Record, n: int, old: dict[str, str], new: dict[str, str], letters: str
) -> None:
    """A transaction did only what the user or an agent asked for."""
    how = record.how[n]
    if n in record.applied.values() or how in ("undo", "remote"):
        return
    context = (n, how, old, new)
    added, gone = new.keys() - old.keys(), old.keys() - new.keys()
    if "insert" in how:
        assert not gone and [new[each] for each in added] == [""], context
        assert [each for each in new.items() if each[0] in old] == [*old.items()], context
    elif "move" in how:
        assert new == old, context
    elif "delete" in how:
        assert len(gone) == 1 and not added, context
        assert [*new.items()] == [each for each in old.items() if each[0] in new], context
    elif "split" in how or "merge" in how:
        assert Counter(text_of(old).split()) == Counter(text_of(new).split()), context
    else:
        assert [*old] == [*new], context
        [cell] = [each for each in old if old[each] != new[each]]
        typed = inserted_text(old[cell], new[cell])
        assert typed is not None and {*typed} <= {*letters, *OWN, *"adkim"}, context


def without(cells: Iterable[str], cell: str) -> list[str]:
    return [each for each in cells if each != cell]


def inserted_text(old: str, new: str) -> str | None:
    """Return the text that was inserted at one place, or None if something else changed."""
    size = len(new) - len(old)
    for i in range(len(old) + 1):
        if new[:i] == old[:i] and new[i + size :] == old[i:]:
            return new[i : i + size] if size > 0 else None
    return None


def different_points(points: Sequence[int], decided: Iterable[int]) -> list[int]:
    """Return the last one of each group of checkpoints between the same decisions."""
    numbers = sorted(decided)
    groups = {sum(each > point for each in numbers): point for point in sorted(points)}
    return [*groups.values()]


def marks(text: str) -> set[str]:
    return {*re.findall(r"# \w+-\d+\.", text)}


def only(text: str, letters: str) -> str:
    """Return the letters of a text, line by line."""
    return "".join(each for each in text if each in letters or each == "\n")


def text_of(cells: Mapping[str, str]) -> str:
    return "\n".join(cells.values())
