"""Errors: messages for users, pickling and display."""

import ast
import pickle
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

from nb_agents import errors
from tests.kit.runs import AgentStopped, CancellationStatus, StopRequest
from tests.kit.views import RunView, receipt

RECEIPT = receipt(RunView(), "/s/turn_1")

ERRORS: list[errors.NbAgentsError] = [
    errors.ConfigError("Wrong.", file="team.yaml", line=3, column=7),
    errors.MissingKeyError("ada", "OPENAI_API_KEY", "openai"),
    errors.MissingKeyError("ada", "AZURE_OPENAI_ENDPOINT", "azure_openai", "an address"),
    errors.TaskError("The task is empty."),
    errors.RecipeError("{{x}} is not defined."),
    errors.UnknownRunError("r9", ("r1",)),
    errors.RunNotFinished("r1"),
    errors.UnknownSessionError("sesion_1", "/root", "session_1"),
    errors.SessionBusyError("session_1", "pid 7"),
    errors.SessionChangedError("session_1", 2),
    errors.SweepBusyError("a-sweep", "another sweep"),
    errors.NotYoursError("session_1", ("command of make: make",)),
    errors.SessionUnreadableError("/s", "Permission denied"),
    errors.ClusterLostError("tcp://127.0.0.1:8786", "Connection refused"),
    errors.NoWorkersError("tcp://127.0.0.1:8786", "for 120 s"),
    errors.StorageError("/s", "No space left on device"),
    errors.ServerError("http://127.0.0.1:8888", "it did not reply in time"),
    errors.ModelCallError("gpt", "503"),
    errors.ReplyTooLongError("The reply", 10, "bytes"),
    errors.CancellationRequestedError(
        "s", True, "a/b[2]", run="r1", receipt=RECEIPT, path=Path("/s/turn_1")
    ),
    errors.CancellationRequestedError(session_id="s", is_immediate=False, current_step=None),
    errors.RunFailed("r1", {"ada": "503"}, Path("/s/turn_1")),
    errors.RunCancelled("r1", {"ada": "words"}, RECEIPT, Path("/s/turn_1")),
]


def test_all_error_classes_are_tested() -> None:
    named = [getattr(errors, name) for name in errors.__all__]
    classes = {each for each in named if isinstance(each, type)}
    assert classes - {type(e) for e in ERRORS} == {errors.NbAgentsError, errors.UserError}


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_an_error_survives_a_pickle(error: errors.NbAgentsError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_an_error_reads_as_a_sentence(error: errors.NbAgentsError) -> None:
    assert str(error)
    assert "<" not in str(error)


def test_a_stop_survives_a_pickle() -> None:
    request = StopRequest(CancellationStatus.REQUESTED, "widget", "enough")
    assert pickle.loads(pickle.dumps(AgentStopped(request))).request == request


def test_config_error_starts_with_its_position() -> None:
    assert str(ERRORS[0]) == "team.yaml:3:7: Wrong."
    assert str(errors.ConfigError("Wrong.")) == "Wrong."


CONTROL = "\x1b]52;c;cm0=\x07\x1b[2J\x9b2J"


@pytest.mark.parametrize(
    "said",
    [
        str(errors.ModelCallError("gpt", f"503 {CONTROL}")),
        str(errors.RunFailed("r1", {"ada": f"503 {CONTROL}"}, Path("/s"))),
        *errors.UserError(f"No {CONTROL}.")._render_traceback_(),
    ],
)
def test_errors_contain_no_terminal_controls(said: str) -> None:
    assert not any(unicodedata.category(char) == "Cc" for char in said)


@pytest.mark.parametrize(
    "error", [ERRORS[0], ERRORS[-2], ERRORS[-1]], ids=lambda e: type(e).__name__
)
def test_notebook_shows_the_message_without_a_traceback(error: object) -> None:
    assert str(error) in "".join(error._render_traceback_())  # type: ignore[attr-defined]


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


FULL = OSError(24, "Too many open files")


@pytest.mark.parametrize(
    "exc, said, named",
    [
        (ValueError("no"), "no", "ValueError: no"),
        (ValueError(), "ValueError", "ValueError"),
        (FULL, "Too many open files", "OSError: Too many open files"),
        (
            FileNotFoundError(2, "Gone", "a.csv"),
            "Gone: 'a.csv'",
            "FileNotFoundError: Gone: 'a.csv'",
        ),
        (ExceptionGroup("x", [FULL]), "Too many open files", "OSError: Too many open files"),
        (
            BaseExceptionGroup(
                "x", [ExceptionGroup("y", [FULL, KeyError(2)]), FULL, SystemExit(1)]
            ),
            "Too many open files; 2; 1",
            "OSError: Too many open files; KeyError: 2; SystemExit: 1",
        ),
        (Speechless(), "Speechless", "Speechless"),
    ],
)
def test_message_of_an_exception_group_has_those_of_its_leaves(
    exc: BaseException, said: str, named: str
) -> None:
    assert errors.error_message(exc) == said
    assert errors.error_message(exc, named=True) == named


def test_exceptions_of_unknown_classes_are_not_formatted_directly() -> None:
    """It may be a group, which says "unhandled errors in a TaskGroup"."""
    package = Path(errors.__file__).parent
    found = [f"{path.name}:{line}" for path in package.rglob("*.py") for line in _told(path)]
    assert found == []


def _told(path: Path) -> Iterator[int]:
    """Find where a handler of any exception makes a text of it as it is."""
    for handler in ast.walk(ast.parse(path.read_text())):
        if isinstance(handler, ast.ExceptHandler) and _takes_any(handler):
            made = (_made_text_of(node) for node in ast.walk(handler))
            yield from (each.lineno for each in made if each and each.id == handler.name)


def _takes_any(handler: ast.ExceptHandler) -> bool:
    kinds = ast.walk(handler.type) if handler.type else ()
    named = {each.id for each in kinds if isinstance(each, ast.Name)}
    return not handler.type or bool({"Exception", "BaseException"} & named)


def _made_text_of(node: ast.AST) -> ast.Name | None:
    """Return the name of which ``f"{name}"`` or ``str(name)`` makes a text."""
    match node:
        case ast.FormattedValue(value=ast.Name() as name):
            return name
        case ast.Call(func=ast.Name(id="str"), args=[ast.Name() as name]):
            return name
    return None
