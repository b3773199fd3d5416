"""What programs do with their arguments, and what a value must be like in a place of a command.

`PLAIN` programs take any text as data. Of the programs that `program` finds, all is code but what
their `Program` names as data. One that it doesn't find takes its arguments as data, except those
of options that look like code's (`UNKNOWN`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

__all__ = [
    "BUILTINS",
    "CONSTANT",
    "PLAIN",
    "Program",
    "REDEFINING",
    "Rule",
    "SETTING",
    "SHELL",
    "SPECIAL",
    "Sink",
    "UNKNOWN",
    "WRITING",
    "code",
    "is_interpreter",
    "nowhere",
    "number",
    "option",
    "path",
    "printed",
    "program",
    "reached",
]

_DIGITS = r"[-+]?[0-9]*\.?[0-9]*"
_NUMBER = re.compile(_DIGITS)
_WORD = re.compile(rf"{_DIGITS}|[A-Za-z0-9_.][A-Za-z0-9_.-]*")
_PATH = re.compile(rf"{_DIGITS}|[A-Za-z0-9_./:,@][A-Za-z0-9_./:,@+-]*")
# Nor `| command`, which Perl's -n and others run when it is given as a file.
_NO_OPTION = re.compile(r"(?!\s*[-+|<>])(?!.*\|\s*\Z).*", re.DOTALL)
_NO_NAMED_OPTION = re.compile(r"(?!--?[A-Za-z]).*", re.DOTALL)

_NEVER = re.compile(r"(?!)")
_ENDS = re.compile("--")

PLAIN = frozenset(
    """
    : break caller cd continue dirs disown echo exit false kill logout popd pushd pwd return
    set shift suspend times true type ulimit umask
    b2sum base32 base64 basename cat chgrp chmod chown cksum cmp comm cp cut date df diff dirname
    du egrep expand expr factor fgrep file fmt fold grep head hostname id join link ln ls md5sum
    mkdir mktemp mv nl nproc numfmt od paste pathchk printenv readlink realpath rev rm rmdir seq
    sha1sum sha256sum sha512sum shuf sleep stat strings sum sync tac tail tee touch tr tsort uname
    unexpand uniq wc which whoami yes
    """.split()
)
"""They take any text as data, also where an option could stand. Bash's builtins come first."""

BUILTINS = frozenset(
    """
    alias bg bind compgen complete compopt declare enable eval export fc fg getopts hash help
    history jobs let local mapfile read readarray readonly shopt typeset unalias unset wait
    """.split()
)
"""Builtins that run what they are given, or take it for names."""

SETTING = frozenset(
    "declare export getopts local mapfile printf read readarray readonly typeset wait".split()
)
"""Builtins that set the variables that they name."""

REDEFINING = frozenset(". alias bind complete coproc enable eval fc hash source".split())
"""Behind them a name or a text may mean what isn't to be seen."""

CONSTANT = frozenset("date hostname id mktemp nproc seq uname wc whoami".split())
"""What they print holds nothing of what they read."""

WRITING = frozenset("cp ln mv tee".split())
"""Their arguments are files that they write."""

SPECIAL = re.compile(
    r"HISTCMD|OPTIND|S?RANDOM|SECONDS"  # bash works out what is assigned to them
    r"|BASH\w*|BROWSER|CC|CXX|DIRSTACK|ENV|GCONV_PATH|GIT_(?!AUTHOR|COMMITTER)\w+|IFS|JAVA_\w+"
    r"|(?:DY)?LD_\w+|LESS\w*|LUA_INIT\w*|MAKE\w+|NODE_\w+|PATH|PERL\w+|PROMPT_COMMAND|PS\d|PYTHON\w+|RSYNC_RSH|RUBY\w+|SHELL\w*|VISUAL"
    r"|\w*(?:ASKPASS|COMMAND|EDITOR|FLAGS|OPTIONS|OPTS?|PAGER)"
)
"""Variables from which bash or a program takes what it runs."""

