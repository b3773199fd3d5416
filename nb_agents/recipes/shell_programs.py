"""What is known of programs: which run text as code, and which options take text.

A program that is not named here takes its arguments as data, but those of options that look like
code's, and an interpreter behind it counts as one.
"""

from __future__ import annotations

import re
from typing import NamedTuple

ALWAYS = frozenset(
    "alias bind coproc compgen complete enable eval fc hash history jobs let trap".split()
)
"""Builtins that run or work out what they are given, now or later."""

GIVEN = frozenset(
    "at batch bmake bwrap crontab dc dd duckdb ed emacs ex expect fzf gdb gmake gnuplot gosu"
    " hyperfine just less lftp lldb m4 machinectl make man mariadb mongo mongosh mysql nsenter"
    " nvim parallel proot psql rake rlwrap runuser schroot screen script setpriv sftp sg socat"
    " sqlite3 ssh su systemd-run telnet tmux unshare vi vim watch watchexec".split()
)
"""Programs that run as code what they are given as arguments or read."""

FILTERS = frozenset("awk gawk gojq gsed jq mawk nawk sed".split())
"""Programs whose first argument is code in a language of their own."""

NAMING = frozenset(
    "declare export getopts local mapfile read readarray readonly typeset unset wait".split()
)
"""Builtins that take names of variables."""

PLAIN = NAMING | frozenset(
    ": break caller cd continue dirs disown echo exit false kill logout popd pushd pwd return set"
    " shift suspend times true type ulimit umask which"
    " b2sum base32 base64 basename bc cat chgrp chown cksum cmp comm cp cut date df diff"
    " dirname du egrep expand expr factor fgrep file fmt fold gh grep head hostname id install join"
    " ln ls md5sum mkdir mktemp mv nl nproc numfmt od paste pathchk printenv readlink realpath rev"
    " rm rmdir seq sha1sum sha256sum sha512sum shuf sleep stat strings sum sync tac tail tee touch"
    " tr tsort uname unexpand uniq wc whoami yes".split()
)
"""Programs that start no other: a word behind them names none."""

WRAPPERS = {
    **dict.fromkeys(
        "builtin busybox caffeinate catchsegv chronic command firejail nohup setsid toybox".split(),
        "",
    ),
    **dict.fromkeys("chroot chrt setarch taskset unbuffer valgrind".split(), ""),
    **dict.fromkeys("doas sudo".split(), "-[CDghpRrTtu]"),
    **dict.fromkeys("npx uvx".split(), "-p|--(?:package|from|with|python)"),
    **dict.fromkeys("ltrace strace".split(), "-[aeIosuEpPX]"),
    **{"env": "-[uC]", "exec": "-a", "flock": "-[wE]", "ionice": "-[cnp]", "nice": "-n"},
    **{"pkexec": "--user", "stdbuf": "-[eio]", "time": "-[fo]", "xargs": "-[dEILnPs]"},
    **{"timeout": "-[ks]|--(?:signal|kill-after)", "xvfb-run": "-[efnpsw]"},
}
"""Programs that start another, with their options before a word."""

WITH_OPERAND = frozenset("chroot chrt flock setarch taskset timeout".split())
"""Those of them with a word of their own before the program."""

STARTING = re.compile("run|exec|foreach|x|dlx|eval|shell|-(?:exec|ok)(?:dir)?")
"""Words behind which a program's name stands, as in ``uv run``."""

STARTUP = re.compile("BASH_ENV|ENV|PROMPT_COMMAND|PS4")
"""Variables that say what a shell runs besides, whoever set them."""

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

EXECUTABLE = re.compile(r"[ugoa]*[+=]\w*[xX]\w*|[0-7]*[1357][0-7]*$")
"""Modes with which a file can be run."""

BEHIND = frozenset("busybox env eval expect ssh su sudo toybox xargs".split())
"""Programs that are looked for behind any other, as interpreters are."""


class Interpreter(NamedTuple):
    """How a program that runs code, a file of code, or what it reads takes its arguments.

    Attributes:
        kind: ``sh`` or ``python`` for their code; "" for another's.
        code: Its options before code.
        flags: Those that stand alone and change nothing of this.
        valued: Those before another word.
    """

    kind: str
    code: re.Pattern[str]
    flags: re.Pattern[str] = re.compile("(?!)")
    valued: re.Pattern[str] = re.compile("(?!)")


SHELL = Interpreter(
    "sh",
    re.compile(r"[-+]\w*c\w*"),
    re.compile("[-+][efuvx]+|--no.*|--"),
    re.compile("[-+][eux]*[oO]"),
)
_PYTHON = Interpreter(
    "python", re.compile(r"-\w*c"), re.compile("-[bBdEIOPqsSuvx]+|--"), re.compile("-[WX]")
)
_OTHER = Interpreter("", re.compile(r"-[\w.]*[eEpcr]|-Command|--(?:eval|print|exec|expr|comm)\w*"))
_SOURCE = Interpreter("sh", re.compile("(?!)"))
_INTERPRETERS = {
    **dict.fromkeys("ash bash csh dash elvish fish ksh mksh nu rbash sh tcsh zsh".split(), SHELL),
    **dict.fromkeys((".", "source"), _SOURCE),
    **dict.fromkeys("python pypy ipython xonsh".split(), _PYTHON),
    **dict.fromkeys("clisp deno elixir erl escript groovy guile iex irb jshell".split(), _OTHER),
    **dict.fromkeys(("node", "nodejs"), _OTHER._replace(kind="node")),
    **dict.fromkeys("julia kotlin lua luajit octave osascript perl".split(), _OTHER),
    **dict.fromkeys("php powershell pwsh racket raku ruby sbcl scala swift tclsh".split(), _OTHER),
    **dict.fromkeys("R Rscript ts-node tsx wish yash".split(), _OTHER),
}


def interpreter(name: str) -> Interpreter | None:
    """Return how an interpreter takes its arguments, if a program is one.

    Args:
        name: The program's, without a folder; a version may stand behind it.
    """
    return _INTERPRETERS.get(name) or _INTERPRETERS.get(re.sub(r"(?<=\w)[-.0-9]+$", "", name))


_TEXT = re.compile(
    r"--(?:message|title|body|description|subject|comment|content|note|prompt|query"
    r"|question|task|goal|topic|name|label|arg|argjson|data(?:-\w+)?|header|regexp|grep)"
)
_OWN_TEXT = {
    **{"awk": "-[Fv]", "curl": "-[AdFHu]", "cut": "-[cdf]", "gh": "-[bBFHlRt]"},
    **{
        "git": "--author|--date",
        "git commit": "-a?m",
        "git tag": "-m",
        "grep": "-[eABCm]",
        "head": "-[cn]",
    },
    **{"git merge": "-m", "sort": "-[kt]", "tail": "-[cn]"},
}


def takes_text(program: str, before: list[str]) -> bool:
    """Return whether what follows is an option's argument, whatever it begins with.

    Args:
        program: Its name.
        before: The words before, as far as they are known.
    """
    names = (program, f"{program} {before[1]}" if len(before) > 1 else "")
    own = any(re.fullmatch(_OWN_TEXT.get(name, "(?!)"), before[-1]) for name in names)
    is_pair = len(before) > 1 and bool(re.fullmatch("--arg(?:json)?", before[-2]))
    return is_pair or bool(own or _TEXT.fullmatch(before[-1]))
