"""A rewind takes back exactly what agents changed after its checkpoint."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.notebook_cells import (
    AppliedChange,
    Cell,
    ChangeDecided,
    ChangeProposed,
    ChangesReverted,
    TurnRecord,
    applied_changes,
    apply_changes,
    apply_steps,
    cells_in,
    changes_after,
    plan_revert,
)

AGENTS = ("ada", "ben", "eve")
Notebook = dict[str, Any]


def cell(name: str, source: str, **fields: Any) -> Cell:
    return Cell(id=name, type="code", source=source, **fields)


def change(number: int, op: str, name: str, before: str, after: str, **more: Any) -> AppliedChange:
    return AppliedChange(
        turn=1, number=number, op=op, cell=name, before=before, after=after, agent="ada", **more
    )


def test_changes_of_one_cell_are_taken_back_together() -> None:
    changes = [change(1, "replace", "a", "x", "y"), change(2, "replace", "a", "y", "z")]
    plan = plan_revert([cell("a", "z")], changes)
    [step] = plan.steps
    assert (step.op, step.base, step.source, step.changes) == ("replace", "z", "x", ("1/2", "1/1"))
    assert not plan.kept


def test_cell_that_the_user_has_edited_stays_and_is_listed_with_a_diff() -> None:
    plan = plan_revert([cell("a", "y  # mine")], [change(1, "replace", "a", "x", "y")])
    assert not plan.steps
    [kept] = plan.kept
    assert (kept.cell, kept.agent, kept.why) == ("a", "ada", "edited")
    assert "-y  # mine\n+x" in kept.diff


def test_agents_change_after_the_users_edit_is_taken_back_to_that_edit() -> None:
    changes = [
        change(1, "replace", "a", "x", "y"),
        change(2, "replace", "a", "y  # mine", "z"),
    ]
    plan = plan_revert([cell("a", "z")], changes)
    [step] = plan.steps
    assert step.source == "y  # mine" and step.changes == ("1/2",)
    assert [each.cell for each in plan.kept] == ["a"]


def test_change_that_the_user_has_undone_needs_no_step() -> None:
    plan = plan_revert([cell("a", "x")], [change(1, "replace", "a", "x", "y")])
    assert (plan.steps, plan.kept, plan.done) == ((), (), ("1/1",))


def test_deleted_cell_returns_below_its_nearest_neighbour_with_its_outputs() -> None:
    removed = {"id": "b", "cell_type": "code", "outputs": [{"text": "42"}], "metadata": {"m": 1}}
    deleted = change(
        1, "delete", "b", "x = 1", "", removed=json.dumps(removed), above=("gone", "a")
    )
    notebook = {"cells": [{"id": "a", "cell_type": "code", "source": ""}], "nbformat": 4}
    restored = apply_steps(notebook, plan_revert(cells_in(notebook), [deleted]))
    assert [each["id"] for each in restored["cells"]] == ["a", "b"]
    assert restored["cells"][1] == {**removed, "source": "x = 1", "execution_count": None}


def test_moved_cell_returns_unless_the_user_has_moved_it_again() -> None:
    moved = change(1, "move", "b", "", "", above=("a",), moved_below="c")
    after_move = [cell("a", ""), cell("c", ""), cell("b", "")]
    [step] = plan_revert(after_move, [moved]).steps
    assert (step.op, step.cell, step.after) == ("move", "b", "a")
    assert not plan_revert([cell("b", ""), cell("a", ""), cell("c", "")], [moved]).steps


def test_cell_that_was_already_at_the_proposed_place_stays_there() -> None:
    events = [
        ChangeProposed(agent="ada", number=1, group=1, op="move", cell="b", after="a", seq=1, at=1),
        ChangeDecided(number=1, how="accepted", cell="b", is_found=True, seq=2, at=2),
    ]
    plan = plan_revert([cell("a", ""), cell("b", "")], applied_changes([TurnRecord(1, events)]))
    assert (plan.steps, plan.done) == ((), ("1/1",))


def test_cell_that_is_gone_is_listed() -> None:
    [kept] = plan_revert([], [change(1, "replace", "a", "x", "y")]).kept
    assert kept.why == "gone"
    assert not plan_revert([], [change(1, "insert", "a", "", "y")]).kept


def test_changes_that_were_taken_back_are_not_listed_again() -> None:
    events = [
        ChangeProposed(agent="ada", number=1, group=1, op="insert", source="x", seq=1, at=1),
        ChangeDecided(number=1, how="accepted", cell="a", seq=2, at=2),
    ]
    [found] = applied_changes([TurnRecord(1, events)])
    assert (found.name, found.cell, found.after) == ("1/1", "a", "x")
    reverted = TurnRecord(2, [ChangesReverted(changes=("1/1",), seq=5, at=3)])
    assert not applied_changes([TurnRecord(1, events), reverted])


def test_decision_after_the_end_belongs_to_the_last_checkpoint_of_its_turn() -> None:
    proposed = [
        ChangeProposed(agent="ada", number=n, group=n, op="insert", source="x", seq=n, at=n)
        for n in (1, 2)
    ]
    late = [ChangeDecided(number=1, how="accepted", cell="a", at=9)]
    turns = [TurnRecord(1, proposed, late)]
    changes = applied_changes(turns)
    assert not changes_after(changes, turns, 1, 2)
    assert changes_after(changes, turns, 1, 1) == changes


@dataclass
class World:
    """A notebook that a user and three agents change, with the journal of one turn.

    Attributes:
        notebook: The notebook's JSON.
        events: The events.
        open: The proposals without a decision.
        edited: The source of each cell after the user's last edit, with the step of that edit.
        boundaries: The number of the last event and a copy of the notebook, at each boundary.
    """

    notebook: Notebook
    events: list[Any] = field(default_factory=list)
    open: list[ChangeProposed] = field(default_factory=list)
    edited: dict[str, tuple[int, str]] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    boundaries: list[tuple[int, Notebook]] = field(default_factory=list)
    count: int = 0

    @property
    def cells(self) -> list[Any]:
        return list(self.notebook["cells"])

    def emit(self, event: type[Any], **fields: Any) -> Any:
        seq = len(self.events) + 1
        self.events.append(event(**fields, seq=seq, at=float(seq)))
        return self.events[-1]

    def text(self, who: str) -> str:
        self.count += 1
        return f"{who} {self.count}\nsecond line {self.count}"

    def new_cell(self, source: str) -> Any:
        self.count += 1
        name = f"cell{self.count}"
        self.edited[name] = (len(self.events), source)
        return {
            "id": name,
            "cell_type": "code",
            "source": source,
            "metadata": {"n": self.count},
            "execution_count": self.count,
            "outputs": [{"output_type": "stream", "name": "stdout", "text": name}],
        }

    def set_by_user(self, each: Any, source: str) -> None:
        each["source"] = source
        self.edited[each["id"]] = (len(self.events), source)


def world() -> World:
    made = World({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    made.notebook["cells"] = [made.new_cell(made.text("start")) for _ in range(4)]
    made.edited = {name: (-1, source) for name, (_, source) in made.edited.items()}
    return made


def user_acts(w: World, what: str, i: int, j: int) -> None:
    cells = w.notebook["cells"]
    if what == "insert" or not cells:
        cells.insert(j % (len(cells) + 1), w.new_cell(w.text("user")))
        return
    each = cells[i % len(cells)]
    if what == "edit":
        w.set_by_user(each, f"{each['source']}\n{w.text('user')}")
    elif what == "delete":
        cells.remove(each)
        w.deleted.add(each["id"])
    elif what == "move":
        cells.remove(each)
        cells.insert(j % (len(cells) + 1), each)
    elif what == "split":  # as JupyterLab does: the lower half keeps the id
        upper, _, lower = each["source"].partition("\n")
        cells.insert(cells.index(each), w.new_cell(upper))
        w.set_by_user(each, lower)
    elif what == "merge" and len(cells) > 1:  # as JupyterLab does: the result has a new id
        other = cells[(cells.index(each) + 1) % len(cells)]
        cells[cells.index(each)] = w.new_cell(f"{each['source']}\n{other['source']}")
        cells.remove(other)
        w.deleted |= {each["id"], other["id"]}


def agent_proposes(w: World, agent: str, op: str, i: int) -> None:
    cells = w.cells
    number = 1 + sum(isinstance(each, ChangeProposed) for each in w.events)
    fields: dict[str, Any] = {"agent": agent, "number": number, "group": number}
    if op == "insert" or not cells:
        after = cells[i % len(cells)]["id"] if cells else ""
        fields |= {"op": "insert", "after": after, "source": w.text(agent)}
    else:
        [read] = [c for c in cells_in(w.notebook) if c.id == cells[i % len(cells)]["id"]]
        source = w.text(agent) if op == "replace" else ""
        fields |= {"op": op, "cell": read.id, "base": read.digest, "base_source": read.source}
        fields["source"] = source
    w.open.append(w.emit(ChangeProposed, **fields))


def user_accepts(w: World, i: int) -> None:
    if not w.open:
        return
    proposal = w.open.pop(i % len(w.open))
    applied = apply_changes(w.notebook, [proposal])
    w.notebook = applied.notebook
    if not applied.done:
        w.emit(ChangeDecided, number=proposal.number, how="stale")
        return
    removed, above = applied.before[proposal.number]
    name = applied.done[proposal.number]
    w.emit(
        ChangeDecided,
        number=proposal.number,
        how="accepted",
        cell=name,
        removed=removed,
        above=above,
    )


NUMBERS = st.integers(0, 9)
ACTIONS = st.one_of(
    st.tuples(
        st.just("user"),
        st.sampled_from(["edit", "edit", "insert", "delete", "move", "split", "merge"]),
        NUMBERS,
        NUMBERS,
    ),
    st.tuples(
        st.just("agent"),
        st.sampled_from(AGENTS),
        st.sampled_from(["insert", "replace", "replace", "delete"]),
        NUMBERS,
    ),
    st.tuples(st.just("accept"), NUMBERS),
    st.tuples(st.just("boundary")),
)


def act(w: World, action: tuple[Any, ...]) -> None:
    match action:
        case ("user", what, i, j):
            user_acts(w, what, i, j)
        case ("agent", agent, op, i):
            agent_proposes(w, agent, op, i)
        case ("accept", i):
            user_accepts(w, i)
        case ("boundary",) if w.events:
            w.boundaries.append((len(w.events), json.loads(json.dumps(w.notebook))))


@settings(max_examples=300, deadline=None)
@given(st.lists(ACTIONS, min_size=5, max_size=60))
def test_rewind_restores_the_agents_cells_of_each_boundary_and_leaves_the_users(
    actions: list[tuple[Any, ...]],
) -> None:
    w = world()
    for action in actions:
        act(w, action)
    turns = [TurnRecord(1, w.events)]
    for point, then in w.boundaries:
        changes = changes_after(applied_changes(turns), turns, 1, point)
        plan = plan_revert(cells_in(w.notebook), changes)
        result = apply_steps(w.notebook, plan)
        check(w, point, changes, then, result)
        assert_no_steps_remain(w, result, changes, {each.cell for each in plan.kept})


def check(
    w: World, point: int, changes: list[AppliedChange], then: Notebook, result: Notebook
) -> None:
    """Compare a rewound notebook with that of the boundary and with the user's edits since."""
    now = {each["id"]: each for each in w.cells}
    before = {each["id"]: each for each in then["cells"]}
    after = {each["id"]: each for each in result["cells"]}
    assert len(after) == len(result["cells"])
    by_agents = {each.cell for each in changes}
    for name in {*now, *before, *after}:
        step, source = w.edited.get(name, (-1, ""))
        if name in w.deleted:
            assert name not in after
        elif name not in by_agents:
            assert after.get(name) == now.get(name)  # outputs and metadata included
        elif step >= point:
            # The user has edited it since: what agents changed after that edit is taken back.
            assert after[name]["source"] == source
        elif name in before:
            assert after[name]["source"] == before[name]["source"]
            assert after[name]["outputs"] == before[name]["outputs"]
            assert after[name]["metadata"] == before[name]["metadata"]
        else:
            assert name not in after
    untouched = [each["id"] for each in w.cells if each["id"] not in by_agents]
    assert [each["id"] for each in result["cells"] if each["id"] not in by_agents] == untouched


def assert_no_steps_remain(
    w: World, result: Notebook, changes: list[AppliedChange], kept: set[str]
) -> None:
    """A rewind that is applied twice does nothing the second time."""
    again = plan_revert(cells_in(result), [each for each in changes if each.cell not in kept])
    assert not again.steps