_WHOLE = r"--[\w-]+=.*"  # an option with its value
_EVALUATES = (
    r"\b(?:eval|exec(?:[lv]\w*|Sync|File\w*)?|system|popen|spawn\w*|getline|qx|Function)\b|`"
    r"|shell *= *True|\| *[\"']"
)
_EVALUATES_TEXTS = (
    r"\b(?:eval|exec|exec[lv]p?e?|system|popen|spawn\w*|getoutput|getstatusoutput|__import__"
    r"|import_module|create_subprocess_shell)\s*\(|\b(?:pty|runpy)\b|shell *= *True"
    r"|\b(?:subprocess|exec\w+)\b(?=.*['\"]-\w*[ceE]['\"])"  # as in ["sh", "-c", …]
)
_EVALUATES_PYTHON = _EVALUATES + r"|^(?:code|pdb|timeit|IPython|xonsh)$"
_PYTHON = r"-[bBdEiIOPqsSuvx]"
_STARTS = r"run|exec|x|dlx|eval|shell"
_NO_O = "[a-np-zA-NP-Z]"  # a shell's `-o` takes a word


class Rule(NamedTuple):
    """What a value must be like in a place.

    Attributes:
        where: The place, in words.
        allowed: What the value must match; None when none can stand there.
        what: The allowed values, in words.
        is_fault: Whether a value that isn't known before doesn't belong there.
        is_silent: Whether the place itself says what is expected, so that a check needn't.
        remedy: What to do instead, with ``%s`` for the value.
    """

    where: str
    allowed: re.Pattern[str] | None
    what: str
    is_fault: bool = False
    is_silent: bool = False
    remedy: str = (
        "Make it an argument, as in bash -c 'echo \"$1\"' _ %s, or give it in the step's env"
    )

    def allows(self, text: str) -> bool:
        """Return whether a value can stand there."""
        return self.allowed is not None and bool(self.allowed.fullmatch(text))

    def refusal(self, path: str) -> str:
        """Return why a value can't stand there, in a sentence, and what to do.

        Args:
            path: The variable.
        """
        name = f"{{{{{path}}}}}"
        only = f"only {self.what}" if self.allowed else "no value"
        remedy = self.remedy.replace("%s", name)
        return (
            f"{name} stands {self.where}, where {only} can stand safely. {remedy}, or write "
            f"{{{{{path} | raw}}}} to insert it as a part of the command."
        )


class Sink(NamedTuple):
    """Text that is run as code, or taken for the name of what is run.

    Attributes:
        spans: The bytes where it stands.
        rule: What a value in it must be like.
        is_open: Whether values may get into it by way of something else.
        line: Where the command is that runs it, from 1.
        texts: The values in it that stand in texts of its language, by their bytes, with those of
            the mark that is replaced so that a text can have escapes.
    """

    spans: tuple[range, ...]
    rule: Rule
    is_open: bool
    line: int
    texts: Mapping[range, range | None] = {}


def nowhere(where: str) -> Rule:
    """Return the rule of a place where no value can stand."""
    return Rule(where, None, "", is_fault=True)


def number(where: str) -> Rule:
    """Return the rule of a place where bash works a text out."""
    return Rule(where, _NUMBER, "a number", is_silent=True, remedy="See that it is one")


def path(where: str, *, is_fault: bool = False) -> Rule:
    """Return the rule of a place where these characters mean nothing to a shell."""
    return Rule(where, _PATH, "letters, digits and _./:,@+-", is_fault)


def word(where: str, *, is_fault: bool = False) -> Rule:
    """Return the rule of a place where these characters mean nothing in most languages."""
    return Rule(where, _WORD, "letters, digits and _.-", is_fault)


def code(name: str, *, is_shell: bool, is_fault: bool = True) -> Rule:
    """Return the rule of a place in code for a program."""
    rule = path if is_shell else word
    return rule(f"in what {name} runs as code", is_fault=is_fault)


def option(name: str, *, is_known: bool) -> Rule:
    """Return the rule of a place where a program may take a value for an option."""
    allowed = _NO_OPTION if is_known else _NO_NAMED_OPTION
    where, what = f"where {name} may take it for an option", "what doesn't begin like one"
    remedy = "Write -- or ./ before it, or give it in the step's env"
    return Rule(where, allowed, what, is_silent=True, remedy=remedy)


def printed(rule: Rule) -> Rule:
    """Return a place's rule for a value that a program is given which prints into the place."""
    return path(rule.where, is_fault=rule.is_fault) if rule.allowed is _NUMBER else rule


