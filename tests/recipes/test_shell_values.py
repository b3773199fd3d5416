"""Values in bash commands, in a real bash: they arrive unchanged and are never executed."""

import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nb_agents.errors import RecipeError
from nb_agents.extensions.recipes.shell_values import render_command
from tests.kit.recipes import render

CANARY = "canary"
RUN = f"touch {CANARY}"


def bash(script: str, cwd: str | Path) -> subprocess.CompletedProcess[bytes]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(cwd)}
    return subprocess.run(
        ["bash", "-c", script], cwd=cwd, env=environment, capture_output=True, timeout=200
    )


# Each prints [value], and possibly a newline.
PLACES = {
    "bare word": "printf %s [{{x}}]",
    "bare word alone": "printf '[%s]' {{x}}",
    "two values glued": "printf %s [{{x}}{{empty}}]",
    "double quotes": 'printf %s "[{{x}}]"',
    "single quotes": "printf %s '[{{x}}]'",
    "translated quotes": 'printf %s $"[{{x}}]"',
    "mixed quotes": """printf %s "["{{x}}']'""",
    "option": "printf %s --o=[{{x}}] | tail -c +5",
    "substitution": 'printf %s "$(printf %s [{{x}}])"',
    "quotes in a substitution": 'printf %s "$(printf %s "[{{x}}]")"',
    "single quotes in a substitution": """printf %s "$(printf %s '[{{x}}]')\"""",
    "nested substitutions": 'printf %s "$(printf %s "$(printf %s "[{{x}}]")")"',
    "process substitution": "cat <(printf %s [{{x}}])",
    "here-document": "cat <<EOF\n[{{x}}]\nEOF",
    "indented here-document": "cat <<-EOF\n\t[{{x}}]\n\tEOF",
    "substitution in a here-document": 'cat <<EOF\n$(printf %s "[{{x}}]")\nEOF',
    "quoted here-document": "cat <<'EOF'\n[{{x}}]\nEOF",
    "double-quoted here-document": 'cat <<"EOF"\n[{{x}}]\nEOF',
    "escaped here-document": "cat <<\\EOF\n[{{x}}]\nEOF",
    "quoted indented here-document": "cat <<-'EOF'\n\t[{{x}}]\n\tEOF",
    "here-document in a substitution": "y=$(cat <<'EOF'\n[{{x}}]\nEOF\n); printf %s \"$y\"",
    "here-document into a pipe": "cat <<'EOF' | cat\n[{{x}}]\nEOF",
    "between Jinja's tags": "{% if '{{x}}' != '' %}\nprintf %s [{{x}}]\n{% endif %}",
    "here-string": "cat <<< [{{x}}]",
    "quoted here-string": 'cat <<< "[{{x}}]"',
    "assignment": 'y={{x}}; printf %s "[$y]"',
    "quoted assignment": 'y="{{x}}"; printf %s "[$y]"',
    "added assignment": 'y=[; y+={{x}}; printf %s "$y]"',
    "local assignment": 'f() { local y={{x}} z; printf %s "[$y]"; }; f',
    "function": "f() { printf %s '[{{x}}]'; }; f",
    "case": "case {{x}} in {{x}}) printf %s [{{x}}];; *) printf no;; esac",
    "quoted case": "case k'{{x}}' in \"k{{x}}\") printf %s [{{x}}];; *) printf no;; esac",
    "test": "[ {{x}} = {{x}} ] && printf %s [{{x}}]",
    "double test": "[[ {{x}} == {{x}} && -n a{{x}} ]] && printf %s [{{x}}]",
    "regular expression": "[[ a{{x}} =~ ^a{{x}}$ ]] && printf %s [{{x}}]",
    "loop": 'for y in {{x}}; do printf %s "[$y]"; done',
    "braces": "printf '[%s]' {{{x}},}'{{empty}}' | head -c -2",
    "group in a pipe": "{ if true; then printf %s [{{x}}]; fi; } | cat",
    "continued line": "printf %s \\\n  [{{x}}]",
    "argument of find's program": "find . -maxdepth 0 -exec printf '[%s]' {{x}} \\;",
    "argument of a function": 'f() { local y=$1; printf %s "[$y]"; }; f {{x}}',
    "argument of a group": 'set -- {{x}}; printf %s "[$1]"',
    "strict mode": "set -euo pipefail; printf %s [{{x}}]",
    "cut of a variable": 'y=a{{x}}; printf %s "[${y#a}]"',
    "file": "printf %s '[{{x}}]' > f; cat f; rm f",
}

