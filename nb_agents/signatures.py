"""Functions that take the arguments of a class, so that their parameters are declared only once.

The fields of such a class describe themselves (`described`). User interfaces offer the arguments
that `arguments_of` finds, and docstrings get the descriptions that they lack.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from operator import attrgetter
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

_P = ParamSpec("_P")
_Request = TypeVar("_Request")
_Result = TypeVar("_Result")
_First = TypeVar("_First")
_Self = TypeVar("_Self")


class Argument(NamedTuple):
    """An argument that user interfaces can offer, as a field declares it.

    Attributes:
        name: The field's name.
        annotation: The field's type, as it is written in the class.
        default: The default value; `dataclasses.MISSING` if the argument is required.
        help: A phrase that describes it.
        metavar: The name of its value in help.
        flags: The option's spellings. By default, ``--name``.
        choices: The valid values, if they are few.
    """

    name: str
    annotation: str
    default: Any
    help: str
    metavar: str = ""
    flags: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()

    @property
    def kind(self) -> type[str] | type[bool] | type[int] | type[float] | type[dict[str, Any]]:
        """The type of its value in a request, which contains only plain data."""
        if self.annotation.startswith("Mapping"):
            return dict
        plain: dict[str, Any] = {"str": str, "bool": bool, "int": int, "float": float}
        names = self.annotation.split(" | ")
        return next((plain[name] for name in names if name in plain), str)


def described(
    help: str,
    *,
    metavar: str = "",
    flags: tuple[str, ...] = (),
    choices: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return the metadata of a dataclass field that describes it to users, see `Argument`."""
    metavar = metavar or "|".join(choices)
    return {"help": help, "metavar": metavar, "flags": flags, "choices": choices}


def arguments_of(kind: type, *, without: Collection[str] = ()) -> tuple[Argument, ...]:
    """Return the arguments that a dataclass takes.

    Args:
        kind: The dataclass.
        without: Names of the fields to leave out.

    Raises:
        LookupError: A field has no description, or the class has no field of a name in ``without``.
    """
    positional_first = sorted(fields(kind), key=attrgetter("kw_only"))
    positional_fields = {each.name: each for each in positional_first if each.init}
    if unknown := {*without} - positional_fields.keys():
        raise LookupError(f"{kind.__name__} has no fields {sorted(unknown)}.")
    if bare := [
        name
        for name, each in positional_fields.items()
        if not each.metadata and name not in without
    ]:
        raise LookupError(f"Describe {bare} of {kind.__name__}, with described().")
    return tuple(
        Argument(name, str(each.type), each.default, **each.metadata)
        for name, each in positional_fields.items()
        if name not in without
    )


def takes(
    request: Callable[_P, _Request],
) -> Callable[[Callable[[_Request], _Result]], Callable[_P, _Result]]:
    """Give a function the parameters of a request class. The function receives a request.

    Args:
        request: The class.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Greeting:
        ...     name: str = "you"
        >>> @takes(Greeting)
        ... def greet(greeting: Greeting) -> str:
        ...     return f"Hello {greeting.name}"
        >>> greet(name="Ada"), str(inspect.signature(greet))
        ('Hello Ada', "(name: 'str' = 'you') -> 'str'")
    """

    def decorate(function: Callable[[_Request], _Result]) -> Callable[_P, _Result]:
        parameters = _parameters(request)
        signature = _signature(parameters, function)

        @wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _Result:
            _bind(signature, function.__name__, args, kwargs)
            return function(request(*args, **kwargs))

        call.__signature__ = signature  # type: ignore[attr-defined]
        _describe(call, request)
        return call

    return decorate