def reached(sink: Sink) -> Rule:
    """Return the rule of all places from which a value may get into what is run."""
    rule = word if sink.rule.allowed is _WORD else path  # of a number too: a name is one there
    return rule(f"in a command that also runs text (line {sink.line}: {sink.rule.where})")


@dataclass(frozen=True, kw_only=True)
class Program:
    """How a program takes its arguments.

    Attributes:
        operand: What its first operand is: data as all are, code, a file of code, the command
            that it starts; or code as all its arguments are.
        code: Options before code; with one, all that a program has is code that starts another.
        data: Options before data; before a name and data in the group ``pair``.
        valued: Options before a word that is neither.
        flags: Options that stand alone. Behind any other it isn't known what a word is.
        evaluates: What its code holds when that runs data as code.
        texts: What its code holds when that may run its own texts; None where a value can't be
            written as a part of one.
        actions: The subcommands with which this is so; None for any.
        skips: How many operands stand before the command.
        is_shell: Whether its code is a shell's.
        is_known: Whether this is more than a guess.
        reads: Whether what it reads may be code, when its arguments aren't clear.
        stops: Whether no options follow its first operand or its code.
    """

    operand: Literal["data", "code", "file", "command", "all"] = "all"
    code: re.Pattern[str] = _NEVER
    data: re.Pattern[str] = _NEVER
    valued: re.Pattern[str] = _NEVER
    flags: re.Pattern[str] = _NEVER
    evaluates: re.Pattern[str] = _NEVER
    texts: re.Pattern[str] | None = None
    actions: re.Pattern[str] | None = None
    skips: int = 0
    is_shell: bool = False
    is_known: bool = True
    reads: bool = True
    stops: bool = False

    def kind(self, head: str, *, is_whole: bool) -> str:
        """Return what a word is, as a letter for `grammar`.

        Args:
            head: What it begins with, as far as that is known.
            is_whole: Whether that is all of it.

        Returns:
            For a whole word ``-`` (it ends the options), ``c d p v f`` (an option before code,
            data, a pair or a word, or alone), ``u`` (another option), ``a`` (``NAME=value``) or
            ``o`` (an operand). For another ``f`` (data of an option), ``y`` (an option), ``a`` or
            ``x``.
        """
        if is_whole and head == "-":
            return "-" if self.is_shell else "o"
        if head[:1] not in ("-", "+"):
            is_assignment = self.operand == "command" and re.match(r"\w+=", head)
            return "a" if is_assignment else "o" if is_whole else "x"
        if not is_whole:
            name = head.partition("=")[0]
            is_safe = not (self.is_known or self.code.fullmatch(name))
            return "f" if is_safe or self.data.fullmatch(name) else "y"
        if found := self.data.fullmatch(head):
            return "p" if found.lastgroup else "d"
        patterns = {"-": _ENDS, "c": self.code, "v": self.valued, "f": self.flags}
        return next((kind for kind, each in patterns.items() if each.fullmatch(head)), "u")

    @cached_property
    def grammar(self) -> re.Pattern[str]:
        """How its arguments begin, by their kinds."""
        match self.operand:
            case "command":
                option = "(?:f|v[oxa]|a)*-?"
                return re.compile(rf"(?:{option}[ox]){{{self.skips}}}{option}(?P<command>[ox])")
            case "file" if self.is_shell:
                return re.compile(r"(?:f|vo)*(?:c[cf]*-?(?P<code>[ox])|-?(?P<file>[ox])|$)")
            case "file":
                return re.compile(r"(?:f|v.)*(?:c(?P<code>[ox])|-?(?P<file>[ox])|$)")
            case "code":
                return re.compile(r"(?:f|d.|p..)*(?:c|-?)(?P<code>[ox])|(?:f|d.|p..)*$")
        return re.compile("(?:f|d.)*(?P<action>[ox])" if self.actions else "")

    def does(self, action: str | None) -> bool:
        """Return whether this is how the program takes its arguments with a subcommand."""
        return self.actions is None or bool(self.actions.fullmatch(action or ""))