# Where a program accepts a value that begins with - as an option's argument.
OPERANDS = {
    *("argument of find's program", "argument of a function"),
    *("between Jinja's tags", "process substitution"),
}

# Each prints "ok" for any value.
SILENT = {
    "comment": "printf ok # {{x}}\n",
    "comment line": "# {{x}}\nprintf ok",
    "quotes in a comment": "printf ok # it's \"{{x}}\n",
    "branch not taken": "{{#if empty}}eval {{x}}{{/if}}printf ok",
}

HOSTILE = st.lists(
    st.one_of(
        st.sampled_from(
            [
                *("'", '"', "\\", "$", "`", "!", "*", "?", "[a-z]*", "~", "~root", "{a,b}", "#"),
                *(RUN, f"$({RUN})", f"`{RUN}`", f"a[$({RUN})]", f";{RUN};", f"&& {RUN} ||"),
                *(f"\n{RUN}\n", "\nEOF\n", "\n\tEOF\n", "EOF", "|", "&", "<", ">", "(", ")", "]"),
                *("-", "-n", "--", "=", " ", "\t", "\n", "\r", "\r\n", "$'", "${HOME}", "$x", "}"),
                *("\x01", "\x7f", "\u2028", "中", "𝄞", "\x85", "{{x}}", "nb_value_0", "%s%n"),
            ]
        ),
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5),
    ),
    max_size=8,
).map("".join)


def _expected(value: str) -> dict[str, bytes]:
    texts = dict.fromkeys(PLACES, f"[{value}]".encode())
    # find inserts the file's name into its arguments.
    texts["argument of find's program"] = f"[{value.replace('{}', '.')}]".encode()
    if not value:  # no word, so a loop over it has no iteration
        texts |= {"loop": b""}
    return texts | dict.fromkeys(SILENT, b"ok")


def _all_at_once(value: str, cwd: str) -> dict[str, bytes]:
    """Run all places in one bash, each in its own subshell."""
    os.mkdir(f"{cwd}/work")
    jobs = ["cd work"]
    names = [name for name in PLACES | SILENT if not (name in OPERANDS and value[:1] == "-")]
    for n, name in enumerate(names):
        script = render_command((PLACES | SILENT)[name], {"x": value, "empty": ""})
        jobs.append(f"(\n{script}\n) >../out{n} 2>/dev/null </dev/null")
    done = bash("\n".join(jobs), cwd)
    assert done.stderr == b""
    return {name: Path(f"{cwd}/out{n}").read_bytes() for n, name in enumerate(names)}


@settings(max_examples=12)
@given(value=HOSTILE)
@example(value=f"'\"$({RUN})`{RUN}`\\\n;{RUN}\nEOF\n\tEOF\n${{HOME}} * ~ {{a,b}} !\\")
@example(value="")
@example(value="-n")
@example(value="\n\n")
@example(value="{}")
def test_every_place_gets_the_exact_value_and_no_command_in_it_runs(value: str) -> None:
    with TemporaryDirectory() as cwd:
        got = _all_at_once(value, cwd)
        assert os.listdir(f"{cwd}/work") == []
    wanted = _expected(value)
    # A here-document or here-string ends with an additional newline.
    wrong = {
        name: out for name, out in got.items() if out not in (wanted[name], wanted[name] + b"\n")
    }
    assert wrong == {}


@pytest.mark.parametrize(
    "command, words",
    [
        ("f {{e}} b", ["b"]),
        ("f {{e}}{{e}} b", ["b"]),
        ("f a{{e}} {{x}}", ["a", "two words"]),
        ("f {{e}} {{x}}", ["two words"]),
        ("{{e}} f b", ["b"]),
        ('y=(a {{e}} b); f "${y[@]}"', ["a", "b"]),
        ("for y in a {{e}} b; do f $y; done", ["a", "b"]),
        ("f \"{{e}}\" '{{e}}'", ["", ""]),
        ("f --o={{e}}", ["--o="]),
        ('y={{e}}; f "$y"', [""]),
        ("[ {{e}} = '' ] && [[ {{e}} == '' ]] && f b", ["b"]),
    ],
)
def test_unquoted_empty_value_is_not_an_argument(
    command: str, words: list[str], tmp_path: Path
) -> None:
    script = render_command(command, {"e": "", "x": "two words"})
    done = bash("f() { printf '[%s]' \"$@\"; }; " + script, tmp_path)
    assert done.stdout.decode() == "".join(f"[{word}]" for word in words)