def takes_changes(
    request: Callable[Concatenate[_First, _P], _Request],
    complete: Callable[[_Self, Mapping[str, Any]], _Request],
) -> Callable[[Callable[[_Self, _Request], _Result]], Callable[Concatenate[_Self, _P], _Result]]:
    """Give a method the parameters of a request class, except the first one.

    Args:
        request: The class.
        complete: Creates the request from the method's object and the arguments by name.
    """

    def decorate(
        method: Callable[[_Self, _Request], _Result],
    ) -> Callable[Concatenate[_Self, _P], _Result]:
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        parameters = [own, *_parameters(request)[1:]]
        signature = _signature(parameters, method)

        @wraps(method)
        def call(self: _Self, /, *args: _P.args, **kwargs: _P.kwargs) -> _Result:
            arguments = _bind(signature, method.__name__, (self, *args), kwargs)
            del arguments["self"]
            return method(self, complete(self, arguments))

        call.__signature__ = signature  # type: ignore[attr-defined]
        _describe(call, request)
        return call

    return decorate


def takes_keywords(
    arguments: Sequence[Argument],
) -> Callable[[Callable[..., _Result]], Callable[..., _Result]]:
    """Replace the ``**fields`` of a function with keywords for these arguments, as plain data.

    Args:
        arguments: The arguments. None, or False for a flag, means the default.
    """

    def decorate(function: Callable[..., _Result]) -> Callable[..., _Result]:
        own = inspect.signature(function)
        *named, _ = own.parameters.values()
        signature = own.replace(parameters=[*named, *map(_keyword, arguments)])

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> _Result:
            _bind(signature, function.__name__, args, kwargs)
            return function(*args, **kwargs)

        call.__signature__ = signature  # type: ignore[attr-defined]
        describe(call, {each.name: each.help for each in arguments})
        return call

    return decorate


def _keyword(argument: Argument) -> inspect.Parameter:
    is_flag = argument.kind is bool
    return inspect.Parameter(
        argument.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=False if is_flag else None,
        annotation="bool" if is_flag else f"{argument.kind.__name__} | None",
    )


_FIRST_SECTION = re.compile(r"(\n\n(?=(?:Returns|Raises|Yields|Example):)|\Z)")


def _describe(function: Callable[..., object], request: object) -> None:
    """Add the descriptions of parameters that a docstring lacks, from the fields of a class."""
    named = inspect.signature(function).parameters
    described_fields = {each.name: each for each in fields(request) if each.metadata}  # type: ignore[arg-type]
    describe(
        function,
        {
            name: described_fields[name].metadata["help"]
            for name in named
            if name in described_fields
        },
    )


def describe(function: Callable[..., object], helps: Mapping[str, str]) -> None:
    """Add descriptions of parameters to a docstring, except of those that it describes already.

    Args:
        function: The function. If its docstring has no section "Args", it gets one.
        helps: Phrases that describe the parameters, by name.
    """
    doc = inspect.getdoc(function)
    if doc is None:
        return
    before, head, after = doc.partition("\n\nArgs:\n")
    section, gap, rest = after.partition("\n\n")
    if not head:
        before, gap, rest = re.split(_FIRST_SECTION, doc, maxsplit=1)
    own = re.findall(r"^    (\w+)[:,]", section, re.M)
    lines = [
        f"    {name}: {help[:1].upper()}{help[1:]}."
        for name, help in helps.items()
        if name not in own
    ]
    if lines:
        args = "\n".join([*section.splitlines(), *lines])
        function.__doc__ = f"{before}\n\nArgs:\n{args}{gap}{rest}"


def _parameters(request: Callable[..., object]) -> list[inspect.Parameter]:
    return [*inspect.signature(request).parameters.values()]


def _signature(
    parameters: Sequence[inspect.Parameter], function: Callable[..., object]
) -> inspect.Signature:
    result = inspect.signature(function).return_annotation
    return inspect.Signature(parameters, return_annotation=result)


def _bind(
    signature: inspect.Signature, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return arguments by name.

    The error for an invalid one mentions the function, not the class.
    """
    try:
        return dict(signature.bind(*args, **kwargs).arguments)
    except TypeError as exc:
        raise TypeError(f"{name}() {exc}") from None
