"""Parsing YAML and JSON: every error is a sentence with its position."""

import json
import os
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from nb_agents.config import document
from nb_agents.config.document import (
    TEAM_FILE,
    Document,
    Position,
    expand,
    front_matter,
    unset_variable,
)
from nb_agents.errors import ConfigError


def written(folder: Path, text: str | bytes, name: str = "team.yaml") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def load_document(path: Path) -> Document:
    return document.parse_document(document.read_source(path, TEAM_FILE), str(path), TEAM_FILE)


def refused(path: Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_document(path)
    return caught.value


MALFORMED = [
    ("agents: [\n", 2),
    ("a: 1\nb: 'open\n", 3),
    ("a: 1\n  b: 2\n", 2),
    ("a: 1\n\tb: 2\n", 2),
    ("a: *nobody\n", 1),
    ("a: !strange 1\n", 1),
    ("a: 1\n---\nb: 2\n", 2),
]


@pytest.mark.parametrize("text, line", MALFORMED)
def test_malformed_yaml_error_has_its_line(tmp_path: Path, text: str, line: int) -> None:
    error = refused(written(tmp_path, text))
    assert (error.line, error.file) == (line, str(tmp_path / "team.yaml"))
    assert error.column is not None
    assert str(error).startswith(f"{error.file}:{line}:")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "- a\n- b\n",
        "just words",
        "agents: 2024-99-99\n",
        "a: !!int abc\n",
        "a: !!timestamp soon\n",
        "? [a, b]\n: 1\n",
        "? {a: b}\n: 1\n",
        "a: \0\n",
        "a: &x [*x]\n",
        "a: " + "[" * 1000,
        '{"a": ' * 100_000,
        "a: " + "9" * 5000,
        b"\xff\xfe\x00",
        b"a: \xe9\n",
    ],
    ids=lambda t: repr(t[:20]),
)
def test_only_mappings_of_plain_values_are_accepted(tmp_path: Path, text: str | bytes) -> None:
    refused(written(tmp_path, text))


def test_duplicate_key_error_has_both_positions(tmp_path: Path) -> None:
    error = refused(written(tmp_path, "agents: []\nui: {a: 1,\n     a: 2}\n"))
    assert (error.line, error.column) == (3, 6)
    assert "'a'" in error.message and "line 2" in error.message


def test_duplicate_key_in_json_is_an_error(tmp_path: Path) -> None:
    assert refused(written(tmp_path, '{"a": 1,\n\t"a": 2}', "team.json")).line == 2


BILLIONS = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
)


def test_alias_bomb_is_rejected_quickly(tmp_path: Path) -> None:
    assert "values" in refused(written(tmp_path, BILLIONS)).message


def test_anchors_and_merges_work(tmp_path: Path) -> None:
    text = "base: &b {type: demo}\nagent: {backend: {<<: *b, model: m}}\n"
    data = load_document(written(tmp_path, text)).data
    assert data["agent"]["backend"] == {"type": "demo", "model": "m"}


def test_positions_match_the_file(tmp_path: Path) -> None:
    found = load_document(written(tmp_path, "ui: {}\nagents:\n  - id: a\n    backend: {type: b}\n"))
    assert found.place(("agents", 0, "id")) == Position(3, 9)
    assert found.place(("agents", 0, "id"), key=True) == Position(3, 5)
    assert found.place(("agents", 0, "backend", "type")) == Position(4, 21)
    # A missing part has the position of the section that lacks it.
    assert found.place(("agents", 0, "backend", "model")) == Position(4, 14)
    assert found.place(("nothing",)) == Position(1, 1)


def test_json_with_tabs_and_escapes_is_parsed_as_json(tmp_path: Path) -> None:
    text = '{\n\t"a": "\\ud83d\\ude00 \\/ \\"q\\" \\\\",\n\t"b": {"c":1}\n}'
    found = load_document(written(tmp_path, text, "team.json"))
    assert found.data == json.loads(text)
    assert found.data["a"].startswith("😀 /")
    assert found.place(("b", "c")) == Position(3, 12)


def test_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    for text in (b"\xef\xbb\xbfa: 1", b'\xef\xbb\xbf{"a": 1}'):
        assert load_document(written(tmp_path, text)).data == {"a": 1}


