"""Whatever a program makes of the OpenAPI document, the server answers as the document says."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nb_agents.server.handlers import RUN_ROUTES
from nb_agents.server.new_files import NEW_FILE_ROUTES
from nb_agents.server.openapi import document
from nb_agents.server.turn_files import FILE_ROUTES
from tests.server.conftest import JupyterServer
from tests.server.test_reading import over
from tests.server.test_sweeps import ended

STARTS_PROCESSES = [
    ("POST", "/runs"),
    ("POST", "/runs/{id}/rewind"),
    ("POST", "/sessions/{id}/continue"),
]


def test_no_request_that_the_document_allows_breaks_the_server(jupyter: JupyterServer) -> None:
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
            max_examples=15, deadline=None, database=None, suppress_health_check=[*HealthCheck]
        )
        @given(case=operation.as_strategy(), is_there=st.booleans(), is_run=st.booleans())
        def ask(case: Any, is_there: bool, is_run: bool) -> None:
            deletes = case.method.upper() == "DELETE" or case.path.endswith("/rename")
            if is_there and not deletes:  # else most would be of nothing that is there
                of_runs = runs if is_run else sweeps
                known = sessions if case.path.startswith("/sessions") else of_runs
                case.path_parameters.update({name: known[name] for name in case.path_parameters})
            response = case.call(headers=dict(jupyter.client.headers), timeout=60)
            case.validate_response(response, checks=checks)
            seen.add(response.status_code)

        ask()
    assert {200, 404} <= seen


def test_each_reply_is_described_in_words_of_its_own() -> None:
    for path, operations in document("/")["paths"].items():
        for method, operation in operations.items():
            told = {code: reply["description"] for code, reply in operation["responses"].items()}
            done = [said for code, said in told.items() if code.startswith("2")]
            assert done and all(len(said.split()) > 2 for said in done), (method, path)
            assert len(set(told.values())) == len(told), (method, path)
            takes = operation.get("requestBody", {"content": {}})["content"].values()
            asks_for_trust = any("trust" in each["schema"]["properties"] for each in takes)
            assert ("428" in told) is asks_for_trust, (method, path)


def test_each_route_is_described() -> None:
    patterns = [pattern for pattern, _ in (*RUN_ROUTES, *FILE_ROUTES, *NEW_FILE_ROUTES)]
    described = set(patterns[:1])  # the document itself
    for path in document("/")["paths"]:
        asked = path.replace("{n}", "1").replace("{", "").replace("}", "")
        described.add(next(each for each in patterns if re.fullmatch(each, asked)))
    assert described == {*patterns}
