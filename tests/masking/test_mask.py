"""Masking secrets in texts, in values and in streamed text."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from nb_agents.errors import ConfigError, NbAgentsError
from tests.kit.secrets import MIN_HELD, Mask, MaskedStream, Secret, is_distinctive

KEY = "sk-1f9Qz7LmX02pABCDEFGH"
OTHER = "sk-1f9Qz7LmX02pZZ"  # has the same start as the first
ODD = 'q"uote\\ü+/=12x9Zk'
LINES = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhk1\nG9w0BAQEFAASCBKcw2\n-----END KEY-----"
NAMES = ("api_key", "authorization")


def mask(*secrets: str, names: tuple[str, ...] = NAMES) -> Mask:
    return Mask(Secret(each, names) for each in secrets)


# Whole texts


@pytest.mark.parametrize(
    "written",
    [
        ODD,
        json.dumps(ODD),
        json.dumps(ODD, ensure_ascii=False),
        repr(ODD),
        quote(ODD),
        quote(ODD, safe=""),
        quote(ODD, safe="").lower().replace("zk", "Zk").replace("%20", "+"),
    ],
)
def test_key_is_masked_in_plain_json_python_and_url_form(written: str) -> None:
    assert mask(ODD).text(f"<{written}>") in ("<[key]>", '<"[key]">', "<'[key]'>")


@pytest.mark.parametrize("length", range(len(KEY) + 1))
def test_truncation_leaves_no_recognizable_start_of_a_key(length: int) -> None:
    cut = KEY[:length]
    hidden = mask(KEY).text(f"its {cut}… and on")
    assert hidden == f"its {'[key]' if is_distinctive(cut) else cut}… and on"


def test_keys_with_a_common_prefix_are_masked_completely() -> None:
    assert mask(KEY, OTHER).text(f"{OTHER} {KEY} {KEY[:18]}") == "[key] [key] [key]"


def test_each_line_of_a_multiline_key_is_masked() -> None:
    shown = mask(LINES).text(f"{LINES}\nand: MIIEvQIBADANBgkqhk1, G9w0BAQEFAASCBKcw2")
    assert shown == "[key]\nand: [key], [key]"


ORDINARY = ["lm-studio", "test", "no-key-needed", "k", "password12345", "my pass word is", "x" * 40]


@pytest.mark.parametrize("value", ORDINARY)
def test_ordinary_value_is_masked_only_next_to_its_name(value: str) -> None:
    hidden = mask(value, names=("api_key", "Authorization", "LLM_KEY"))
    text = f"{value} is written; the key {value}, key: {value}, OTHER_KEY: {value}"
    text = text.replace("OTHER_KEY", "OTHER")
    assert hidden.text(text) == text
    for before in (
        "api_key=", "api_key: ", 'api_key="', "api-key='", '"api_key": "', "apiKey: ",
        '\\"api_key\\": \\"', "Authorization: Bearer ", "authorization: ", "LLM_KEY=", "llm_key = ",
    ):  # fmt: skip
        assert hidden.text(f"a {before}{value}, b") == f"a {before}[key], b"
        assert hidden.text(f"a {before}{value}") == f"a {before}[key]"
        assert hidden.text(f"{before}{value}more") == f"{before}{value}more"


def test_ordinary_value_is_masked_under_its_name() -> None:
    hidden = mask("test", names=("API_KEY",))
    assert hidden.value({"api_key": "test", "apiKey": ["test"], "task": "test", "n": 1}) == {
        "api_key": "[key]",
        "apiKey": ["[key]"],
        "task": "test",
        "n": 1,
    }


def test_path_of_a_key_file_is_not_masked(tmp_path: Any) -> None:
    file = tmp_path / "aB3xZ91qQ7.json"
    file.touch()
    text = f"reads {file}, GOOGLE_CREDENTIALS={file}"
    hidden = mask(str(file), names=("GOOGLE_CREDENTIALS",))
    assert hidden.text(text) == f"reads {file}, GOOGLE_CREDENTIALS=[key]"


def test_keys_added_later_are_masked_from_then_on() -> None:
    hidden = mask()
    stream = MaskedStream(hidden)
    assert (hidden.text(KEY), stream.push("its ")) == (KEY, "its ")
    hidden.add([Secret(KEY), Secret("")])
    assert (hidden.text(KEY), stream.push(KEY), stream.flush()) == ("[key]", "[key]", "")


# Values


class Pair(NamedTuple):
    one: str
    other: Any


@dataclass(frozen=True)
class Thing:
    text: str
    held: Any = None


class Odd:
    def __str__(self) -> str:
        return f"odd {KEY}"


def test_texts_in_plain_values_are_masked() -> None:
    value = Thing(f"a {KEY}", {KEY: [Pair(KEY, (KEY, 1, None, True, 2.5))], "o": Odd()})
    assert mask(KEY).value(value) == Thing(
        "a [key]", {"[key]": [Pair("[key]", ("[key]", 1, None, True, 2.5))], "o": "odd [key]"}
    )


def test_value_without_a_key_is_returned_unchanged() -> None:
    value = Thing("text", {"a": [1, "b"]})
    assert mask(KEY).value(value) is value


def test_recursive_value_is_truncated() -> None:
    value: Any = KEY
    for _ in range(10_000):
        value = [value]
    shown = json.dumps(mask(KEY).value({"a": value}))
    assert "[nested too deeply]" in shown and KEY not in shown


# Errors


class Stubborn(Exception):
    def __str__(self) -> str:
        return f"always {KEY}"


def test_texts_and_causes_of_an_error_are_masked() -> None:
    error = ConfigError(f"is {KEY}", file=f"/{KEY}/f")
    error.others = (ConfigError(f"and {KEY}"),)
    error.__cause__ = ValueError(f"of {KEY}")
    hidden = mask(KEY).error(error)
    assert hidden is error
    assert str(error) == "/[key]/f: is [key]\nand [key]"
    assert KEY not in f"{error!r} {error.__cause__!r}"


def test_error_with_a_computed_text_is_replaced_by_another_error() -> None:
    error = mask(KEY).error(Stubborn())
    assert (type(error), str(error)) == (NbAgentsError, "Stubborn: always [key]")
    assert error.__cause__ is None


# Pieces


def as_stream(hidden: Mask, text: str) -> re.Pattern[str]:
    """Mask a text in chunks. A few letters of a secret may be shown before it is recognized."""
    parts, at = [], 0
    for start, end in hidden._search.scan(text, is_whole=True).found:
        first = text[start : start + MIN_HELD - 1]
        begun = "|".join(re.escape(first[:n]) for n in range(len(first) + 1))
        parts.append(re.escape(text[at:start]) + rf"(?:{begun})\[key\]")
        at = end
    return re.compile("".join([*parts, re.escape(text[at:])]))


ALPHABET = "sk-1f9Qab =:\"'\\\n"
"""Few different characters, so that starts of keys are frequent."""

secret_texts = st.one_of(
    st.sampled_from([KEY, OTHER, ODD, LINES, "lm-studio", "test", "no-key-needed", "k", "k k"]),
    st.text(ALPHABET, min_size=1, max_size=20),
    st.text(min_size=12, max_size=20),
)
words = st.one_of(
    st.text(ALPHABET, max_size=12),
    st.text(max_size=6),
    st.sampled_from(["api_key", "API-KEY", "apikey=", "Authorization: Bearer ", '": "', " ", "\n"]),
)


@st.composite
def cases(draw: Any) -> tuple[list[str], list[str]]:
    """Generate secrets, and the chunks of a text that contains them or parts of them."""
    secrets = draw(st.lists(secret_texts, min_size=1, max_size=4))
    known = st.sampled_from(secrets)
    parts = st.lists(
        st.one_of(
            words,
            known,
            known.map(lambda s: json.dumps(s)[1:-1]),
            known.flatmap(lambda s: st.integers(0, len(s)).map(lambda n: s[:n])),
        ),
        max_size=8,
    )
    text = "".join(draw(parts))
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return secrets, [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@given(cases())
@example(([KEY], list(KEY)))
@example(([KEY, OTHER], [KEY[:16], KEY[16:], OTHER[:15], " end"]))
@example((["lm-studio"], ["API", "_key = ", '"lm', "-studio", '"']))
@example((["k"], ["api_key=k", "ey"]))
def test_masked_pieces_add_up_to_the_masked_text(
    case: tuple[list[str], list[str]],
) -> None:
    secrets, pieces = case
    hidden = mask(*secrets)
    stream = MaskedStream(hidden)
    shown = [stream.push(piece) for piece in pieces]
    shown.append(stream.flush())
    assert as_stream(hidden, "".join(pieces)).fullmatch("".join(shown))
    assert stream.flush() == ""


@given(cases())
def test_no_text_shows_a_recognizable_key(case: tuple[list[str], list[str]]) -> None:
    secrets, pieces = case
    hidden = mask(*secrets).text("".join(pieces))
    left = hidden.replace("[key]", "\0")
    assert not [secret for secret in secrets if is_distinctive(secret) and secret in left]


@given(cases(), st.data())
def test_early_flush_loses_no_text_and_shows_no_key(
    case: tuple[list[str], list[str]], data: st.DataObject
) -> None:
    secrets, pieces = case
    hidden = mask(*secrets, names=())  # the value of a name may change when more text arrives
    assume(hidden.text("".join(pieces)) == "".join(pieces))
    stream, shown = MaskedStream(hidden), ""
    for piece in pieces:
        shown += stream.push(piece)
        if data.draw(st.booleans()):
            shown += stream.flush()
    # A text without a key is complete: nothing is masked or duplicated.
    assert shown + stream.flush() == "".join(pieces)


@pytest.mark.parametrize("cut", range(len(KEY)))
def test_rest_of_a_key_after_a_flush_is_masked(cut: int) -> None:
    stream = MaskedStream(mask(KEY))
    before = stream.push(f"a {KEY[:cut]}") + stream.flush()
    assert before == "a [key]" if is_distinctive(KEY[:cut]) else before == f"a {KEY[:cut]}"
    assert stream.push(f"{KEY[cut:]} b") + stream.flush() == "[key] b"


@given(st.lists(st.text("abc sk-1f9Q", min_size=1, max_size=10), max_size=30))
def test_only_a_possible_start_of_a_key_is_held_back(pieces: Sequence[str]) -> None:
    stream, given_, shown = MaskedStream(mask(KEY)), "", ""
    for piece in pieces:
        given_ += piece
        shown += stream.push(piece)
        held = given_[len(shown) :]
        assert given_ == shown + held
        assert KEY.startswith(held) and len(held) < len(KEY)
        assert not held or len(held) >= MIN_HELD


def test_hundred_keys_do_not_change_a_long_text() -> None:
    keys = [base64.b64encode(bytes(range(n, n + 24))).decode() for n in range(100)]
    text = Path(__file__).read_text("utf-8") * 20
    assert mask(*keys).text(text) is text
