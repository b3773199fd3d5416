"""Rows, from whatever holds them."""

import json
import sys
from pathlib import Path
from typing import Any

import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nb_agents.errors import UserError
from nb_agents.sweeps import source
from nb_agents.sweeps.source import VALUE, read_rows

RECORDS = [{"id": 1, "q": "Why?"}, {"id": 2, "q": "How?"}]


def values(given: Any) -> list[dict[str, Any]]:
    return [dict(row.values) for row in read_rows(given)]


def test_a_csv_gives_texts_by_column(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text('\ufeffid,q\n1,"Why,\nthough?"\n2,Ärger\n3\n', encoding="utf-8")
    assert values(file) == [
        {"id": "1", "q": "Why,\nthough?"},
        {"id": "2", "q": "Ärger"},
        {"id": "3", "q": ""},
    ]


def test_jsonl_keeps_types_and_leaves_empty_lines_out(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"n": 1, "more": [1, {"a": null}]}\n\n{"n": 2.5}\n"plain"\n')
    assert values(str(file)) == [{"n": 1, "more": [1, {"a": None}]}, {"n": 2.5}, {VALUE: "plain"}]


def test_mappings_plain_values_and_generators_are_rows() -> None:
    assert values(RECORDS) == RECORDS
    assert values(each for each in RECORDS) == RECORDS
    assert values(["a", 2]) == [{VALUE: "a"}, {VALUE: 2}]


def test_a_data_frame_gives_its_columns_with_pythons_types(tmp_path: Path) -> None:
    frame = pandas.DataFrame(RECORDS)
    assert values(frame) == RECORDS
    assert json.dumps(values(frame))


def test_a_parquet_file_and_a_data_frame_give_the_same_rows(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    frame = pandas.DataFrame(
        {
            "q": ["Why?", None],
            "n": [1, None],
            "at": [pandas.Timestamp("2026-11-20"), None],
            "many": [["a", "b"], []],
            "more": [{"a": 1}, None],
        }
    )
    frame.to_parquet(file)
    given = {"q": "Why?", "n": 1.0, "at": "2026-11-20T00:00:00", "many": ["a", "b"]}
    missing = {"q": None, "n": None, "at": None, "many": [], "more": None}
    assert values(frame) == values(file) == [{**given, "more": {"a": 1}}, missing]


def test_a_parquet_file_without_pyarrow_or_that_is_none_is_said_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rows.parquet"
    file.write_text("no")
    with pytest.raises(UserError, match=r"rows\.parquet is not a Parquet file") as told:
        read_rows(file)
    assert "\n" not in str(told.value)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match="need pandas and pyarrow: `pip install pandas pyarrow`"):
        read_rows(file)


@pytest.mark.parametrize(
    "name, text, says",
    [
        ("none.csv", None, "can't be read: No such file"),
        ("rows.txt", "a\n1\n", "has .txt; a file of rows has one of .csv, .jsonl, .parquet"),
        ("rows.csv", "a,b\n", "There are no rows in"),
        ("rows.csv", "a,b\n1,2,3\n", "rows.csv:2 has more values than there are columns"),
        ("rows.jsonl", '{"a": 1}\n{"a"\n', "rows.jsonl:2 is not valid JSON"),
        ("rows.csv", b"a\n\xff\n", "is not UTF-8 text"),
    ],
)
def test_what_can_not_be_read_is_said_in_a_sentence(
    tmp_path: Path, name: str, text: str | bytes | None, says: str
) -> None:
    file = tmp_path / name
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError) as caught:
        read_rows(file)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_has_no_rows_and_what_has_too_many_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for wrong in (7, {"a": 1}):
        with pytest.raises(UserError, match="has no rows"):
            read_rows(wrong)
    monkeypatch.setattr(source, "MAX_ROWS", 3)
    with pytest.raises(UserError, match="over 3 rows"):
        read_rows(range(4))


_cells = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
_records = st.dictionaries(st.text(min_size=1), _cells, min_size=1, max_size=4)


@given(st.lists(_records, min_size=1, max_size=12), st.randoms())
def test_a_rows_name_is_its_own_and_follows_from_its_values(
    records: list[dict[str, Any]], random: Any
) -> None:
    rows = read_rows(records)
    names = [row.name for row in rows]
    assert len(set(names)) == len(names)
    assert all(name == Path(name).name and len(name) < 64 and name.isascii() for name in names)
    shuffled = records.copy()
    random.shuffle(shuffled)
    assert {row.name for row in read_rows(shuffled)} == set(names)
    assert set(names) <= {row.name for row in read_rows([*records, {"one": "more"}])}
