"""What is known of programs: which run text as code, and which options take text.

A program that is not named here takes its arguments as data, but those of options that look like
code's, and an interpreter behind it counts as one.
"""

from __future__ import annotations

import re

ALWAYS = frozenset(
    "alias bind coproc compgen complete declare enable eval fc hash history jobs let mapfile"
    " readarray trap typeset"
    " busybox caffeinate catchsegv chronic chroot chrt doas firejail flock ionice ltrace pkexec"
    " setarch strace taskset toybox unbuffer valgrind xvfb-run".split()
)
"""Builtins and programs that run what they are given, or of which options do."""

RUNNERS = frozenset(
    "at batch bmake bwrap chmod crontab dc dd duckdb ed emacs ex expect fzf gdb gmake gnuplot gosu"
    " hyperfine just less lftp lldb m4 machinectl make man mariadb mongo mongosh mysql nsenter"
    " nvim parallel proot psql rake rlwrap runuser schroot screen script setpriv sftp sg socat"
    " sqlite3 ssh su systemd-run telnet tmux unshare vi vim watch watchexec".split()
)
"""Programs that run as code what they are given as arguments or read, or let files be run."""

FILTERS = frozenset("awk gawk gojq gsed jq mawk nawk sed".split())
"""Programs whose first argument is code in a language of their own."""

NAMING = frozenset("export getopts local read readonly unset wait".split())
"""Builtins that take names of variables."""

PLAIN = frozenset(
    ": break caller cd continue dirs disown echo exit false kill logout popd pushd pwd return set"
    " shift suspend times true type ulimit umask which"
    " b2sum base32 base64 basename bc cat chgrp chown cksum cmp comm cp cut date df diff"
    " dirname du egrep expand expr factor fgrep file fmt fold gh grep head hostname id install join"
    " ln ls md5sum mkdir mktemp mv nl nproc numfmt od paste pathchk printenv readlink realpath rev"
    " rm rmdir seq sha1sum sha256sum sha512sum shuf sleep stat strings sum sync tac tail tee touch"
    " tr tsort uname unexpand uniq wc whoami yes".split()
)
"""Programs that start no other: a word behind them names none."""

WRAPPERS = frozenset(
    "builtin command env exec nice nohup npx setsid stdbuf sudo time timeout uvx xargs".split()
)
"""Programs that start another, behind options, numbers and assignments."""

STARTING = re.compile("run|exec|foreach|x|dlx|eval|shell|-(?:exec|ok)(?:dir)?")
"""Words behind which a program's name stands, as in ``uv run``."""

SPECIAL = re.compile(
    r"HISTCMD|OPTIND|S?RANDOM|SECONDS"  # bash works out what is assigned to them
    r"|BASH\w*|BROWSER|CC|CXX|DIRSTACK|ENV|GCONV_PATH|GIT_\w*(?:CONFIG|DIR|DIFF|PATH|SSH)\w*|IFS"
    r"|JAVA_\w+|(?:DY)?LD_\w+|LESS\w*|LUA_INIT\w*|MAKE\w+|NODE_\w+|PATH|PERL\w+|PROMPT_COMMAND"
    r"|PS\d|PYTHON\w+|RSYNC_RSH|RUBY\w+|SHELL\w*|VISUAL"
    r"|\w*(?:ASKPASS|COMMAND|EDITOR|FLAGS|OPTIONS|OPTS?|PAGER)"
)
"""Variables from which bash or a program takes what it runs."""

CODE_OPTION = re.compile(
    r"-[cCeE]|-(?:ex|[lei]c|Command|TT)"
    r"|--?(?:\w+-)*(?:action|askpass|browser|cmd|command|code|editor|eval|exec|execute|expression"
    r"|filter|hook|pack|pager|program|rsh|run|script|shell)(?:-\w+)*"
)
"""Options behind which stands what is run."""

MODULES = re.compile("timeit|code|pdb|trace|runpy|c?[pP]rofile|IPython|xonsh")
"""Modules of Python that run their arguments."""

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
"""The options of an interpreter that stand alone and change nothing of what it runs."""


def interpreter(name: str) -> str | None:
    """Return the kind of an interpreter, if a program is one: of a shell, of Python, or "".

    Args:
        name: The program's, without a folder; a version may stand behind it.
    """
    return _KINDS.get(name, _KINDS.get(re.sub(r"(?<=\w)[-.0-9]+$", "", name)))


def runs_code(name: str) -> bool:
    """Return whether a program may run what it is given."""
    known = (ALWAYS, RUNNERS, FILTERS, WRAPPERS)
    return any(name in each for each in known) or interpreter(name) is not None


_TEXT = re.compile(
    r"--(?:message|title|body|description|subject|comment|content|note|prompt|query"
    r"|question|task|goal|topic|name|label|arg|argjson|data(?:-\w+)?|header|regexp|grep)"
)
_OWN_TEXT = re.compile(
    "awk -[Fv]|curl -[AdFHu]|cut -[cdf]|gh -[bBFHlRt]|git --(?:author|date)|git commit -a?m"
    "|git (?:merge|tag) -m|grep -[eABCm]|head -[cn]|sort -[kt]|tail -[cn]"
)


def takes_text(before: list[str]) -> bool:
    """Return whether what follows is an option's argument, whatever it begins with.

    Args:
        before: The words before, as far as they are known, the program's name first.
    """
    names = {before[0], " ".join(before[:2])}
    is_own = any(_OWN_TEXT.fullmatch(f"{name} {before[-1]}") for name in names)
    is_pair = before[-2:-1] in (["--arg"], ["--argjson"])
    return is_own or is_pair or bool(_TEXT.fullmatch(before[-1]))
