"""The server's replies to requests that are generated from its OpenAPI document."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nb_agents.server.openapi import document
from tests.kit.servers import ROUTES, handler_function, handlers
from tests.kit.verbs import ROUTES as VERBS
from tests.samples import some_or_all
from tests.server.conftest import JupyterServer
from tests.server.test_reading import over
from tests.server.test_sweeps import ended

STARTS_PROCESSES = [
    ("POST", "/runs"),
    ("POST", "/runs/{id}/rewind"),
    ("POST", "/sessions/{id}/continue"),
]


def test_server_handles_all_requests_of_the_document(jupyter: JupyterServer) -> None:
    import schemathesis
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        response_schema_conformance,
        status_code_conformance,
    )

    checks = [not_a_server_error, status_code_conformance, response_schema_conformance]
    turn, sweep = over(jupyter.sessions).path, ended(jupyter).path
    runs, sweeps, sessions = (
        {"id": jupyter.name(path), "n": 1, "path": jupyter.name(path)}
        for path in (turn, sweep, turn.parent)
    )
    schema = schemathesis.openapi.from_url(
        f"{jupyter.url}/openapi.json", headers=dict(jupyter.client.headers)
    )
    seen = set()

    for found in schema.get_all_operations():
        operation = found.ok()
        if (operation.method.upper(), operation.path) in STARTS_PROCESSES:
            continue

        @settings(
            max_examples=some_or_all(5, 15),
            deadline=None,
            database=None,
            suppress_health_check=[*HealthCheck],
        )
        @given(case=operation.as_strategy(), is_there=st.booleans(), is_run=st.booleans())
        def ask(case: Any, is_there: bool, is_run: bool) -> None:
            deletes = case.method.upper() == "DELETE" or case.path.endswith("/rename")
            if (
                is_there and not deletes
            ):  # otherwise most requests would name things that do not exist
                of_runs = runs if is_run else sweeps
                known = sessions if case.path.startswith("/sessions") else of_runs
                case.path_parameters.update({name: known[name] for name in case.path_parameters})
            response = case.call(headers=dict(jupyter.client.headers), timeout=60)
            case.validate_response(response, checks=checks)
            seen.add(response.status_code)

        ask()
    assert {200, 404} <= seen


def test_each_reply_has_its_own_description() -> None:
    for path, operations in document("/")["paths"].items():
        for method, operation in operations.items():
            told = {code: reply["description"] for code, reply in operation["responses"].items()}
            done = [said for code, said in told.items() if code.startswith("2")]
            assert done and all(len(said.split()) > 2 for said in done), (method, path)
            assert len(set(told.values())) == len(told), (method, path)
            takes = operation.get("requestBody", {"content": {}})["content"].values()
            asks_for_trust = any("trust" in each["schema"]["properties"] for each in takes)
            assert ("428" in told) is asks_for_trust, (method, path)


def test_each_route_has_a_handler_and_a_description() -> None:
    handled = {
        (method, pattern)
        for pattern, handler in handlers()
        for method in ("GET", "POST", "DELETE")
        if method.lower() in vars(handler)
    }
    assert handled == {(route.method, route.pattern) for route in ROUTES}
    assert all(handler_function(route.name) for route in ROUTES)
    described = {
        (method.upper(), path)
        for path, operations in document("/")["paths"].items()
        for method in operations
    }
    for route in ROUTES:
        verbs = VERBS if "verb" in route.parameters else [""]
        assert {(route.method, route.path.replace("{verb}", verb)) for verb in verbs} <= described


def test_first_matching_route_handles_a_request() -> None:
    patterns = [re.compile(route.pattern) for route in ROUTES]
    for route in ROUTES:
        address = "/" + route.address(id="a b/turn_1", n=2, path="s/turn_1/a.txt", verb="stop")
        found = next(n for n, pattern in enumerate(patterns) if pattern.fullmatch(address))
        assert ROUTES[found].pattern == route.pattern
