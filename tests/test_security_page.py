"""The page of security claims matches the code, and the tests and files that it names exist.

`python -m tests.test_security_page` writes its table of keys.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.kit.teams import SECTIONS, Restriction

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "security-claims.md"

BEGIN, END = "<!-- keys -->\n", "<!-- /keys -->\n"
TEST = re.compile(r"\b(tests/[\w/]+\.py)::(test_\w+)")
FILE = re.compile(r"\b(?:nb_agents|tests)/[\w/]+\.\w+")
UNSAID = Restriction._field_defaults["remedy"]


def page() -> str:
    return PAGE.read_text("utf-8")


def without_keys() -> str:
    before, _, rest = page().partition(BEGIN)
    return before + rest.partition(END)[2]


# The table of keys


def table() -> str:
    lines = ["| key | effect |", "|---|---|"]
    return "".join(f"{line}\n" for line in [*lines, *rows()])


def rows() -> Iterator[str]:
    for path, section in SECTIONS.items():
        place = ".".join(part for part in path if part != "*")
        prefix = f"{place}." if place else ""
        for key in sorted({*section.enforced, *section.fields}):
            yield f"| `{prefix}{key}` | enforced |"
        for key, restriction in sorted(section.withheld.items()):
            what = re.sub("^a ", "the ", restriction.what)
            yield f"| `{prefix}{key}` | withholds {what} |"
        for key, restriction in sorted(section.refused.items()):
            remedy = "" if restriction.remedy == UNSAID else f". {restriction.remedy}"
            yield f"| `{prefix}{key}` | stops the start{remedy} |"
        if section.is_strict:
            happens = "withholds the server" if section.withholds else "stops the start"
            yield f"| any unknown key of `{place}` | {happens} |"
        if section.harmless:
            keys = " ".join(f"`{key}`" for key in sorted(section.harmless))
            yield f"| of {f'`{place}`' if place else 'the whole file'}: {keys} | harmless |"


def test_table_of_keys_matches_the_code() -> None:
    written = page().partition(BEGIN)[2].partition(END)[0]
    assert written == table(), "Run `python -m tests.test_security_page` to update it."


# What the page names


@cache
def functions_of(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    return frozenset(node.name for node in tree.body if isinstance(node, functions))


def test_tests_named_by_the_page_exist() -> None:
    named = TEST.findall(page())
    assert len(named) > 100
    assert [f"{file}::{name}" for file, name in named if name not in functions_of(file)] == []


def test_files_named_by_the_page_exist() -> None:
    assert [name for name in FILE.findall(page()) if not (ROOT / name).is_file()] == []


def test_every_claim_in_a_table_names_its_test() -> None:
    claims = [line for line in without_keys().splitlines() if line.startswith("| ")]
    claims = [line for line in claims if "shown by" not in line]
    assert len(claims) > 60
    assert [line for line in claims if not FILE.search(line.rpartition(" | ")[2])] == []


if __name__ == "__main__":
    before, begin, rest = page().partition(BEGIN)
    PAGE.write_text(before + begin + table() + END + rest.partition(END)[2], "utf-8")
