"""Rows from all kinds of sources."""

import json
import sys
from pathlib import Path
from typing import Any

import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nb_agents.errors import UserError
from nb_agents.extensions.sweeps import source
from nb_agents.extensions.sweeps.source import VALUE, read_rows

RECORDS = [{"id": 1, "q": "Why?"}, {"id": 2, "q": "How?"}]


def values(given: Any) -> list[dict[str, Any]]:
    return [dict(row.values) for row in read_rows(given)]


def test_csv_has_texts_by_column(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text('\ufeffid,q\n1,"Why,\nthough?"\n2,Ärger\n3\n', encoding="utf-8")
    assert values(file) == [
        {"id": "1", "q": "Why,\nthough?"},
        {"id": "2", "q": "Ärger"},
        {"id": "3", "q": ""},
    ]


@pytest.mark.parametrize(
    "text, rows",
    [
        ("q\nWhy; or not?\n", [{"q": "Why; or not?"}]),
        ("the question; as asked\nWhy?\n", [{"the question; as asked": "Why?"}]),
        ("a;b\nno separator\n", [{"a;b": "no separator"}]),
        ("a|b,c\n1|2,3\n", [{"a|b": "1|2", "c": "3"}]),
        ('"a;b"\n"1;2"\n', [{"a;b": "1;2"}]),
        ("a,b,\n1,2,\n", [{"a": "1", "b": "2", "": ""}]),
    ],
)
def test_other_separators_inside_values_are_text(
    tmp_path: Path, text: str, rows: list[dict[str, str]]
) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(text)
    assert values(file) == rows


def test_data_frame_with_duplicate_columns_is_refused() -> None:
    frame = pandas.DataFrame([[1, 2]], columns=["a", "a"])
    with pytest.raises(UserError, match=r"has two columns 'a'\. Rename one of them\."):
        read_rows(frame)


def test_jsonl_keeps_types_and_skips_empty_lines(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"n": 1, "more": [1, {"a": null}]}\n\n{"n": 2.5}\n"plain"\n')
    assert values(str(file)) == [{"n": 1, "more": [1, {"a": None}]}, {"n": 2.5}, {VALUE: "plain"}]


def test_mappings_plain_values_and_generators_are_rows() -> None:
    assert values(RECORDS) == RECORDS
    assert values(each for each in RECORDS) == RECORDS
    assert values(["a", 2]) == [{VALUE: "a"}, {VALUE: 2}]


def test_data_frame_has_columns_with_python_types(tmp_path: Path) -> None:
    frame = pandas.DataFrame(RECORDS)
    assert values(frame) == RECORDS
    assert json.dumps(values(frame))


def test_parquet_file_and_data_frame_give_the_same_rows(tmp_path: Path) -> None:
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


def test_parquet_errors_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        ("rows.txt", "a\n1\n", "has .txt. Supported suffixes are .csv, .jsonl, .parquet"),
        ("rows.csv", "a,b\n", " has no rows."),
        ("rows.csv", "a,b\n1,2,3\n", "rows.csv:2 has more values than columns"),
        ("rows.jsonl", '{"a": 1}\n{"a"\n', "rows.jsonl:2 is not valid JSON"),
        ("rows.csv", b"a\n\xff\n", "is not UTF-8 text"),
        ("rows.csv", "a,b,a\n1,2,3\n", "rows.csv has two columns 'a'. Rename one of them."),
        ("rows.csv", "a,,\n1,2,3\n", "rows.csv has two columns ''. Rename one of them."),
        (
            "rows.csv",
            "sep=,\na,b\n1,2\n",
            "starts with a separator line for Excel ('sep=,'). Remove this line.",
        ),
        ("rows.jsonl", '{"a": 1, "b": {"c": 1, "c": 2}}\n', "rows.jsonl:1 has the key 'c' twice"),
        (
            "rows.csv",
            "id;q;more\n1;Why?;a\n",
            "uses semicolons as separators. Save it with",
        ),
        ("rows.csv", "id\tq\n1\tWhy, then?\n", "uses tabs as separators. Save it with commas."),
        ("rows.csv", "id|q\n1|Why?\n", "uses bars (|) as separators. Save it with commas."),
        (
            "rows.csv",
            "sep=;\nid;q\n1;Why?\n",
            "uses semicolons as separators. Save it with",
        ),
    ],
)
def test_unreadable_sources_are_reported(
    tmp_path: Path, name: str, text: str | bytes | None, says: str
) -> None:
    file = tmp_path / name
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError) as caught:
        read_rows(file)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_source_without_rows_or_with_too_many_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for wrong in (7, {"a": 1}):
        with pytest.raises(UserError, match="has no rows"):
            read_rows(wrong)
    monkeypatch.setattr(source, "MAX_ROWS", 3)
    with pytest.raises(UserError, match="more than 3 rows"):
        read_rows(range(4))


_cells = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
_records = st.dictionaries(st.text(min_size=1), _cells, min_size=1, max_size=4)


@given(st.lists(_records, min_size=1, max_size=12), st.randoms())
def test_name_of_a_row_is_unique_and_derived_from_its_values(
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
