"""`nb-agents blame` names who changed each line of a notebook."""

from __future__ import annotations

from tests.kit.notebook_cells import AppliedChange, Cell, blamed_lines


def cell(source: str, name: str = "a") -> Cell:
    return Cell(id=name, type="code", source=source)


def change(
    number: int, before: str, after: str, agent: str = "ada", op: str = "replace"
) -> AppliedChange:
    return AppliedChange(
        turn=1, number=number, op=op, cell="a", before=before, after=after, agent=agent
    )


def authors(source: str, *changes: AppliedChange) -> list[str]:
    by_line = {each.line: each.change.agent for each in blamed_lines([cell(source)], changes)}
    return [by_line.get(n, "") for n in range(1, len(source.splitlines()) + 1)]


def test_only_the_lines_that_an_agent_changed_are_its() -> None:
    assert authors("x\nY\nz", change(1, "x\ny\nz", "x\nY\nz")) == ["", "ada", ""]


def test_later_change_of_another_agent_takes_over_its_lines() -> None:
    first = change(1, "x", "x\na1\na2")
    assert authors("x\na1\nb", first, change(2, "x\na1\na2", "x\na1\nb", "ben")) == [
        "",
        "ada",
        "ben",
    ]


def test_line_that_the_user_edited_or_added_is_the_users() -> None:
    inserted = change(1, "", "a1\na2\na3", op="insert")
    assert authors("mine\na1\na2  # mine\na3", inserted) == ["", "ada", "", "ada"]


def test_users_edit_between_two_changes_is_the_users() -> None:
    changes = change(1, "x", "x\na"), change(2, "x\na\nmine", "x\na\nmine\nb", "ben")
    assert authors("x\na\nmine\nb", *changes) == ["", "ada", "", "ben"]


def test_cells_of_other_notebooks_are_left_out() -> None:
    assert blamed_lines([cell("a1", "other")], [change(1, "", "a1", op="insert")]) == []
