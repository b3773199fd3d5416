"""Lists the programs that pass their arguments on as data, and those that run text as code.

A program in neither list is assumed to treat its arguments as data. Two exceptions: an argument of
an option whose name suggests that it takes code, and an argument that names an interpreter.
"""

from __future__ import annotations

import re

INERT = frozenset(
    ": break caller cd continue dirs disown echo exit false kill logout popd pushd pwd return set"
    " shift suspend times true type ulimit umask which"
    " b2sum base32 base64 basename bc cat chgrp chown cksum cmp comm cp cut date df diff"
    " dirname du egrep expand expr factor fgrep file fmt fold gh grep head hostname id install join"
    " ln ls md5sum mkdir mktemp mv nl nproc numfmt od paste pathchk printenv readlink realpath rev"
    " rm rmdir seq sha1sum sha256sum sha512sum shuf sleep stat strings sum sync tac tail tee touch"
    " tr tsort uname unexpand uniq wc whoami yes".split()
)
"""Programs that never start other programs."""

_CODE = frozenset(
    "alias at awk batch bind bmake builtin busybox bwrap caffeinate catchsegv chmod chronic chroot"
    " chrt command compgen complete coproc crontab dc dd declare doas duckdb ed emacs enable env"
    " eval ex exec expect export fc firejail flock fzf gawk gdb getopts gmake gnuplot gojq gosu"
    " gsed hash history hyperfine ionice jobs jq just less let lftp lldb local ltrace m4 machinectl"
    " make man mapfile mariadb mawk mongo mongosh mysql nawk nice nohup npx nsenter nvim parallel"
    " pkexec proot psql rake read readarray readonly rlwrap runuser schroot screen script sed"
    " setarch setpriv setsid sftp sg socat sqlite3 ssh stdbuf strace su sudo systemd-run tar"
    " taskset telnet time timeout tmux toybox trap typeset unbuffer unset unshare uvx valgrind vi"
    " vim wait watch watchexec xargs xvfb-run".split()
)
"""Programs that run their arguments or input as code or let a file run, and shell builtins that
assign to variables."""

SPECIAL = re.compile(
    r"HISTCMD|OPTIND|S?RANDOM|SECONDS"  # bash evaluates assignments to them
    r"|BASH\w*|BROWSER|CC|CXX|DIRSTACK|ENV|GCONV_PATH|GIT_\w*(?:CONFIG|DIR|DIFF|PATH|SSH)\w*|IFS"
    r"|JAVA_\w+|(?:DY)?LD_\w+|LESS\w*|LUA_INIT\w*|MAKE\w+|NODE_\w+|PATH|PERL\w+|PROMPT_COMMAND"
    r"|PS\d|PYTHON\w+|RSYNC_RSH|RUBY\w+|SHELL\w*|VISUAL"
    r"|\w*(?:ASKPASS|COMMAND|EDITOR|FLAGS|OPTIONS|OPTS?|PAGER)"
)
"""Variables that determine what bash or a program runs."""

_DATA = r"(?:[^-\0\n].*\n)*"
_NAME = rf"(?!(?:{SPECIAL.pattern})\n)[A-Za-z_]\w*"
_LINES = r"(?:[\d,$]+[dpq]|/[^/\n]*/[dp])"
_SUBSTITUTE = r"s(?P<mark>[/|#,@])(?:(?:\\.|(?!(?P=mark)).)*(?P=mark)){2}[gIip\d]*"
SHAPES = {
    name: re.compile(shape)
    for name, shape in {
        "awk": rf"(?:-F.+\n)?\{{ *print[\w\s$,\"]*\}}\n{_DATA}",
        "command": r"-[vV]\n.*\n",
        "jq": r"(?:-[ceMnrRsS]+\n|--arg(?:json)?\n\w+\n.*\n)*[^-\0\n][^\0\n]*\n(?:.*\n)*",
        "printf": r"[^-\0\n](?:.*\n)*",
        "read": rf"(?:-[rs]+\n|{_NAME}\n)*",
        "sed": rf"(?:-[nrE]+\n)*(?:(?:{_SUBSTITUTE}|{_LINES})(?:; *|(?=\n)))+\n{_DATA}",
        "xargs": rf"(?:-0\n|-r\n|-I ?\n?\{{\}}\n|-n\n\d+\n)*(?:{'|'.join(INERT)})\n(?:.*\n)*",
    }.items()
}
"""The arguments with which programs that can run code run none. Each argument is a line, with NUL
at the end of its known text if it has an unknown part."""