def test_set_variables_are_expanded_in_all_strings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHO", "ada")
    monkeypatch.delenv("NOBODY", raising=False)
    text = "${WHO}: ${WHO}\nlist: ['hello ${WHO}', {deep: '${NOBODY}'}, 3, null]\n"
    data = load_document(written(tmp_path, text)).data
    assert data == {"${WHO}": "ada", "list": ["hello ada", {"deep": "${NOBODY}"}, 3, None]}
    assert unset_variable("a ${NOBODY} b") == "NOBODY"
    assert unset_variable("$NOBODY {x}") == ""


def test_expanded_values_are_not_expanded_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ONE", "${TWO}")
    monkeypatch.setenv("TWO", "secret")
    assert expand("${ONE}") == "${TWO}"


def test_missing_file_error_names_the_working_directory(tmp_path: Path) -> None:
    error = refused(tmp_path / "nothing.yaml")
    assert "No such file" in error.message and str(Path.cwd()) in error.message


@pytest.mark.parametrize("path", ["with\0nul", "half\ud800pair", "x" * 300, ""])
def test_invalid_path_is_an_error(path: str) -> None:
    assert str(refused(Path(path))).encode()


def test_directory_or_pipe_is_rejected_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "team.yaml" / "below"):
        refused(path)


def test_too_large_file_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "big.yaml", "wb") as file:
        file.truncate(document.MAX_FILE_BYTES + 1)
    assert "Larger" in refused(tmp_path / "big.yaml").message


@pytest.mark.parametrize(
    "text", ["key: *hunter2secret", "key: !hunter2secret x", "key: !hunter2!s x"]
)
def test_error_does_not_repeat_a_password_that_looks_like_yaml(tmp_path: Path, text: str) -> None:
    assert "hunter2" not in str(refused(written(tmp_path, text)))


@pytest.mark.parametrize(
    "head", ["a: !!bool maybe", "a: 1\na: 2", "a: [", "- a", "{[x]: 1}", BILLIONS], ids=repr
)
def test_invalid_front_matter_is_empty(head: str) -> None:
    assert front_matter(f"---\nname: tables\n{head}\n---\n") == {}
    assert front_matter(f"---\n{head}\n---\n") == {}


def test_empty_front_matter_has_no_values() -> None:
    assert front_matter("---\n\n---\n") == {}


_YAMLISH = st.text("ab:-?[]{}&*!|>'\"%@`#,= \n\t\\0.<_1e~" + "é\0\u2028", max_size=40)


@given(st.text() | _YAMLISH | st.binary(max_size=60))
@example("{? [a]: b, <<: c}")
@example("<<: 3")
@example("a: 1:99:99")
@example("a: 0b_")
@example("a: ._")
def test_any_file_raises_only_config_errors(
    tmp_path_factory: pytest.TempPathFactory, text: str | bytes
) -> None:
    data = text.encode("utf-8", "replace") if isinstance(text, str) else text
    path = written(tmp_path_factory.getbasetemp(), data, "any.yaml")
    try:
        assert isinstance(load_document(path).data, dict)
    except ConfigError as error:
        assert str(error)


WORDS = st.text(st.sampled_from("ab 0:#-'\"\\{}[]|>&*!%@`,?\n\t\x85\u2028é中😀~."), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(WORDS, VALUES, max_size=4),
    st.sampled_from([None, True, False]),
    st.sampled_from([None, "'", '"', "|", ">"]),
    st.booleans(),
)
def test_libyaml_and_pyyaml_parse_alike(
    data: dict[str, object], flow: bool | None, style: str | None, is_unicode: bool
) -> None:
    text = yaml.safe_dump(
        data, default_flow_style=flow, default_style=style, allow_unicode=is_unicode
    )
    with pytest.MonkeyPatch.context() as patch:
        fast = document.parse_document(text, "", TEAM_FILE)
        patch.setattr(document, "_FAST_PARSER", yaml.SafeLoader)
        own = document.parse_document(text, "", TEAM_FILE)
    assert (fast.data, fast.marks) == (own.data, own.marks)