def test_value_that_becomes_a_program_after_an_empty_one_is_refused() -> None:
    with pytest.raises(RecipeError, match="is used as the name of a program"):
        render_command("{{e}} {{x}}", {"e": "", "x": "a b"})


# Where bash evaluates text.
NUMBERS = {
    "arithmetic": "echo $(( {{x}} ))",
    "arithmetic in quotes": 'echo "$((1 + {{x}} - 1))"',
    "arithmetic command": "(( y = {{x}} )); echo $y",
    "arithmetic loop": "for ((i={{x}}; i<={{x}}; i++)); do echo $i; done",
    "subscript": "a[{{x}}]=1; echo ${!a[@]}",
    "subscript in an array": "a=([{{x}}]=1); echo ${!a[@]}",
    "number test": "[[ {{x}} -eq 3 ]] && echo 3",
    "number test behind others": "[[ a == a && {{x}} -gt 2 && 4 -gt {{x}} ]] && echo 3",
    "integer variable": "declare -i y={{x}}; echo $y",
    "integer variable set later": "declare -i y; y={{x}}; echo $y",
    "variable in arithmetic": "y={{x}}; echo $((y))",
    "expanded variable in arithmetic": 'y="{{x}}"; echo $(( $y + 0 ))',
    "variable in a number test": "y={{x}}; [[ $y -eq 3 ]] && echo $y",
    "variable in a subscript": "y={{x}}; a=(0 1 2 3); echo ${a[$y]}",
    "loop variable in arithmetic": "for y in {{x}}; do echo $((y)); done",
}


@pytest.mark.parametrize("command", NUMBERS.values(), ids=NUMBERS)
def test_only_numbers_are_allowed_in_arithmetic(command: str, tmp_path: Path) -> None:
    assert bash(render_command(command, {"x": 3}), tmp_path).stdout == b"3\n"
    with pytest.raises(RecipeError, match=r"only (a number|letters, .*) can be inserted there"):
        render_command(command, {"x": f"a[$({RUN})]"})


@pytest.mark.parametrize("number", [0, -3, "+4", "", 2.5, "007"])
def test_accepted_numbers_contain_no_code(number: object) -> None:
    assert render_command("echo $(( {{x}} + 1 ))", {"x": number})


@pytest.mark.parametrize("text", ["x", "1+1", "a[0]", "1 ", "1\n", "٣", "1e3", "0x1f"])
def test_text_that_bash_would_evaluate_is_not_a_number(text: str) -> None:
    with pytest.raises(RecipeError):
        render_command("echo $(( {{x}} + 1 ))", {"x": text})


