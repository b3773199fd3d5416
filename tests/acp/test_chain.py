"""Tests of a stop through a client, a team, a team as its member, and a second team over MCP."""

from pathlib import Path

import pytest

from tests.acp.chain import ENDS, Chain, asked, play, stopped
from tests.model_server import ModelServer

pytestmark = pytest.mark.anyio


async def test_immediate_stop_ends_the_chain_and_the_receipt_confirms_it(
    tmp_path: Path,
) -> None:
    with ModelServer(default=play) as server:
        chain = Chain(tmp_path, server)
        async with asked(chain) as client:
            seen = await stopped(chain, client, "at once")
    assert seen.ends == ["outer cancelled", "inner cancelled", "second cancelled"]
    assert [(what, is_confirmed) for what, is_confirmed, _ in seen.receipt] == [
        (end, True) for end in ENDS
    ]
    assert f"Confirmed to have ended: {', '.join(ENDS)}." in client.client.said
    assert {each.closed_by for each in server.requests if each.model != "inner"} == {"client"}
