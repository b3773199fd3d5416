"""A value in a text of Python code is data: whatever it is, the code stays the same."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import assume, event, example, given, settings
from hypothesis import strategies as st

from nb_agents.errors import RecipeError
from nb_agents.recipes.python_texts import NOT_RAW, escaped, find_texts
from nb_agents.recipes.shell_values import render_command
from tests.recipes.test_shell_properties import VALUES

HARD = [*VALUES, "", "\\", "\\\\", '"', '"""', "'''", "\n", "\r\n", "é中😀", "\udc80", "{x}", "#"]
PIECES = [
    "q",
    "q",
    "q",
    '"',
    "'",
    '"""',
    "'''",
    "\\",
    "r",
    "f",
    "b",
    "#",
    "\n",
    "x = ",
    "+",
    " ",
    "{",
    "}",
]
_SLOT = re.compile("q")


def fill(code: str, marks: dict[range, range | None], value: str) -> str:
    """Write a value in all texts, as `render_command` does."""
    raw = {mark.start for mark in marks.values() if mark}
    slots = {slot.start for slot in marks}
    text = escaped(value)
    return "".join(
        text if at in slots else NOT_RAW if at in raw else char for at, char in enumerate(code)
    )


def meaning(code: str, value: str | None = None) -> str | None:
    """What Python reads, with a value in the place of `q`; None for what it can't read."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.kind = None  # whether it has the prefix "u"
            node.value = node.value if value is None else node.value.replace("q", value)
    return ast.dump(tree)


@settings(max_examples=600)
@given(st.lists(st.sampled_from(PIECES), min_size=3, max_size=12), st.sampled_from(HARD))
@example(['x = "', "q", '""', "a", '"'], "")
@example(["x = '''", '"', "q", "'''"], "")
@example(['"', "q", '""', "a", '" + "', "b", '""', "q", '"'], "")
@example(['"', "'", '"', '"', '"', "r", '"', "q", '"'], "canary")
def test_code_means_the_same_with_any_value_in_its_texts(pieces: list[str], value: str) -> None:
    code = "".join(pieces)
    slots = [range(found.start(), found.end()) for found in _SLOT.finditer(code)]
    assume(slots)
    if (marks := find_texts(code.encode(), slots)) is None:
        event("refused")
        return
    event("read" if meaning(code) else "no code")
    assert meaning(fill(code, dict(marks), value)) == meaning(code, value)


READ = [
    "print('{{x}}')",
    'print("{{x}}")',
    'print(u"{{x}}")',
    "print('''{{x}}''')",
    'print(r"""{{x}}""")',
    "print(R'{{x}}')  # {{x}}",
    "print('''\n{{x}}'''[1:])",
    "print('\\n{{x}}'[1:])",
    "print('{{x}}' '')",
    "print(''r'{{x}}')",
    "def f(): pass\nR'{{x}}'; print('{{x}}')",
    "print(f'{1}'[1:] + '{{x}}')",
    "print(f'{1}{{x}}{2}'[1:-1])",
    "import subprocess; subprocess.run(['printf', '%s\\n', '{{x}}'])",
    'print(F"""{\'a\'}{{x}}"""[1:])',
]


@pytest.mark.parametrize("code", READ)
@pytest.mark.parametrize("form", ["python3 <<'EOF'\n%s\nEOF", 'python3 - a <<"END" >&1\n%s\nEND'])
def test_a_program_gets_each_value_as_it_is(code: str, form: str, tmp_path: Path) -> None:
    template = form % code
    value = "a\\n\"'\n`$HOME`\t$(:)\n\n#é中😀{x}\\"
    assert printed(template, value, tmp_path) == f"{value}\n"


@pytest.mark.parametrize(
    "template",
    ['python3 -c \'print("{{x}}")\' "{{x}}"', "python3 -c \"print('{{x}}')\" {{x}} a"],
)
def test_so_it_does_in_an_argument_beside_others(template: str, tmp_path: Path) -> None:
    for value in ("it's", '"; $HOME `a` \\', "a\nb"):
        assert printed(template, value, tmp_path) == f"{value}\n"


def printed(template: str, value: str, folder: Path) -> str:
    script = render_command(template, {"x": value})
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    environment = {"PATH": path, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, check=True
    )
    return done.stdout.decode()


@pytest.mark.parametrize("program", ["python3", "${NO_PYTHON:-python3}", '"${NO_PYTHON:-python3}"'])
def test_a_variables_default_says_which_program_it_is(program: str, tmp_path: Path) -> None:
    assert printed(f"{program} <<'EOF'\nprint('{{{{x}}}}')\nEOF", "a 'b'", tmp_path) == "a 'b'\n"


VARIABLES = [
    'file="{{x}}/a"; python3 <<EOF\nprint("$file")\nEOF',
    "file={{x}}; python3 -c \"print('${file}/a')\"",
]


@pytest.mark.parametrize("template", VARIABLES)
def test_what_a_variable_brings_into_a_text_holds_nothing_that_could_end_it(
    template: str, tmp_path: Path
) -> None:
    assert printed(template, "./some/where,1@x", tmp_path) == "./some/where,1@x/a\n"
    for value in HARD:
        if re.search(r"[^A-Za-z0-9_./:,@+-]", value):
            with pytest.raises(RecipeError, match="in what python3 runs as code"):
                render_command(template, {"x": value})


REFUSED = [
    "x = {{x}}",
    "x = f'{{{x}}}'",
    "x = f'{ {{x}} }'",
    "x = rf'{{x}}'",
    "x = b'{{x}}'",
    "x = r'\\d{{x}}'",
    'x = "{{x}}""a"',
    "x = '''{{x}}''' + {{x}}",
    "x = '{{x}}",
    'x = f"{a["{{x}}"]}"',
    "eval('{{x}}')",
    "import os; os.system('{{x}}')",
    "import subprocess; subprocess.run(['sh', '-c', '{{x}}'])",
    "from subprocess import *; getoutput('{{x}}')",
    "import subprocess\nsubprocess.run('{{x}}',\n  shell=True)",
]


@pytest.mark.parametrize("code", REFUSED)
def test_a_value_that_is_in_no_text_or_in_one_that_may_be_run_is_refused(code: str) -> None:
    for command in (
        f"python3 <<'EOF'\n{code}\nEOF",
        f"python3 <<'EOF'\ny = '{{{{x}}}}'\n{code}\nEOF",
    ):
        with pytest.raises(RecipeError, match="in what python3 runs as code"):
            render_command(command, {"x": "a b"})


@pytest.mark.parametrize(
    "command",
    [
        "python3 <<EOF\nx = '$A {{x}}'\nEOF",
        "python3 <<-'EOF'\n\tx = '{{x}}'\n\tEOF",
        "echo \"x = '{{x}}'\" | python3",
        "ipython <<'EOF'\nx = '{{x}}'\nEOF",
        "node -e 'x = \"{{x}}\"'",
    ],
)
def test_only_code_that_is_given_as_it_stands_is_read(command: str) -> None:
    with pytest.raises(RecipeError):
        render_command(command, {"x": "a b"})
