"""Checks proxies and certificates from the environment, and explains failed connections.

httpx2 reads the environment whenever a client is created. This module checks it before a run. The
message for a failed connection names the hop that failed (proxy, DNS, TLS or server) and the
environment variable that configures it.

httpx2 is imported only when it is needed, because that takes 0.1 s. It uses a private part of
httpx2, so `pyproject.toml` limits the version.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from nb_agents.errors import UserError

if TYPE_CHECKING:
    import httpx2

MAX_CAUSES = 20
"""Maximum number of causes of an error that are inspected, because the chain may be circular."""

_SCHEMES = ("http", "https", "socks5", "socks5h")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")

E = TypeVar("E", bound=BaseException)


class Proxy(NamedTuple):
    """A proxy from the environment.

    Attributes:
        variable: The name of the environment variable.
        address: The proxy's host and port, without user and password.
    """

    variable: str
    address: str

    def __str__(self) -> str:
        return f"proxy {self.address} ({self.variable})"


def proxy_of(url: httpx2.URL | str) -> Proxy | None:
    """Return the proxy for a URL, or None."""
    import httpx2
    from httpx2._utils import URLPattern, get_environment_proxies

    proxies = get_environment_proxies()
    patterns = sorted(URLPattern(each) for each in proxies)
    pattern = next((each.pattern for each in patterns if each.matches(httpx2.URL(url))), "")
    address = proxies.get(pattern)
    return Proxy(_variable(pattern), _host_and_port(httpx2.URL(address))) if address else None


def environment_proxies() -> list[Proxy]:
    """Return the proxies of this environment. Call `check_network` first.

    Raises:
        httpx2.InvalidURL: An address is invalid.
    """
    import httpx2
    from httpx2._utils import get_environment_proxies

    proxies = get_environment_proxies().items()
    return [Proxy(_variable(p), _host_and_port(httpx2.URL(a))) for p, a in proxies if a]


def check_network() -> None:
    """Check that an HTTP client can be created in this environment.

    Raises:
        UserError: A proxy or certificate file can't be used. The message names its variable.
    """
    import httpx2
    from httpx2._utils import get_environment_proxies

    tls_context()
    for pattern, address in get_environment_proxies().items():
        if address is None:
            continue
        try:
            scheme = httpx2.URL(address).scheme
        except httpx2.InvalidURL:
            scheme = ""
        if scheme not in _SCHEMES:
            schemes = ", ".join(f"{each}://" for each in _SCHEMES)
            raise UserError(
                f"The proxy in {_variable(pattern)} can't be used because it has "
                f"{f'the scheme {scheme}://' if scheme else 'no scheme'}. Use an address that "
                f"begins with one of {schemes}, or unset the variable."
            )


@cache
def tls_context() -> ssl.SSLContext:
    """Return the TLS context that all clients share.

    Raises:
        UserError: The certificates that the environment configures can't be read.
    """
    import httpx2

    variable = next((name for name in _CERTIFICATES if os.environ.get(name)), "")
    path = Path(os.environ.get(variable, ""))
    if variable == "SSL_CERT_DIR" and not path.is_dir():
        raise UserError(_UNREAD.format(variable, str(path), "it is not a directory"))
    try:
        return httpx2.create_ssl_context()
    except (OSError, ssl.SSLError) as exc:
        why = "it contains no certificates" if isinstance(exc, ssl.SSLError) else str(exc.strerror)
        raise UserError(_UNREAD.format(variable, str(path), why)) from None


_UNREAD = "The certificates in {}={!r} can't be read: {}. Correct or unset the variable."


def connection_message(error: BaseException, arrived: int = 0, *, is_late: bool = False) -> str:
    """Describe a failed connection in one or two sentences: which hop failed, and what to check.

    Args:
        arrived: Number of words of the reply that had been received.
        is_late: Whether the SDK reports a timeout. Timeouts among the causes are also recognized.
    """
    import httpx2

    server, url = f"The {server_of(error)}", url_of(error)
    proxy = proxy_of(url) if url else None
    via = f" through the {proxy}" if proxy else ""
    if refused := cause_of(error, httpx2.ProxyError):
        return _refused_by(proxy, server_of(error), str(refused))
    if tls := cause_of(error, ssl.SSLError):
        reason = (tls.reason or "no reason given").replace("_", " ").lower()
        trusted = next((name for name in _CERTIFICATES if os.environ.get(name)), "")
        is_untrusted = bool(trusted) and "verify" in reason
        only = f"; only the certificates of {trusted} are trusted" if is_untrusted else ""
        return (
            f"The TLS connection to the {server_of(error)}{via} failed: {reason}{only}. Check its "
            f"certificate, and whether base_url should begin with http:// or https://."
        )
    if cause_of(error, httpx2.UnsupportedProtocol):
        return f"{server} can't be reached: base_url must begin with http:// or https://."
    if proxy and cause_of(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        return f"The {proxy} {_connect_failure(error)} {_proxy_advice(proxy, url)}"
    if is_late or cause_of(error, httpx2.TimeoutException):
        return f"{server} {_timeout_phase(error)}{via}."
    if cause_of(error, socket.gaierror):
        return f"{server} was not found: check base_url and the network."
    if cause_of(error, ConnectionRefusedError):
        return f"{server} refused the connection: check that it is running, and its port."
    if cause_of(error, httpx2.ConnectError):
        return f"{server} can't be reached: check base_url and the network."
    if arrived:
        words = f"{arrived} word{'s' if arrived > 1 else ''}"
        return f"{server} dropped the connection{via} after {words} of its reply."
    return f"{server} dropped the connection{via} before it replied: check its log."


def proxy_advice(error: BaseException) -> str:
    """Return advice if the HTTP status of an error may come from a proxy, or ""."""
    url = url_of(error)
    # With https:// a proxy can't read or replace the server's responses.
    proxy = proxy_of(url) if url is not None and url.scheme == "http" else None
    return f"This may come from the {proxy}. {_proxy_advice(proxy, url)}" if proxy else ""


def _connect_failure(error: BaseException) -> str:
    import httpx2

    if cause_of(error, socket.gaierror):
        return "was not found."
    if cause_of(error, ConnectionRefusedError):
        return "refused the connection: check that it is running."
    if cause_of(error, httpx2.ConnectTimeout):
        return "did not answer in time."
    return "can't be reached."


def _timeout_phase(error: BaseException) -> str:
    import httpx2

    timeout = cause_of(error, httpx2.ReadTimeout)
    try:
        limit_s = timeout.request.extensions["timeout"]["read"] if timeout else None
    except (KeyError, RuntimeError):
        limit_s = None
    if limit_s is None:
        return "did not answer in time"
    return f"sent nothing for {limit_s:g} s (`max_silence` of `retry`)"


def _refused_by(proxy: Proxy | None, server: str, why: str) -> str:
    message = f"The {proxy or 'proxy'} refused to connect to the {server}: {why.rstrip('.')}."
    if proxy and ("407" in why or "USERNAME" in why or "username" in why):
        message += f" Add its user and password to {proxy.variable}."
    return message


def _proxy_advice(proxy: Proxy, url: Any) -> str:
    """Return advice for a connection that fails because of a proxy."""
    return f"Correct {proxy.variable}, or add {url.host} to NO_PROXY to connect without a proxy."


def server_of(error: BaseException) -> str:
    """Return "server HOST:PORT" for an error's request, or "server" if the error has none."""
    url = url_of(error)
    return f"server {_host_and_port(url)}" if url is not None and url.host else "server"


def url_of(error: BaseException) -> httpx2.URL | None:
    """Return the request URL of an error or one of its causes, or None."""
    return next((url for url in map(_url, causes(error)) if url is not None), None)


def _url(error: BaseException) -> httpx2.URL | None:
    for holder in (error, getattr(error, "response", None)):
        try:
            return holder.request.url  # type: ignore[union-attr, no-any-return]
        except (AttributeError, RuntimeError):  # httpx raises RuntimeError if there is no request
            continue
    return None


def _host_and_port(url: httpx2.URL) -> str:
    # The raw host is ASCII, which exposes look-alike letters.
    host = url.raw_host.decode("ascii", "replace")
    return f"{host}:{url.port}" if url.port else host


def _variable(pattern: str) -> str:
    name = f"{pattern.partition(':')[0]}_proxy"
    return next(
        (each for each in (name, name.upper()) if os.environ.get(each)), "the system's settings"
    )


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes, ending with the root cause."""
    cause: BaseException | None = error
    for _ in range(MAX_CAUSES):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__ or cause.__context__


def cause_of(error: BaseException, kind: type[E] | Any) -> E | None:
    """Return the first exception of a type among an error and its causes, or None."""
    return next((cause for cause in causes(error) if isinstance(cause, kind)), None)
