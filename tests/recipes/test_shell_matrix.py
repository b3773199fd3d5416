"""Every way to insert a value into a command × every way to run text in a command, in real bash.

CI runs a sample. To run everything: ``python -m tests.recipes.test_shell_matrix``. With ``probes``,
it runs those of ``probes.txt`` that are not refused.
"""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import tree_sitter_bash
from tree_sitter import Language

from nb_agents.errors import RecipeError
from tests.kit.recipes import render_command
from tests.recipes.test_shell_properties import RUN, VALUES, run
from tests.samples import sample

WAYS = r"""
SINK {{x}}
SINK "a {{x}}"
SINK <<< {{x}}
SINK <<EOF\n{{x}}\nEOF
echo {{x}} | SINK
cat <<'EOF' | SINK\n{{x}}\nEOF
y={{x}}; SINK "$y"
y={{x}}; SINK $y
y={{x}} SINK '$y'
export y={{x}}; SINK 'eval $y'
env y={{x}} SINK '$y'
a=({{x}}); SINK "${a[@]}"
for y in {{x}}; do SINK "$y"; done
read -r y <<< {{x}}; SINK "$y"
f() { SINK "$1"; }; f {{x}}
set -- {{x}}; SINK "$@"
echo {{x}} > g; SINK g
echo {{x}} > g; SINK ./g
dd of=g <<< {{x}}; SINK g
echo {{x}} > g; cp g h; SINK h
f=g; echo {{x}} > $f; SINK $f
cat > "g" <<EOF\n{{x}}\nEOF\nSINK "$PWD/g"
echo {{x}} > .bashrc; HOME=. SINK
echo {{x}} > g; BASH_ENV=g SINK :
trap "SINK {{x}}" EXIT
"""
SINKS = r"""
eval
sh -c
sh
bash
bash -i -c
bash -l
env sh -c
env -i bash -c
xargs sh -c
xargs -I{} sh -c {}
xargs
timeout 5 sh
nice -n 1 bash -c
command eval
exec sh -c
.
source
find . -maxdepth 0 -exec sh -c
python3 -c
python3
python3 -i
perl -e
awk
awk -f
sed -n
sed -f
trap
let
declare
export
unset
read
printf -v
printf
test -v
[ 1 -eq
[[ 1 -eq
echo $((y))
coproc
mapfile -C eval -c 1 y
git -c alias.q=!sh q
tar cf /dev/null --checkpoint=1
sort --compress-program
chmod +x g; ./g
./g
$y
"$y"
${!y}
${y@P}
cat
"""
GIT_HOOK = (
    "git init -q .; printf '#!/bin/sh\\n%s\\n' {{x}} > .git/hooks/post-commit; "
    "chmod +x .git/hooks/post-commit; git -c user.name=a -c user.email=a commit -qm a --allow-empty"
)
NAMED = [
    "env v={{x}} sh -c '$v'",
    "dd of=g <<< {{x}}; sh g",
    "echo {{x}} > .bashrc; HOME=. bash -i -c :",
    GIT_HOOK,
]
OPTIONS = ["-rf", "--output=canary", "-o", f"--checkpoint-action=exec={RUN}", "-", "--"]
OPERANDS = [
    *("rm {{x}}", "rm -r {{x}} b", "cp {{x}} b", "cp a {{x}}", "ls {{x}}", "date {{x}}"),
    *('rm "{{x}}"', "rm '{{x}}{{empty}}'", 'rm "{{empty}}{{x}}"', "sudo -n rm {{x}}"),
    *("git log {{x}}", "tar cf a.tar {{x}}", "find {{x}}", "mytool a {{x}}", "cat a | sort {{x}}"),
    *("grep -n {{x}} f", "git commit -a {{x}}", "x=1 mytool {{x}}"),
    *(
        "f() { :; }; f {{x}}",
        "mytool -{{x}}",
        "mytool --{{x}}",
        "mytool --no-{{x}}",
        "ls -l{{x}}",
        "echo $(rm {{x}})",
    ),
]
NO_OPERANDS = [
    *("rm -- {{x}}", "rm ./{{x}}", "mytool --title={{x}}", "gh pr create --title {{x}}"),
    *("git commit -m {{x}}", "git commit -am {{x}} -- a", "jq --arg y {{x}} .a", "curl -d {{x}} a"),
    *("printf '%s' {{x}}", "grep -e {{x}} f", "y={{x}}", "cat > {{x}}", "cat <<< {{x}}"),
    *("for y in {{x}}; do :; done", "[ -n {{x}} ]"),
]


ALL = [*VALUES, "touch canary", "$(touch canary)", f"x=$({RUN})", f"print `{RUN}`"]


def lines(text: str) -> list[str]:
    return [line.replace(r"\n", "\n") for line in text.strip().splitlines()]


def matrix() -> list[str]:
    """Return all commands."""
    return [
        *NAMED,
        *(w.replace("SINK", s) for w, s in itertools.product(lines(WAYS), lines(SINKS))),
    ]


def executed(commands: list[str]) -> Iterator[tuple[str, str, bool]]:
    """Run each command with each allowed value. Yield both, and whether the value was executed."""
    for command, value in itertools.product(commands, ALL):
        try:
            script = render_command(command, {"x": value, "y": value})
        except RecipeError:
            continue
        with TemporaryDirectory() as folder:
            run(script, folder)
            yield command, value, Path(folder, "canary").exists()


def runnable(command: str) -> bool:
    """Return whether the command would execute a value that is inserted unquoted."""
    with TemporaryDirectory() as folder:
        run(command.replace("{{x}}", "'touch canary'"), folder)
        return Path(folder, "canary").exists()