def _all(names: str, **how: Any) -> dict[str, Program]:
    """Return the entries of similar programs; options are given as regular expressions."""
    keys = ("code", "data", "valued", "flags", "evaluates", "texts", "actions")
    how |= {key: re.compile(how[key], re.DOTALL) for key in keys if key in how}
    return dict.fromkeys(names.split(), Program(**how))


UNKNOWN = Program(
    operand="data",
    code=re.compile(
        r"-(?:[ceE]|ex|[lei]c|Command)|--?(?:eval|exec|execute|command|cmd|run|shell|script|code"
        r"|expression|rsh|filter|hook|(?:init|to|pre|post)-(?:command|cmd))"
    ),
    flags=re.compile(r".*", re.DOTALL),
    is_known=False,
)
"""A program of which nothing is known."""

_PROGRAMS = {
    **_all(
        "sh ash bash csh dash elvish fish ksh mksh nu rbash tcsh xonsh yash zsh",
        operand="file",
        code=rf"[-+]{_NO_O}*c{_NO_O}*|--command",
        valued=rf"[-+]{_NO_O}*[oO]",
        flags=rf"[-+]{_NO_O}+|--(?:login|no\w+|posix|restricted|verbose)",
        is_shell=True,
        stops=True,
    ),
    **_all(
        "python pypy",
        operand="file",
        code=_PYTHON + "*[cm]",
        valued="-[WX]",
        flags=_PYTHON + "+|" + _WHOLE,
        evaluates=_EVALUATES_PYTHON,
        texts=_EVALUATES_TEXTS,
        stops=True,
    ),
    **_all(
        "ipython",
        operand="file",
        code=_PYTHON + "*[cm]",
        flags=_PYTHON + "+|" + _WHOLE,
        evaluates=_EVALUATES_PYTHON,
        stops=True,
    ),
    **_all(
        "R Rscript clisp dotnet elixir erl escript groovy guile iex irb java jshell julia kotlin"
        " lua luajit node nodejs octave osascript php powershell pwsh racket raku ruby sbcl"
        " scala swift tclsh wish",
        operand="file",
        code=r"-[a-zA-Z0-9.]*[eEpr]|-c|-Command|--(?:eval|print|execute|expression|command)",
        flags=r"-[nlatT0-9.]+|" + _WHOLE,
        evaluates=_EVALUATES,
    ),
    **_all(
        "perl",
        operand="file",
        code="-[a-zA-Z0-9.]*[eE]",
        flags="-[TWailnptw0-9.]+",
        evaluates=_EVALUATES,
    ),
    **_all(
        "awk gawk mawk nawk",
        operand="code",
        reads=False,
        data="-[Fv]",
        flags="-[Fv].+",
        evaluates=r"\b(?:system|getline)\b|\|",
        stops=True,
    ),
    **_all(
        "sed gsed",
        operand="code",
        reads=False,
        code="-[nErsuz]*e|--expression",
        flags=r"-[nErsuz]+|-[nErsuz]*i\S*|--(?:quiet|silent|regexp-extended|separate|null-data)",
        evaluates=r"[^\w\s][gpiImM0-9]*e[gpiImM0-9]*\s*(?:[;}#\n]|$)|(?:^|[\s;{}/0-9$])e\b",
    ),
    **_all(
        "jq gojq",
        operand="code",
        reads=False,
        data=r"(?P<pair>--(?:arg|argjson|slurpfile|rawfile))|--indent",
        flags=r"-[a-eg-zA-KM-Z]+|--(?:tab|args|jsonargs|null-input|raw-(?:in|out)put|slurp"
        r"|sort-keys|compact-output|join-output|ascii-output|exit-status)",
    ),
    **_all("builtin catchsegv command coproc exec nohup setsid", operand="command"),
    **_all("npx uvx", operand="command", code="-c|--call", flags="-y|--yes"),
    **_all("fakeroot ltrace strace time valgrind xvfb-run", operand="command", flags=_WHOLE),
    **_all(
        "ionice nice stdbuf",
        operand="command",
        valued="-[cneio]",
        flags=r"-[eio].+|-[0-9]+|" + _WHOLE,
    ),
    **_all(
        "env",
        operand="command",
        code="-.*S.*|--split-string.*",
        valued="-[uC]",
        flags="-|-[i0v]+|" + _WHOLE,
    ),
    **_all(
        "doas pkexec sudo",
        operand="command",
        code="-[si]|--(?:shell|login)",
        valued="-[CDghpRrTtu]",
        flags="-[AbEHKnP]+|" + _WHOLE,
    ),
    **_all(
        "xargs",
        operand="command",
        valued="-[dEILnPs]",
        flags=r"-[0rtpx]+|-[dEILnPs].+|--(?:null|no-run-if-empty|(?:delimiter|max-\w+)=.*)",
    ),
    **_all(
        "chroot chrt flock setarch taskset timeout",
        operand="command",
        code="-c|--command.*",
        valued="-[kswE]|--(?:signal|kill-after)",
        flags="-v|--(?:foreground|preserve-status)|" + _WHOLE,
        skips=1,
    ),
    **_all(
        "bun bundle conda deno go hatch mamba mise npm pdm pipenv pnpm poetry rye uv yarn",
        operand="command",
        actions=_STARTS,
        code="-c|--call",
        flags="-y|" + _WHOLE,
        skips=1,
    ),
    **_all(
        "docker kubectl podman",
        operand="command",
        actions=_STARTS,
        valued="-[evwup]|--(?:name|network|entrypoint|volume|env|workdir|user)",
        flags="-[it]+|--rm|" + _WHOLE,
        skips=2,
    ),
    **_all(
        "git",
        operand="data",
        reads=False,
        data=r"-C|-\w*m|--(?:message|grep|author|date|format|pretty|since|until|after|before|title"
        r"|branch)",
        flags=r"-[abdflnpqsv]+|--(?:all|amend|cached|graph|merges|name-only|name-status|no-[\w-]+"
        r"|numstat|oneline|porcelain|quiet|reverse|short|shortstat|staged|stat|force|tags)|"
        + _WHOLE,
        actions="add|apply|archive|blame|branch|cat-file|checkout|cherry-pick|clean|clone|commit"
        "|describe|diff|fetch|init|log|ls-files|ls-remote|merge|merge-base|mv|notes|pull|push"
        "|remote|reset|restore|rev-list|rev-parse|revert|rm|shortlog|show|stash|status|switch|tag"
        "|worktree",
    ),
    **_all(
        "find",
        operand="data",
        reads=False,
        data=r"-(?:i?name|i?path|i?regex|size|newer|[acm](?:time|min)|user|group|perm|m\w+depth)",
        flags=r"-(?:print0?|o|a|not|empty|prune|delete)",
    ),
    **_all(
        "rsync scp sort split tar wget zip",
        operand="data",
        reads=False,
        data=r"-[a-zA-Z]*f|-[CoOkt]|--(?:file|directory|exclude|output-document)",
        flags=r"-[a-dg-hj-zA-EG-HJ-RU-Z0-9]+|" + _WHOLE,
    ),
    **_all(
        "at batch bc bmake busybox bwrap crontab dc duckdb ed emacs ex expect fd firejail ftp"
        " gdb gmake gnuplot gosu lftp lldb lxc m4 machinectl mail mailx make mariadb mongo"
        " mongosh mutt mysql nix nsenter nvim parallel proot psql redis-cli rlwrap runuser"
        " schroot screen script setpriv sftp sg sqlite3 ssh su systemd-run tmux toybox ts-node"
        " tsx unbuffer unshare vagrant vi vim"
    ),
    **_all(
        "ansible cmake convert dasel entr fab fzf gs guix hyperfine just latex less magick"
        " man more nc ncat ninja nix-shell nodemon pdflatex rake socat sox start-stop-daemon"
        " task telnet watch watchexec xelatex xterm yq",
        reads=False,
    ),
}

SHELL = _PROGRAMS["sh"]


def program(name: str) -> Program:
    """Return what is known of a program, by its name without a folder; `UNKNOWN` for nothing."""
    return _PROGRAMS.get(name) or _PROGRAMS.get(re.sub(r"[-.0-9]+$", "", name)) or UNKNOWN


def is_interpreter(name: str) -> bool:
    """Return whether a word is looked at as a program also behind programs that aren't known."""
    behind = ("busybox", "env", "eval", "expect", "ssh", "su", "sudo", "toybox", "xargs")
    return name in behind or program(name).operand in ("code", "file")
