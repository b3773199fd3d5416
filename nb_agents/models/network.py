"""How this process reaches servers: the proxies and certificates that its environment names.

httpx2 reads them for each client. Here a check reads them before a run, and the message of a failed
connection names the hop that failed (a proxy, the name of a server, TLS, the server) and the
variable that put it there.

Not to be imported before a run or a check needs it: it takes httpx2 along. It reaches into a
private part of httpx2, which is why `pyproject.toml` bounds that.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import httpx2
from httpx2._utils import URLPattern, get_environment_proxies

from nb_agents.errors import UserError

MAX_CAUSES = 20
"""Causes of an error that are looked at; a chain of them may be a circle."""

_SCHEMES = ("http", "https", "socks5", "socks5h")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")

E = TypeVar("E", bound=BaseException)


class Proxy(NamedTuple):
    """A proxy that the environment names.

    Attributes:
        variable: The environment variable.
        address: Its host and port, without user and password.
    """

    variable: str
    address: str

    def __str__(self) -> str:
        return f"proxy {self.address} ({self.variable})"


def proxy_of(url: httpx2.URL | str) -> Proxy | None:
    """Return the proxy by which an address is reached, or None.

    Args:
        url: The address.
    """
    proxies = get_environment_proxies()
    patterns = sorted(URLPattern(each) for each in proxies)
    found = next((each.pattern for each in patterns if each.matches(httpx2.URL(url))), "")
    address = proxies.get(found)
    return Proxy(_variable(found), _place(httpx2.URL(address))) if address else None


def refuse_network() -> None:
    """Raise if no client can be made with what the environment says.

    Raises:
        UserError: A proxy or a file of certificates can't be used, named by its variable.
    """
    tls_context()
    for pattern, address in get_environment_proxies().items():
        if address is None:
            continue
        try:
            scheme = httpx2.URL(address).scheme
        except httpx2.InvalidURL:
            scheme = ""
        if scheme not in _SCHEMES:
            known = ", ".join(f"{each}://" for each in _SCHEMES)
            raise UserError(
                f"{_variable(pattern)} names no proxy that can be used: it begins with "
                f"{f'{scheme}://' if scheme else 'no scheme'}; there are {known}. Correct or unset "
                "it."
            )


@cache
def tls_context() -> ssl.SSLContext:
    """Return the TLS context of all clients; loading certificates takes tens of milliseconds.

    Raises:
        UserError: What the environment names as certificates can't be read.
    """
    variable = next((name for name in _CERTIFICATES if os.environ.get(name)), "")
    path = Path(os.environ.get(variable, ""))
    if variable == "SSL_CERT_DIR" and not path.is_dir():
        raise UserError(_UNREAD.format(variable, str(path), "it is no directory"))
    try:
        return httpx2.create_ssl_context()
    except (OSError, ssl.SSLError) as exc:
        why = "it holds no certificates" if isinstance(exc, ssl.SSLError) else str(exc.strerror)
        raise UserError(_UNREAD.format(variable, str(path), why)) from None


_UNREAD = (
    "{} names {!r} as the certificates to trust, which can't be read: {}. Correct or unset it."
)


def unconnected(error: BaseException, arrived: int = 0, *, is_late: bool = False) -> str:
    """Return one or two sentences that name the hop of a connection that failed, and what to check.

    Args:
        error: What was raised.
        arrived: Number of words of the reply that had arrived.
        is_late: Whether it is a timeout; also known by its causes.
    """
    server, url = f"The {server_of(error)}", url_of(error)
    proxy = proxy_of(url) if url else None
    by = f", by the {proxy}" if proxy else ""
    if refused := cause_of(error, httpx2.ProxyError):
        return _refused_by(proxy, server_of(error), str(refused))
    if tls := cause_of(error, ssl.SSLError):
        reason = (tls.reason or "no reason given").replace("_", " ").lower()
        trusted = next((name for name in _CERTIFICATES if os.environ.get(name)), "")
        is_untrusted = bool(trusted) and "verify" in reason
        only = f"; only the certificates of {trusted} are trusted" if is_untrusted else ""
        return (
            f"There is no secure connection (TLS) to the {server_of(error)}{by}: {reason}{only}; "
            f"check its certificate, and whether base_url wants http:// or https://."
        )
    if cause_of(error, httpx2.UnsupportedProtocol):
        return f"{server} can't be reached: base_url must begin with http:// or https://."
    if proxy and cause_of(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        return f"The {proxy} {_how(error)} {_past(proxy, url)}"
    if is_late or cause_of(error, httpx2.TimeoutException):
        return f"{server} {_late(error)}{by}."
    if cause_of(error, socket.gaierror):
        return f"{server} was not found: check base_url, and the network."
    if cause_of(error, ConnectionRefusedError):
        return f"{server} refused the connection: is it running, and is that its port?"
    if cause_of(error, httpx2.ConnectError):
        return f"{server} can't be reached: check base_url and the network."
    if arrived:
        words = f"{arrived} word{'s' if arrived > 1 else ''}"
        return f"{server} dropped the connection{by} after {words} of its reply."
    return f"{server} dropped the connection before it replied{by}: its own log may tell why."


def through(error: BaseException) -> str:
    """Return a sentence that names the proxy from which an HTTP status may come, or "".

    Args:
        error: The status, as an SDK raised it.
    """
    url = url_of(error)
    # To an address with https:// a proxy only passes on what it can't read.
    proxy = proxy_of(url) if url is not None and url.scheme == "http" else None
    return f"It came by the {proxy}. {_past(proxy, url)}" if proxy else ""


def _how(error: BaseException) -> str:
    if cause_of(error, socket.gaierror):
        return "was not found."
    if cause_of(error, ConnectionRefusedError):
        return "refused the connection: is it running?"
    if cause_of(error, httpx2.ConnectTimeout):
        return "did not answer in time."
    return "can't be reached."


def _late(error: BaseException) -> str:
    silent = cause_of(error, httpx2.ReadTimeout)
    try:
        allowed = silent.request.extensions["timeout"]["read"] if silent else None
    except (KeyError, RuntimeError):
        allowed = None
    if allowed is None:
        return "did not answer in time"
    return f"sent nothing for {allowed:g} s, the `max_silence` of `retry`"


def _refused_by(proxy: Proxy | None, server: str, why: str) -> str:
    what = f"The {proxy or 'proxy'} lets nothing through to the {server}: {why.rstrip('.')}."
    if proxy and ("407" in why or "USERNAME" in why or "username" in why):
        what += f" Write its user and password into {proxy.variable}."
    return what


def _past(proxy: Proxy, url: Any) -> str:
    """Return what to change where a proxy is in the way."""
    return f"Correct {proxy.variable}, or name {url.host} in NO_PROXY if it is reached without."


def server_of(error: BaseException) -> str:
    """Return the server that was called with its address, as far as an error has it."""
    url = url_of(error)
    return f"server {_place(url)}" if url is not None and url.host else "server"


def url_of(error: BaseException) -> httpx2.URL | None:
    """Return the address that was asked for, or None where an error does not have it."""
    return next((url for url in map(_url, _causes(error)) if url is not None), None)


def _url(error: BaseException) -> httpx2.URL | None:
    for holder in (error, getattr(error, "response", None)):
        try:
            return holder.request.url  # type: ignore[union-attr, no-any-return]
        except (AttributeError, RuntimeError):  # httpx raises the latter where none was set
            continue
    return None


def _place(url: httpx2.URL) -> str:
    # The raw host is ASCII, and so no look-alike letters.
    host = url.raw_host.decode("ascii", "replace")
    return f"{host}:{url.port}" if url.port else host


def _variable(pattern: str) -> str:
    name = f"{pattern.partition(':')[0]}_proxy"
    return next((each for each in (name, name.upper()) if os.environ.get(each)), "the system's")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes, the root cause last."""
    cause: BaseException | None = error
    for _ in range(MAX_CAUSES):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__ or cause.__context__


def cause_of(error: BaseException, kind: type[E] | Any) -> E | None:
    """Return the first of an error and its causes that is of a kind, or None."""
    return next((cause for cause in _causes(error) if isinstance(cause, kind)), None)
