"""Random commands with hostile values in a real bash: a value is refused or executes nothing.

The canary is a file that only a command inside a value creates.
"""

import os
import shutil
import signal
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import event, given, settings
from hypothesis import strategies as st

from nb_agents.errors import RecipeError
from tests.kit.processes import Unusable, argv, check_confinement, installed
from tests.kit.recipes import render_command
from tests.samples import some_or_all
from tests.team_kit import WAIT_S

RUN = ": >canary"
VALUES = [
    *(RUN, f"$({RUN})", f"`{RUN}`", f";{RUN};", f"\n{RUN}\n", f"&& {RUN} ||", f"| {RUN}"),
    *(f"'; {RUN}; '", f'"; {RUN}; "', f"') ; {RUN} #", f"a[$({RUN})]", f"-va[$({RUN})]"),
    *(f"[$({RUN})]=1", f"(a $({RUN}))", f"y[$({RUN})]=1", f"-c{RUN}", f"a=$({RUN})", f"!{RUN}"),
    *(f"EOF\n{RUN}\n", f"\nEOF\n{RUN}\n", f"}};{RUN}", f") ;{RUN}", f"\\$({RUN})", f"1e{RUN}"),
    *(f"-e1e{RUN}", f"s/.*/{RUN}/e", f'BEGIN{{system("{RUN}")}}', f'");system("{RUN}");("'),
    *('open("canary","w")', "');open('canary','w')#", f"{RUN}|", "y", "$y", "eval", "-c", "-v"),
]
HARMLESS = ["c", "e", "eval", "sh", "bash", "y", "v", "0", "-1", "f", "a/f", "i", ""]
PLACES = r"""
{{x}}
"{{x}}"
'{{x}}'
"echo {{x}}"
'echo {{x}}'
$'{{x}}'
a{{x}}
-c{{x}}
--a={{x}}
A={{x}}
y={{x}}
./{{x}}
"print('{{x}}')"
"s/a/{{x}}/"
"$(printf %s {{x}})"
$(printf %s '{{x}}')
`printf %s {{x}}`
<(printf %s {{x}})
${z:-{{x}}}
"a[{{x}}]"
"${y:{{x}}}"
${a[{{x}}]}
$(({{x}}))
"""
PLAIN = r"""
{{h}}
-{{h}}
"{{h}}{{x}}"
$h
"-$h"
$y
"$y"
"${y}"
'$y'
"a[$y]"
'a[$y]'
'eval "$y"'
'echo "$((y))"'
'"$1"'
'echo "$1"'
'eval "$1"'
'cat | sh'
"$1"
"$@"
$((y))
${y@P}
"${!y}"
${a[y]}
"${z:y:1}"
"${y#a}"
$(cat f)
"$(<f)"
-c
-e
-n
-v
-i
-a
-s
--
-
_
a
a[0]
f
./f
/dev/stdin
{}
*
f*
-eq
=
=~
1
p
print
1p
"""
PROGRAMS = r"""
$h
./{{h}}
{{x}}
"{{x}}"
a{{x}}/bin/f
$y
"$y"
"${a[@]}"
eval
.
source
exec
command
builtin
[
[[
test
printf
read
read y
declare
declare -i
declare -a
declare -n
export
local
let
unset
set --
trap
alias
mapfile
cat
echo
cp
tee
./f
f
g
bash
sh
"sh"
s\h
b''ash
./bin/sh
./bin/s?
$SHELL
bash -o pipefail
bash -c
bash -ec
bash -euo pipefail -c
sh -s
env
env -i
env -S
env A=1
timeout 5
nice -n 1
nohup
setsid -w
time
xargs
xargs -0
xargs -I{}
find . -maxdepth 0 -exec
find
"""
AROUND = r"""
COMMAND
COMMAND
PLACE | COMMAND
echo {{x}} | COMMAND
printf %s {{x}} | cat | COMMAND
{ echo {{x}}; } | { COMMAND; }
COMMAND <<< {{x}}
COMMAND <<< "echo $y"
COMMAND 0<<< {{x}}
<<< {{x}} COMMAND
2>&1 COMMAND
COMMAND <f
COMMAND < <(echo {{x}})
echo {{x}} > >(COMMAND); sleep 0.02
echo {{x}} | tee >(COMMAND); sleep 0.02
y={{x}}; COMMAND
h={{h}}; COMMAND
h={{h}}; COMMAND {{x}}
h=-{{h}}; COMMAND {{x}}
h={{h}}; y={{x}}; COMMAND
y={{x}} COMMAND
y={{x}}; z=$y; y=$z; COMMAND
y=$(echo {{x}}); COMMAND
y="a[{{x}}]"; COMMAND
export y={{x}}; COMMAND
y=({{x}} a); COMMAND
read -r y <<< {{x}}; COMMAND
mapfile -t y <<< {{x}}; COMMAND
printf -v y %s {{x}}; COMMAND
n=y; printf -v "$n" %s {{x}}; COMMAND
n=y; read -r "$n" <<< {{x}}; COMMAND
n=y; declare "$n={{x}}"; COMMAND
declare -n n=y; n={{x}}; COMMAND
y=z; z={{x}}; COMMAND
n=z; z={{x}}; y=${!n}; COMMAND
RANDOM={{x}}; COMMAND
for SECONDS in {{x}}; do COMMAND; done
read -r OPTIND <<< {{x}}; COMMAND
IFS={{x}}; COMMAND
for y in {{x}}; do COMMAND; done
while read -r y; do COMMAND; done <<< "{{x}}"
set -- {{x}}; COMMAND
set -- {{x}} {{x}}; COMMAND
f() { COMMAND; }; f {{x}}
f() { COMMAND; }; echo {{x}} | f
f() { local y=$1; COMMAND; }; f "{{x}}"
g() { "$@"; }; COMMAND
g() { echo "$1"; }; COMMAND
echo {{x}} > f; COMMAND
printf %s {{x}} > f; chmod +x f; COMMAND
echo {{x}} | tee f; COMMAND
cat <<EOF > f\n{{x}}\nEOF\nCOMMAND
COMMAND <<EOF\n{{x}}\nEOF
COMMAND <<'EOF'\n{{x}}\nEOF
COMMAND <<EOF\n$y\nEOF
cat <<EOF | COMMAND\n{{x}}\nEOF
cat <<'EOF' | COMMAND\n{{x}}\nEOF
exec < <(echo {{x}}); COMMAND
exec 3< <(echo {{x}}); COMMAND /dev/fd/3
echo "$(COMMAND)"
echo `COMMAND`
cat <(COMMAND)
if COMMAND; then echo {{x}}; fi
! COMMAND
COMMAND && COMMAND
( COMMAND )
trap 'COMMAND' EXIT
trap "COMMAND" EXIT; y={{x}}
bash -c 'COMMAND' _ {{x}}
y={{x}} bash -c 'COMMAND'
eval 'COMMAND'
echo {{x}} | xargs COMMAND
find . -maxdepth 0 -exec COMMAND \;
[[ PLACE -eq 1 ]]
[[ $y == PLACE && -n PLACE ]]
[[ -v PLACE ]]
[ PLACE PLACE ]
[ PLACE = PLACE ]
y={{x}}; [[ WORD -eq 1 ]]
y={{x}}; [ WORD WORD ]
echo $(( PLACE ))
y={{x}}; echo $(( y + 1 ))
y={{x}}; (( y++ ))
y={{x}}; for ((i=y; i<1; i++)); do :; done
a[PLACE]=1
y={{x}}; a[y]=1; COMMAND
a=([PLACE]=1)
a=(PLACE [1]=PLACE); COMMAND
case PLACE in PLACE) COMMAND;; esac
declare -A m; m[PLACE]=1; COMMAND
declare -i y; y={{x}}; COMMAND
: ${y:=PLACE}; COMMAND
PS4={{x}}; set -x; COMMAND
y={{x}}; BASH_ENV=f; export BASH_ENV; COMMAND
shopt -s expand_aliases; alias g=eval\ng {{x}}; COMMAND
coproc COMMAND; echo {{x}} >&${COPROC[1]}; sleep 0.02
COMMAND > f {{x}}
COMMAND 2>/dev/null PLACE
# {{x}}\nCOMMAND
"""
OTHERS = [name for name in ("awk", "git", "jq", "perl", "python3", "sed") if shutil.which(name)]