REFUSED = [
    "{{x}}",
    "{{x}} --version",
    '"{{x}}"',
    "{{x}}{{x}} a",
    "if {{x}}; then :; fi",
    "! {{x}}",
    "A=1 {{x}}",
    "sudo -n {{x}}",
    "env A=1 {{x}}",
    "env {{x}}=1 printenv",
    "timeout 5 {{x}}",
    "exec {{x}}",
    "$(echo {{x}})",
    "find . -exec {{x}} \\;",
    "eval {{x}}",
    'eval "$(echo {{x}})"',
    "eval 'echo {{x}}'",
    "bash -c {{x}}",
    "bash -ec 'echo {{x}}'",
    "bash -c 'echo \"$1\"' _ {{x}}",
    'sudo sh -c "echo {{x}}"',
    "find . -exec sh -c 'echo {{x}}' \\;",
    "bash {{x}} {{x}}",
    "bash <<EOF\n{{x}}\nEOF",
    "bash -s <<'EOF'\necho {{x}}\nEOF",
    "cat <<EOF | sh\n{{x}}\nEOF",
    "bash <<< {{x}}",
    "bash < <(echo {{x}})",
    "bash <(echo {{x}})",
    "source <(echo {{x}})",
    "echo {{x}} | bash",
    "echo {{x}} | sudo bash -s",
    "echo {{x}} | docker exec -i box sh",
    "ssh host {{x}}",
    "trap 'echo {{x}}' EXIT",
    "let y={{x}}",
    "read {{x}}",
    "unset {{x}}",
    "export {{x}}",
    'declare "{{x}}=1"',
    "printf -v {{x}} a",
    "printf {{x}} {{x}}",
    "declare -a y={{x}}",
    "test -v {{x}}",
    "[ -v {{x}} ]",
    "[[ -v {{x}} ]]",
    "{{x}}=1",
    "A_{{x}}=1",
    "echo ${{x}}",
    "echo ${{{x}}}",
    "echo ${!{{x}}}",
    "echo ${y:{{x}}}",
    "echo ${y:-{{x}}}",
    "echo ${y#{{x}}}",
    "a=(0 1); echo ${a[{{x}}]}",
    "y=({{x}})",
    "y={{x}}; echo ${y:0:9}",
    "echo $'{{x}}'",
    "echo `echo {{x}}`",
    "mytool < f {{x}}",
    "for {{x}} in a; do :; done",
    "{{x}}() { :; }",
    "PS4={{x}}; set -x; :",
    "y={{x}}; $y",
    'y={{x}}; "$y" --version',
    'y=({{x}}); "${y[@]}"',
    'y={{x}}; eval "$y"',
    'y={{x}}; bash -c "$y"',
    'y={{x}}; echo "$y" | bash',
    "y={{x}}; echo ${!y}",
    "cat <<EOF\n`{{x}}`\nEOF",
    "cat <<EOF\n${y:-{{x}}}\nEOF",
    "echo `cat <<'EOF'\n{{x}}\nEOF\n`",
    "echo `echo \\`{{x}}\\``",
    "cat <<{{x}}\na\n{{x}}",
    "cat <<'A B'\n{{x}}\nA B",
    'echo "{{x}}',
    "echo {{back | raw}}{{x}}",
]


@pytest.mark.parametrize("command", REFUSED)
def test_value_is_refused_where_it_would_be_executed(command: str) -> None:
    with pytest.raises(RecipeError) as caught:
        render_command(command, {"x": "-c", "back": "\\"})
    assert "{{x}}" in str(caught.value)
    assert "| raw}}" in str(caught.value) and "env" in str(caught.value)


def test_refusal_names_line_variable_and_place() -> None:
    with pytest.raises(RecipeError) as caught:
        render_command("set -e\n\neval {{step.result}}", {"step": {"result": "ls *"}})
    assert str(caught.value) == (
        "Line 3: {{step.result}}, which comes from a step or a row, is used as the name of a "
        "program: no such value can be inserted there. Pass it in the step's env, as in "
        '`env: {STEP_RESULT: "{{step.result}}"}`, and write "$STEP_RESULT", or write '
        "{{step.result | raw}} to insert it as part of the command."
    )


ALLOWED = [
    '[ "$(wc -l < {{x}})" -gt 1 ]',
    "bash run.sh {{x}}",
    "./run.sh --title={{x}} {{x}}",
    "./run.sh a {{x}}; ./run.sh b {{x}}",
    "command -v bash > {{x}}",
    "echo bash > {{x}}",
    "y={{x}}; unset y; read y < /dev/null",
    "[ {{x}} -gt 1 ]",
    '[ -n "{{x}}" ] || [ -z "$HOME" ]',
    'export PATH="$HOME/bin:$PATH"; mytool {{x}}',
    "python3 -m pytest {{x}} -k {{x}}",
    "echo {{x}} | sed 's/a/b/' | awk '{print $1}' | jq --arg y {{x}} '.a'",
    "X={{x}} python3 run.py",
    'export "Y={{x}}"',
    "find {{x}} -name {{x}} -exec grep -l {{x}} {} +",
    "echo {{x}} | xargs -I{} cp {} folder",
    "while IFS= read -r y; do echo $y; done <<< {{x}}",
    "timeout 5 curl -d {{x}} https://example.org",
    "git commit -m {{x}} && git push origin {{x}} 2>> {{x}}.log",
    "npm run build -- {{x}} && docker build -t a:{{x}} .",
]


@pytest.mark.parametrize("command", ALLOWED)
def test_ordinary_commands_are_not_refused(command: str) -> None:
    assert render_command(command, {"x": "some text"})


