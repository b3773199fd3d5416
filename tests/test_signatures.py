"""Public functions that take the arguments of a request class show and describe each of them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import nb_agents
from nb_agents.signatures import takes, takes_changes

FUNCTIONS = [
    nb_agents.start,
    nb_agents.resume,
    nb_agents.rewind,
    nb_agents.fork,
    nb_agents.once,
    nb_agents.Run.resume,
    nb_agents.Run.rewind,
    nb_agents.Run.preview_rewind,
]


@dataclass
class Greeting:
    name: str = "you"
    word: str = "Hello"


@takes(Greeting)
def greet(greeting: Greeting) -> str:
    return f"{greeting.word} {greeting.name}"


class Host:
    word = "Welcome"

    def complete(self, given: Any) -> Greeting:
        return Greeting("guest", **{"word": self.word, **given})

    @takes_changes(Greeting, complete)
    def greet(self, greeting: Greeting) -> str:
        return f"{greeting.word} {greeting.name}"


def test_function_has_the_parameters_of_its_request() -> None:
    assert (greet(), greet("Ada", word="Hi")) == ("Hello you", "Hi Ada")
    assert str(inspect.signature(greet)) == "(name: 'str' = 'you', word: 'str' = 'Hello') -> 'str'"


def test_method_has_the_parameters_after_the_first_and_completes_them() -> None:
    assert (Host().greet(), Host().greet("Hi")) == ("Welcome guest", "Hi guest")
    assert str(inspect.signature(Host().greet)) == "(word: 'str' = 'Hello') -> 'str'"


def test_wrong_argument_is_reported_for_the_function() -> None:
    with pytest.raises(TypeError, match=r"^greet\(\) got an unexpected keyword argument 'nmae'$"):
        greet(nmae="Ada")  # type: ignore[call-arg]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.__qualname__)
def test_each_parameter_has_a_type_and_a_description(function: Callable[..., object]) -> None:
    parameters = inspect.signature(function).parameters
    doc = inspect.getdoc(function) or ""
    section = re.search(r"^Args:\n((?:    .*\n)+)", doc, re.M)
    described = re.findall(r"^    (\w+):", section[1], re.M) if section else []
    assert sorted(described) == sorted(name for name in parameters if name != "self")
    assert all(each.annotation for each in parameters.values())
