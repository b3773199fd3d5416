"""JupyterLab's extension manager finds the wheel, from an index that runs here."""

from __future__ import annotations

import asyncio
import json
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from email.parser import BytesParser
from pathlib import Path
from typing import Any
from xmlrpc.server import SimpleXMLRPCRequestHandler, SimpleXMLRPCServer

import pytest
from hatchling.builders.wheel import WheelBuilder
from jupyterlab.extensions.manager import ExtensionPackage
from jupyterlab.extensions.pypi import PyPIExtensionManager

ROOT = Path(__file__).parents[1]


class Wheel:
    """The built wheel: its metadata, and its files by name."""

    def __init__(self, path: Path) -> None:
        with zipfile.ZipFile(path) as packed:
            self.files = {name: packed.read(name) for name in packed.namelist()}
        self.metadata: Message = BytesParser().parsebytes(self.file(".dist-info/METADATA"))

    def file(self, end: str) -> bytes:
        [name] = [name for name in self.files if name.endswith(end)]
        return self.files[name]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Wheel:
    folder = tmp_path_factory.mktemp("wheel")
    [path] = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return Wheel(Path(path))


@contextmanager
def index(metadata: Message) -> Iterator[str]:
    """Run a package index with one package. Yields its address."""
    info = {
        "summary": metadata["Summary"],
        "requires_python": metadata["Requires-Python"],
        "license": metadata["License-Expression"],
        "package_url": "https://pypi.org/project/nb_agents",
    }

    def browse(wanted: list[str]) -> list[list[str]]:
        is_listed = {*wanted} <= {*metadata.get_all("Classifier", [])}
        return [[metadata["Name"], metadata["Version"]]] if is_listed else []

    class Handler(SimpleXMLRPCRequestHandler):
        rpc_paths = ()

        def do_GET(self) -> None:
            body = json.dumps({"info": info}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with SimpleXMLRPCServer(("127.0.0.1", 0), Handler, logRequests=False) as server:
        server.register_function(browse)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_extension_manager_lists_the_wheel_and_recognizes_it_once_installed(
    wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jupyterlab.extensions.pypi.LANGUAGE_PACKS", ())
    install = json.loads(wheel.file("labextensions/nb-agents/install.json"))
    installed = ExtensionPackage("nb-agents", "", "", "prebuilt", install=install)
    with index(wheel.metadata) as address:

        async def found() -> tuple[dict[str, ExtensionPackage], str]:
            manager: Any = PyPIExtensionManager()
            manager.base_url = address
            manager._rpc_client = type(manager._rpc_client)(address)
            listed, _ = await manager.list_packages("agents", 1, 30)
            return listed, manager.get_normalized_name(installed)

        listed, name = asyncio.run(found())
    assert [*listed] == [name]
    assert listed[name].allowed and "LLM agents" in listed[name].description


def test_page_names_the_package_that_it_needs_on_the_server(wheel: Wheel) -> None:
    package = json.loads(wheel.file("labextensions/nb-agents/package.json"))
    server = package["jupyterlab"]["discovery"]["server"]
    assert server == {"base": {"name": wheel.metadata["Name"]}, "managers": ["pip"]}


def test_wheel_registers_the_persona_of_jupyter_ai(wheel: Wheel) -> None:
    assert "[jupyter_ai.personas]\nnb_agents = " in wheel.file("entry_points.txt").decode()