PREFIXES = frozenset("nice nohup time timeout".split())
"""Programs that start the program in their arguments and do nothing else with them."""

WRAPPERS = frozenset(
    "builtin command env exec nice nohup npx setsid stdbuf sudo time timeout uvx xargs".split()
)
"""Programs that start another program, after options, numbers and assignments."""

BEFORE_PROGRAM = re.compile(r"-|[\d.]+[smhd]?$|\w+=|\{\}$")
"""Arguments of a wrapper that come before the name of the program."""

STARTING = re.compile("run|exec|foreach|x|dlx|eval|shell|-(?:exec|ok)(?:dir)?")
"""Words that are followed by the name of a program, as in ``uv run``."""

CODE_WORD = re.compile(r"alias\..*|.*=!.*|config|--checkpoint.*", re.DOTALL)
"""Arguments that let a program run code."""

CODE_OPTION = re.compile(
    r".* (?:-[cCeE]|-(?:ex|[lei]c|Command|TT)"
    r"|--?(?:\w+-)*(?:action|askpass|browser|cmd|command|code|editor|eval|exec|execute|expression"
    r"|filter|hook|pack|pager|program|rsh|run|script|shell)(?:-\w+)*)|git -[uO]"
)
"""Programs and options that are followed by code."""

MODULES = re.compile("timeit|code|pdb|trace|runpy|c?[pP]rofile|IPython|xonsh")
"""Python modules that run their arguments."""

_KINDS = {
    **dict.fromkeys("ash bash csh dash elvish fish ksh mksh nu rbash sh tcsh zsh".split(), "sh"),
    **dict.fromkeys((".", "source"), "sh"),
    **dict.fromkeys("python pypy ipython xonsh".split(), "python"),
    **dict.fromkeys("clisp deno elixir erl escript groovy guile iex irb jshell julia".split(), ""),
    **dict.fromkeys("kotlin lua luajit node nodejs octave osascript perl php pwsh".split(), ""),
    **dict.fromkeys("powershell R racket raku Rscript ruby sbcl scala swift tclsh".split(), ""),
    **dict.fromkeys("ts-node tsx wish yash".split(), ""),
}
FLAGS = {
    "sh": re.compile("[-+][efuvx]+|--no.*|--"),
    "python": re.compile("-[bBdEIOPqsSuvx]+|--"),
    "": re.compile("(?!)"),
}
"""Options of interpreters that take no argument and do not change what runs."""


def basename(path: str) -> str:
    """Return the last part of a path."""
    return path.rpartition("/")[2]


def interpreter(name: str) -> str | None:
    """Return the kind of interpreter of a program: "sh", "python" or "" (others), or None.

    Args:
        name: The program's name without directory. It may end with a version.
    """
    return _KINDS.get(name, _KINDS.get(re.sub(r"(?<=\w)[-.0-9]+$", "", name)))


def runs_code(name: str) -> bool:
    """Return whether a program may run its arguments as code."""
    return name in _CODE or interpreter(name) is not None


_TEXT_OPTIONS = re.compile(
    r"--(?:message|title|body|description|subject|comment|content|note|prompt|query"
    r"|question|task|goal|topic|name|label|arg|argjson|data(?:-\w+)?|header|regexp|grep)"
)
_PROGRAM_TEXT_OPTIONS = re.compile(
    "awk -[Fv]|curl -[AdFHu]|cut -[cdf]|gh -[bBFHlRt]|git --(?:author|date)|git commit -a?m"
    "|git (?:merge|tag) -m|grep -[eABCm]|head -[cn]|sort -[kt]|tail -[cn]"
)


def takes_text(before: list[str]) -> bool:
    """Return whether the next word is the value of an option, so that a leading - is harmless.

    Args:
        before: The words before it, starting with the program, or "" for words that are unknown.
    """
    names = {before[0], " ".join(before[:2])}
    is_own = any(_PROGRAM_TEXT_OPTIONS.fullmatch(f"{name} {before[-1]}") for name in names)
    is_pair = before[-2:-1] in (["--arg"], ["--argjson"])
    return is_own or is_pair or bool(_TEXT_OPTIONS.fullmatch(before[-1]))
