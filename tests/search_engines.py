"""A proxy on 127.0.0.1 that plays the search engines of the web.

Its clients check certificates: those that it signs are trusted by whoever takes `authority`.
"""

from __future__ import annotations

import datetime
import socketserver
import ssl
import threading
from pathlib import Path
from typing import Any, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

__all__ = ["SearchEngines"]


class SearchEngines:
    """The proxy; a context manager.

    Args:
        folder: Where it keeps its certificates.
        page: What DuckDuckGo answers with; the others find nothing.

    Attributes:
        page: As given.
        asked: Each request that came: its host, and its head and body.
        hold: While it is clear, nobody is answered.
    """

    def __init__(self, folder: Path, page: str) -> None:
        self.authority = folder / "authority.pem"
        self.asked: list[tuple[str, str]] = []
        self.hold = threading.Event()
        self.hold.set()
        self.came = threading.Event()
        self.page = page
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
        self.authority.write_bytes(_pem(self._sign(self._name, is_authority=True)))
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.hold.set()
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[socketserver.StreamRequestHandler]:
        engines = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                head = _head(self.rfile)
                host = head.split()[1].rpartition(":")[0]
                self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                self.wfile.flush()
                try:
                    engines._answer(engines._tls(host).wrap_socket(self.request, True), host)
                except OSError:  # who asked is gone
                    return

        return Handler

    def _answer(self, connection: ssl.SSLSocket, host: str) -> None:
        with connection, connection.makefile("rwb") as stream:
            head = _head(stream)
            sizes = [line for line in head.lower().split("\r\n") if "content-length:" in line]
            body = stream.read(int(sizes[0].split(":")[1])) if sizes else b""
            self.asked.append((host, head + body.decode()))
            self.came.set()
            self.hold.wait(60)
            page = self.page if host == "html.duckduckgo.com" else "<html></html>"
            data = page.encode()
            close = "Content-Type: text/html; charset=utf-8\r\nConnection: close"
            stream.write(
                f"HTTP/1.1 200 OK\r\nContent-Length: {len(data)}\r\n{close}\r\n\r\n".encode()
            )
            stream.write(data)
            stream.flush()

    def _tls(self, host: str) -> ssl.SSLContext:
        pair = self._folder / f"{host}.pem"
        if not pair.exists():
            made = self._folder / f"{host}.{threading.get_ident()}"
            name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
            made.write_bytes(_pem(self._sign(name, host)) + self._private())
            made.rename(pair)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair)
        context.set_alpn_protocols(["http/1.1"])
        return context

    def _sign(self, name: x509.Name, host: str = "", is_authority: bool = False) -> Any:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=30))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        if host:
            names = x509.SubjectAlternativeName([x509.DNSName(host)])
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def _private(self) -> bytes:
        pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
        return self._key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True


def _pem(certificate: Any) -> bytes:
    data: bytes = certificate.public_bytes(serialization.Encoding.PEM)
    return data


def _head(stream: Any) -> str:
    lines = []
    while (line := stream.readline()) not in (b"\r\n", b""):
        lines.append(line.decode())
    return "".join(lines)