def _lines(text: str) -> st.SearchStrategy[str]:
    return st.sampled_from([line.replace(r"\n", "\n") for line in text.strip().splitlines()])


PLACE = _lines(PLACES)
WORD = PLACE | _lines(PLAIN)
PROGRAM = _lines(PROGRAMS) | st.sampled_from(OTHERS)
SIMPLE = st.builds(
    lambda programs, words: " ".join([*programs, *words]),
    st.lists(PROGRAM, min_size=1, max_size=3),
    st.lists(WORD, max_size=4),
)


@st.composite
def commands(draw: st.DrawFn) -> str:
    """Return a random command."""
    text = draw(_lines(AROUND))
    for name, words in {"COMMAND": SIMPLE, "PLACE": PLACE, "WORD": WORD}.items():
        while name in text:
            text = text.replace(name, draw(words), 1)
    return text


@cache
def _bubblewrap() -> str | None:
    program = installed()
    try:
        if program is not None:
            check_confinement(program)
    except Unusable:
        return None
    return program


def run(script: str, folder: str, limit_s: float = 2) -> None:
    """Run a script for at most this many seconds.

    It is confined if possible. Random commands may write any file that they name, so they only name
    files inside the folder.
    """
    place = Path(folder).resolve()
    (place / "bin").mkdir()
    (place / "bin/sh").write_text('#!/usr/bin/env sh\nexec sh "$@"\n')
    (place / "bin/sh").chmod(0o755)
    command = ["bash", "-c", script]
    if program := _bubblewrap():
        command = argv(program, command, tmp_bytes=10_000_000, cwd=place, writable=[place])
    environment = {"PATH": os.environ["PATH"], "HOME": folder, "SHELL": "sh", "LC_ALL": "C"}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        pass
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def test_executed_command_creates_the_canary(tmp_path: Path) -> None:
    run(f"./bin/sh -c '{RUN}'", str(tmp_path), WAIT_S)
    assert (tmp_path / "canary").exists()


@settings(max_examples=some_or_all(60, 1000))
@given(
    commands(),
    st.lists(st.sampled_from(VALUES), min_size=4, max_size=4, unique=True),
    st.sampled_from(HARMLESS),
)
def test_value_in_any_command_is_refused_or_executes_nothing(
    command: str, values: list[str], harmless: str
) -> None:
    for value in values:
        try:
            script = render_command(command, {"x": value, "h": harmless})
        except RecipeError:
            event("refused")
            continue
        event("run")
        with TemporaryDirectory() as folder:
            run(script, folder)
            assert not Path(folder, "canary").exists(), script