@pytest.mark.parametrize("command", NAMED)
def test_no_value_is_executed_by_an_evaluator(command: str) -> None:
    assert runnable(command)
    assert [each for each in executed([command]) if each[2]] == []


def test_no_value_is_executed_in_a_sample_of_all_combinations() -> None:
    assert [each for each in executed(sample(matrix(), 10)) if each[2]] == []


@pytest.mark.parametrize("command", OPERANDS)
def test_no_value_becomes_an_option(command: str) -> None:
    for option in OPTIONS:
        with pytest.raises(RecipeError, match="option"):
            render_command(command, {"x": option, "empty": ""})
    assert render_command(command, {"x": "7", "empty": ""})


@pytest.mark.parametrize("command", NO_OPERANDS)
def test_value_after_two_dashes_or_of_an_option_may_begin_with_a_dash(command: str) -> None:
    for option in OPTIONS:
        assert render_command(command, {"x": option})


# All refused, although some names of programs, files or sub-commands would be harmless.
NAMES = [
    *("{{x}}", "{{x}} a", "env A=1 {{x}}", "nice --adjustment 5 {{x}}", "sudo --user root {{x}}"),
    *("timeout --foreground 5 {{x}}", "xargs --max-args 1 {{x}}", "env --chdir d {{x}}"),
    *("find . -exec {{x}} ;", 'sh -c "{{x}} a"', "sh -c 'A=1 {{x}}'", "sh -c 'nohup {{x}}'"),
    *("sh -c 'true; if {{x}}; then :; fi'", "eval {{x}} a", "eval A=1 {{x}}", "bash <<< {{x}}"),
    *("bash <<EOF\na\n{{x}}\nEOF", "trap {{x}} EXIT", "source {{x}}", "python3 {{x}}"),
    *('sed "{{x}}" f', 'sed "1{{x}}" f', 'sed "s/a/b/{{x}}" f', "perl -e {{x}}", "awk {{x}} f"),
    *("jq {{x}}", "read {{x}} <<< a", "printf -v {{x}} a", "unset {{x}}", "{{x}}=1", "tar {{x}} a"),
    *("if a ) {{x}}", "echo 'a\n{{x}}"),
]
HIDDEN = [
    *("((true); y={{x}}; (true)); $y", "uv run --with a {{x}}", "docker run -it {{x}}"),
    *("perl -ne print {{x}}", "perl -pe 's/a/b/' {{x}}", "ruby -ne puts {{x}}", "dd {{x}}"),
    *("git log -m {{x}}", "grep --text {{x}} f", "gh pr create -f {{x}}", "git diff -C {{x}}"),
    *("set {{x}}", "make {{x}}", "awk -f g {{x}} > g", "git -c alias.q=!sh q <<< {{x}}"),
]


@pytest.mark.parametrize("command", NAMES)
def test_no_value_names_a_program(command: str) -> None:
    with pytest.raises(RecipeError, match="can be inserted there"):
        render_command(command, {"x": "reboot"})


@pytest.mark.parametrize("program", ["mytool", "git", "sed -n p", "sh -c", "{{x}}"])
def test_xargs_counts_as_code_unless_its_program_starts_no_other(program: str) -> None:
    assert render_command("xargs -I{} cp {} {{x}}", {"x": "a b"})
    with pytest.raises(RecipeError):
        render_command(f"echo {{{{x}}}} | xargs {program}", {"x": "a b"})


@pytest.mark.parametrize("command", HIDDEN)
def test_no_value_is_executed_or_an_option_in_easily_overlooked_places(command: str) -> None:
    values = ("-x", "+x") if command.startswith("set") else ("--output=f", "-O: >f |")
    for value in values:
        with pytest.raises(RecipeError, match="can be inserted there"):
            render_command(command, {"x": value})


@pytest.mark.parametrize(
    "command", ["if a {{x}}", "echo 'a {{x}}", "echo {{x}} ) b", "echo {{x}} ${y//]/}"]
)
def test_command_that_the_grammar_cannot_parse_gets_only_harmless_values(command: str) -> None:
    assert render_command(command, {"x": "v1.2"}) == command.replace("{{x}}", "v1.2")
    for value in ("a b", "'", "$(c)", "-c", "a\nb"):
        for trusted in ({"x"}, set()):
            with pytest.raises(RecipeError, match=r"in line 1: only letters, digits"):
                render_command(command, {"x": value}, trusted)


KINDS = """
ansi_c_string arithmetic_expansion array binary_expression brace_expression c_style_for_statement
case_item case_statement command command_name command_substitution comment compound_statement
concatenation declaration_command do_group elif_clause else_clause expansion extglob_pattern
file_descriptor file_redirect for_statement function_definition heredoc_body heredoc_content
heredoc_end heredoc_redirect heredoc_start herestring_redirect if_statement list negated_command
number parenthesized_expression pipeline postfix_expression process_substitution program raw_string
redirected_statement regex simple_expansion special_variable_name string string_content subscript
subshell ternary_expression test_command test_operator translated_string unary_expression
unset_command variable_assignment variable_assignments variable_name while_statement word
"""


def test_all_node_types_of_the_grammar_are_classified() -> None:
    bash = Language(tree_sitter_bash.language())
    numbers = filter(bash.node_kind_is_named, range(bash.node_kind_count))
    kinds = {bash.node_kind_for_id(n) for n in numbers if bash.node_kind_is_visible(n)}
    assert kinds == set(KINDS.split())


if __name__ == "__main__":
    probes = Path(__file__).with_name("probes.txt").read_text("utf-8")
    chosen = lines(probes) if "probes" in sys.argv else matrix()
    ran = list(executed(chosen))
    print(f"{len(chosen)} commands × {len(ALL)} values: {len(ran)} taken, executed:")
    print(sum(each[2] for each in ran), *(each for each in ran if each[2]), sep="\n")
