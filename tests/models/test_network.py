"""Messages for failed connections: they name the failed hop and its environment variable."""

import gc
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec, UserError
from nb_agents.client import Client
from nb_agents.models.network import proxy_of, tls_context
from tests.kit.teams import CAN_START, report_on
from tests.model_server import ModelServer, Reply, free_port
from tests.search_engines import SearchEngines
from tests.team_kit import finish

ANSWER = Reply("an answer")
VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    tls_context.cache_clear()
    yield
    tls_context.cache_clear()


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(default=ANSWER) as running:
        yield running


def team_at(url: str) -> TeamSpec:
    backend = {"type": "vllm", "model": "m", "base_url": url}
    retry = {"attempts": 0, "delay": 0}
    agents = [{"id": "ann", "backend": backend}]
    return TeamSpec.model_validate({"agents": agents, "retry": retry})


def told(url: str, root: Path) -> str:
    """Return the error message of a run that can't reach its server."""
    run = finish(nb_agents.start("t", team_at(url), options=RunOptions(session_root=root)))
    assert run.status == "failed"
    return run.view.agents["ann"].error.removeprefix("m: ")


class _Proxy(socketserver.ThreadingTCPServer):
    daemon_threads = True


@contextmanager
def answering(*replies: bytes) -> Iterator[str]:
    """A proxy that sends the next of these replies each time it receives data."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            for reply in replies:
                if self.request.recv(65_536):
                    self.request.sendall(reply)

    with _Proxy(("127.0.0.1", 0), Handler) as proxy:
        threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True).start()
        yield f"127.0.0.1:{proxy.server_address[1]}"
        proxy.shutdown()


def http(status: str) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()


NO_METHOD, REFUSED = (b"\x05\xff",), (b"\x05\x00", b"\x05\x05\x00\x01\x00\x00\x00\x00\x00\x00")


# httpcore2 leaves a rejected connection to a SOCKS proxy open until garbage collection.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("variable", "scheme", "replies", "sentences"),
    [
        (
            "HTTP_PROXY",
            "http",
            None,
            "{proxy} refused the connection: check that it is running. Correct",
        ),
        (
            "http_proxy",
            "http",
            None,
            "{proxy} refused the connection: check that it is running. Correct",
        ),
        (
            "ALL_PROXY",
            "http",
            None,
            "{proxy} refused the connection: check that it is running. Correct",
        ),
        (
            "ALL_PROXY",
            "socks5",
            None,
            "{proxy} refused the connection: check that it is running. Correct",
        ),
        ("HTTP_PROXY", "http", [http("407 No")], "requires a user and password{*}(HTTP 407)"),
        (
            "HTTP_PROXY",
            "http",
            [http("502 No")],
            "gateway failed (HTTP 502). This may come from the {proxy}",
        ),
        (
            "HTTP_PROXY",
            "http",
            [http("403 No")],
            "(HTTP 403). This may come from the {proxy}. Correct",
        ),
        ("HTTP_PROXY", "http", [b""], "dropped the connection through the {proxy} before it"),
        ("ALL_PROXY", "socks5", NO_METHOD, "{proxy} refused to connect{*}Add its user"),
        ("ALL_PROXY", "socks5h", REFUSED, "{proxy} refused to connect to the server {server}"),
    ],
)
def test_failing_proxy_is_named_with_its_variable(
    tmp_path: Path,
    server: ModelServer,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    scheme: str,
    replies: tuple[bytes, ...] | None,
    sentences: str,
) -> None:
    if scheme.startswith("socks"):
        pytest.importorskip("socksio")
    with answering(*(replies or ())) as address:
        address = address if replies else f"127.0.0.1:{free_port()}"
        monkeypatch.setenv(variable, f"{scheme}://user:secret-word@{address}")
        said = told(server.url, tmp_path)
    place = f"proxy {address} ({variable})"
    here = server.url.removeprefix("http://").removesuffix("/v1")
    for words in sentences.split("{*}"):
        assert words.replace("{proxy}", place).replace("{server}", here) in said
    if "HTTP 407" in said or "Correct" in said:
        assert f"Correct {variable}, or add 127.0.0.1 to NO_PROXY" in said
    assert "secret-word" not in said
    assert server.count() == 0
    gc.collect()


def test_proxy_with_an_unknown_host_is_named(
    tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*args: object, **more: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setenv("HTTP_PROXY", "proxy.example:3128")
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert told(server.url, tmp_path).startswith(
        "The proxy proxy.example:3128 (HTTP_PROXY) was not found. Correct HTTP_PROXY, or"
    )


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        (
            http("407 Proxy Authentication Required"),
            "The {proxy} refused to connect to the server models.example: 407 Proxy"
            " Authentication Required. Add its user and password to HTTPS_PROXY.",
        ),
        (
            http("504 Gateway Timeout"),
            "The {proxy} refused to connect to the server models.example: 504 Gateway Timeout.",
        ),
        (
            http("200 Connection established") + b"no TLS",
            "The TLS connection to the server models.example through the {proxy} failed: ",
        ),
    ],
)
def test_proxy_before_a_tls_server_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reply: bytes, sentence: str
) -> None:
    with answering(reply) as address:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{address}")
        said = told("https://models.example/v1", tmp_path)
    assert said.startswith(sentence.format(proxy=f"proxy {address} (HTTPS_PROXY)"))


def test_untrusted_certificate_message_names_the_trust_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with SearchEngines(tmp_path / "a", "") as proxy, SearchEngines(tmp_path / "b", "") as other:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        monkeypatch.setenv("SSL_CERT_FILE", str(other.authority))
        said = told("https://models.example/v1", tmp_path)
    assert "certificate verify failed; only the certificates of SSL_CERT_FILE are trusted" in said


@pytest.mark.parametrize("variable", ["NO_PROXY", "no_proxy"])
def test_no_proxy_bypasses_the_proxy(
    tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv("ALL_PROXY", f"socks5://127.0.0.1:{free_port()}")
    monkeypatch.setenv(variable, "localhost,127.0.0.1")
    pytest.importorskip("socksio")
    options = RunOptions(session_root=tmp_path)
    assert finish(nb_agents.start("t", team_at(server.url), options=options)).result == "an answer"


def test_a_socks_proxy_is_used(
    tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("socksio")

    class Socks(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            for reply in (b"\x05\x00", REFUSED[1].replace(b"\x05\x05", b"\x05\x00")):
                self.request.recv(65_536)
                self.request.sendall(reply)
            address = ("127.0.0.1", int(server.url.split(":")[2].split("/")[0]))
            with socket.create_connection(address) as there:
                pump = threading.Thread(target=_copy, args=(there, self.request), daemon=True)
                pump.start()
                _copy(self.request, there)
                pump.join()

    with _Proxy(("127.0.0.1", 0), Socks) as proxy:
        threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True).start()
        monkeypatch.setenv("ALL_PROXY", f"socks5://127.0.0.1:{proxy.server_address[1]}")
        options = RunOptions(session_root=tmp_path)
        run = finish(nb_agents.start("t", team_at(server.url), options=options))
        proxy.shutdown()
    assert run.result == "an answer"


def _copy(source: socket.socket, sink: socket.socket) -> None:
    while data := source.recv(65_536):
        sink.sendall(data)
    sink.shutdown(socket.SHUT_WR)


def unusable(tmp_path: Path) -> dict[str, tuple[str, str]]:
    (tmp_path / "empty.pem").write_text("")
    gone = str(tmp_path / "gone.pem")
    return {
        "gone file": ("SSL_CERT_FILE", gone),
        "empty file": ("SSL_CERT_FILE", str(tmp_path / "empty.pem")),
        "directory as file": ("SSL_CERT_FILE", str(tmp_path)),
        "gone directory": ("SSL_CERT_DIR", gone),
        "unknown proxy": ("ALL_PROXY", "socks4://127.0.0.1:1080"),
    }


@pytest.mark.parametrize(
    "name",
    ["gone file", "empty file", "directory as file", "gone directory", "unknown proxy"],
)
def test_invalid_network_environment_is_reported_by_check_and_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    variable, value = unusable(tmp_path)[name]
    monkeypatch.setenv(variable, value)
    team = team_at("http://127.0.0.1:9/v1")
    verdict = report_on(team).verdict
    assert verdict.startswith("Can't start.") and variable in verdict
    with pytest.raises(UserError, match=variable):
        nb_agents.start("t", team, options=RunOptions(session_root=tmp_path))
    with pytest.raises(UserError, match=variable):
        Client("http://127.0.0.1:9", "token")


def test_offline_team_starts_with_an_invalid_network_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "gone.pem"))
    demo: dict[str, Any] = {"agents": [{"id": "ann", "backend": {"type": "demo"}}]}
    team = TeamSpec.model_validate(demo)
    assert report_on(team).verdict == CAN_START
    run = finish(nb_agents.start("t", team, options=RunOptions(session_root=tmp_path)))
    assert run.status == "completed"


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"HTTP_PROXY": "http://a:1"},
        {"HTTPS_PROXY": "http://a:1", "ALL_PROXY": "http://b:2"},
        {"http_proxy": "a:1", "HTTP_PROXY": "http://c:3"},
        {"ALL_PROXY": "http://b:2", "NO_PROXY": "localhost,.example,10.0.0.0/8,[::1]"},
        {"ALL_PROXY": "http://b:2", "NO_PROXY": "*"},
        {"ALL_PROXY": "http://b:2", "NO_PROXY": "https://api.example"},
    ],
)
def test_named_proxy_is_the_one_that_the_client_uses(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    client = httpx2.Client(verify=False)
    hosts = ("localhost:8000", "127.0.0.1", "10.1.2.3", "api.example", "models.test", "[::1]:80")
    for url in (f"{scheme}://{host}/v1" for scheme in ("http", "https") for host in hosts):
        transport = client._transport_for_url(httpx2.URL(url))
        pool = transport._pool  # type: ignore[attr-defined]
        origin = getattr(pool, "_proxy_url", None)
        taken = f"{origin.host.decode()}:{origin.port}" if origin else None
        named = proxy_of(url)
        assert (named.address if named else None) == taken
        assert named is None or environment[named.variable].endswith(named.address)
