"""Finds English that the project avoids, and names the replacement: a part of ``make lint``.

    python -m tests.lint.english

It checks docstrings and comments, strings of the package, names of tests, pages, notebooks and the
change log against the phrases of ``english.toml``. Paths in ``not_yet.txt`` are still to be
rewritten. They are not checked, but must leave the list when they contain no such phrase.
"""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

__all__ = ["Finding", "Rule", "check", "findings_in", "load_rules", "main"]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PACKAGE = "nb_agents/"
SUFFIXES = (".py", ".md", ".ipynb", ".ts")
MOST_WORDS = 30
"""The longest line of the change log, in words."""

_FENCE = re.compile(r"^(`{3,}).*?^\1 *$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)


class Rule(NamedTuple):
    """Phrases to avoid.

    Attributes:
        phrases: The phrases, in lower case, with single spaces.
        pattern: Matches a phrase in its group 1, and otherwise a right use of one.
        use: The replacement, for the reader.
    """

    phrases: tuple[str, ...]
    pattern: re.Pattern[str]
    use: str


class Text(NamedTuple):
    """An English text in a file.

    Attributes:
        line: The line at which it starts, counted like an editor does.
        text: The text, with its line breaks.
    """

    line: int
    text: str


class Finding(NamedTuple):
    """A match of a rule.

    Attributes:
        line: The line of the match.
        match: The matching text.
        use: The replacement.
    """

    line: int
    match: str
    use: str


def main(root: Path = ROOT) -> int:
    """Check the files of a checkout that git knows, print what is wrong, and return the exit code.

    Args:
        root: The checkout.
    """
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=root, capture_output=True, text=True, check=True).stdout
    files = [name for name in names.splitlines() if name.endswith(SUFFIXES)]
    not_yet = (HERE / "not_yet.txt").read_text("utf-8").split()
    problems = list(check(root, files, load_rules(HERE / "english.toml"), not_yet))
    print("\n".join(problems) or "English: no phrase to avoid.")
    return bool(problems)


def load_rules(path: Path) -> list[Rule]:
    """Return the rules of a TOML file.

    Args:
        path: The file; `english.toml` explains its keys.
    """
    return [_rule(**each) for each in tomllib.loads(path.read_text("utf-8"))["rule"]]


def _rule(avoid: Sequence[str], use: str, but: Sequence[str] = ()) -> Rule:
    phrases, right = _expanded(avoid), _expanded(but)
    # Neither within a word nor within a path.
    pattern = rf"(?<![\w/.-])(?:{_any_of(right)}|({_any_of(phrases)}))(?!\w)"
    return Rule(phrases, re.compile(pattern, re.IGNORECASE), use)


def _any_of(phrases: Sequence[str]) -> str:
    return "|".join(re.escape(each).replace(r"\ ", r"\s+") for each in phrases) or "(?!)"


def _expanded(phrases: Iterable[str]) -> tuple[str, ...]:
    """Return phrases with each ``{a,b}`` replaced by each of its words."""
    choices = (
        [part.split(",") if at % 2 else [part] for at, part in enumerate(re.split("[{}]", phrase))]
        for phrase in phrases
    )
    return tuple("".join(words) for each in choices for words in product(*each))


def check(
    root: Path, files: Iterable[str], rules: Sequence[Rule], not_yet: Sequence[str]
) -> Iterator[str]:
    """Yield a line for each problem.

    Args:
        root: The directory of the files.
        files: Their names, relative to it.
        rules: The phrases to avoid.
        not_yet: Files and directories that are not checked, but must have a match.
    """
    waiting = set(not_yet)
    for name in files:
        path = root / name
        listed = {each for each in not_yet if name == each or name.startswith(f"{each}/")}
        if listed and not listed & waiting:
            continue  # one match is enough
        found = findings_in(path, rules, name.startswith(PACKAGE)) if path.exists() else ()
        if listed:
            if any(found):
                waiting -= listed
            continue
        for line, match, use in sorted(found):
            yield f"{name}:{line}: instead of {match!r}: {use}"
    for each in sorted(waiting):
        yield f"tests/lint/not_yet.txt: {each!r} has no phrase to avoid: remove it from the list"


def findings_in(path: Path, rules: Sequence[Rule], is_package: bool = False) -> Iterator[Finding]:
    """Yield the phrases to avoid in a file, in no particular order.

    Args:
        path: A Python, Markdown, notebook or TypeScript file.
        rules: The phrases to avoid.
        is_package: Whether users see the strings of a Python file.
    """
    source = path.read_text("utf-8")
    if path.name == "CHANGELOG.md":
        yield from _long_lines(source)
    # Most files have no such phrase at all: parse only the others.
    plain = " ".join(re.sub(r"[_#]", " ", source).lower().split())
    suspects = [rule for rule in rules if any(phrase in plain for phrase in rule.phrases)]
    for line, text in _texts_of(path, source, is_package) if suspects else ():
        for rule in suspects:
            for found in filter(lambda found: found[1], rule.pattern.finditer(text)):
                at = line + text.count("\n", 0, found.start())
                yield Finding(at, " ".join(found[0].split()), rule.use)


def _long_lines(source: str) -> Iterator[Finding]:
    for number, line in enumerate(source.splitlines(), 1):
        words = line.removeprefix("- ").split()
        if line.startswith("- ") and len(words) > MOST_WORDS:
            yield Finding(number, " ".join(words[:5]), f"at most {MOST_WORDS} words")


def _texts_of(path: Path, source: str, is_package: bool) -> Iterator[Text]:
    if path.suffix == ".py":
        yield from _strings(ast.parse(source), all_strings=is_package)
        yield from _comments(source)
    elif path.suffix == ".md":
        yield Text(1, _without_code(source))
    elif path.suffix == ".ipynb":
        yield from _markdown_cells(source)
    else:
        yield Text(1, source)


def _comments(source: str) -> Iterator[Text]:
    """Yield the comments, adjacent lines as one, so that a pattern can span a line break."""
    block: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if block and token.start[0] != block[-1].start[0] + 1:
            yield _joined(block)
            block = []
        block.append(token)
    if block:
        yield _joined(block)


def _joined(block: Sequence[tokenize.TokenInfo]) -> Text:
    return Text(block[0].start[0], "\n".join(token.string.lstrip("#: ") for token in block))


def _strings(tree: ast.AST, all_strings: bool) -> Iterator[Text]:
    """Yield docstrings and names of tests, and of the package every string of several words."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[:5] == "test_":
            yield Text(node.lineno, node.name.replace("_", " "))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = node.value.value  # of a module, class or function, or below a variable
        elif all_strings and isinstance(node, ast.Constant):
            text = node.value
        else:
            continue
        if isinstance(text, str) and " " in text:
            yield Text(node.lineno, text)


def _without_code(source: str) -> str:
    """Return Markdown with empty code blocks and code spans; the lines stay where they are."""
    blank = lambda found: "\n" * found[0].count("\n")  # noqa: E731
    return _CODE.sub(blank, _FENCE.sub(blank, source))


def _markdown_cells(source: str) -> Iterator[Text]:
    for cell in json.loads(source)["cells"]:
        if cell["cell_type"] != "markdown":
            continue
        text = "".join(cell["source"])
        first = json.dumps(text.splitlines(keepends=True)[:1], ensure_ascii=False)[2:-2]
        line = source.count("\n", 0, max(source.find(first), 0)) + 1
        yield Text(line, _without_code(text))


if __name__ == "__main__":
    sys.exit(main())