# Harmless with any value, but each has a part that may run text as code, and the flow of values is
# not followed.
ALONGSIDE_CODE = [
    "n=$(wc -l < {{x}}); [[ $n -gt 1 ]]",
    "[[ $(wc -l < {{x}}) -gt 1 ]]",
    "start=$(date +%s); echo {{x}} $(( $(date +%s) - start ))",
    "for y in {{x}}; do i=$((i + 1)); done",
    'f=$(mktemp); cat <<\'EOF\' > "$f"\n{{x}}\nEOF\nsed -i s/a/b/ "$f"',
    'y=$(cat f); echo {{x}} "${a[$y]}"',
    "trap 'rm -f none' EXIT; echo {{x}}",
    "Y={{x}}; bash -c 'echo \"$Y\"'",
    'file=$(cat f); sed s/a/b/ "$file"; echo {{x}}',
]


@pytest.mark.parametrize("command", ALONGSIDE_CODE)
def test_value_alongside_code_must_be_harmless(command: str) -> None:
    assert render_command(command, {"x": "v1.2/a"})
    with pytest.raises(RecipeError, match=r"also contains .*only letters.*env: \{X: "):
        render_command(command, {"x": "a b"})


# Programs that may run an argument or their input as code.
NUMBERS_IN_CODE = [
    "sh -c 'exit {{x}}'",
    "env A=1 timeout 9 nice ssh host {{x}}",
    '"$tool" {{x}}',
    "python3 -c 'import sys; print(sys.argv[1])' {{x}}",
    "python3 - {{x}} <<'EOF'\nimport sys\nEOF",
    "python3 <<'EOF'\nprint({{x}})\nEOF",
    "awk '{print {{x}}}' f",
]


@pytest.mark.parametrize("command", NUMBERS_IN_CODE)
def test_value_in_code_must_be_a_number(command: str) -> None:
    for number in (7, 2.5, ""):
        assert render_command(command, {"x": number})
    for text in ("a", ".", "7 ", "+", "1e3"):
        with pytest.raises(RecipeError, match=r"may run it as code: only a number.*env: \{X: "):
            render_command(command, {"x": text})


def test_raw_value_is_part_of_the_command(tmp_path: Path) -> None:
    script = render_command("{{x | raw}} {{x}}", {"x": "printf %s"})
    assert script.endswith('printf %s "${nb_value_0}"')
    assert bash(script, tmp_path).stdout == b"printf %s"


def test_command_without_values_is_unchanged() -> None:
    command = 'echo "unclosed {{x | raw}} {{#if x}}`a`{{/if}}'
    assert render_command(command, {"x": "y"}) == render(command, {"x": "y"})


OWN_TEXT = "  a\\n \\\\ \\\n $HOME ${x} $(touch canary) `touch canary` \"q\" 'q' \\$ é\n\n\tb"


def test_quoted_here_document_keeps_its_own_text(tmp_path: Path) -> None:
    script = render_command(f"cat <<'EOF'\n{OWN_TEXT}{{{{x}}}}\nEOF\necho end", {"x": "$HOME"})
    assert bash(script, tmp_path).stdout.decode() == f"{OWN_TEXT}$HOME\nend\n"
    assert list(tmp_path.iterdir()) == []


def test_lines_keep_their_numbers_for_any_values(tmp_path: Path) -> None:
    script = render_command("echo {{x}} >/dev/null\necho $LINENO", {"x": "a\nb\nc"})
    assert bash(script, tmp_path).stdout == b"2\n"


def test_name_that_the_command_uses_is_avoided(tmp_path: Path) -> None:
    script = render_command("nb_value_0=a; echo $nb_value_0 {{x}}", {"x": "b"})
    assert bash(script, tmp_path).stdout == b"a b\n"


def test_value_that_cannot_be_passed_to_a_program_is_refused() -> None:
    for text in ("a\0b", "\ud800"):
        with pytest.raises(RecipeError, match="a character that can't be passed to a program"):
            render_command("echo {{x}}", {"x": text})


def test_script_is_safe_in_any_locale() -> None:
    assert render_command("echo {{x}}", {"x": "中'\\"}).isascii()


def test_value_in_a_scripts_path_is_refused_unless_it_flows_there_as_a_harmless_word() -> None:
    for command in ("{{dir}}/x.sh", "bash {{dir}}/x.sh"):
        with pytest.raises(RecipeError, match="as the name of a program: no such value"):
            render_command(command, {"dir": "./here"})
    assert render_command('s="{{dir}}/x.sh"; "$s"', {"dir": "./here"})
    with pytest.raises(RecipeError, match="only letters, digits and"):
        render_command('s="{{dir}}/x.sh"; "$s"', {"dir": "./he re"})
