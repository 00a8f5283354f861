"""Which addresses a webhook may go to, and connections to a checked address and to no other.

A name is resolved once, every address it has is checked, and the connection goes to one of those: what the name means a
moment later (DNS rebinding) changes nothing. TLS still verifies the certificate of the name. All seconds are machine's.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import httpcore

Address = IPv4Address | IPv6Address

#: IPv6 ranges whose last 32 bits are an IPv4 address that a gateway or the kernel goes to instead.
_CARRIERS = tuple(ipaddress.ip_network(one) for one in ("64:ff9b::/96", "64:ff9b:1::/48", "::/96"))


class Refused(Exception):
    """A webhook may not go there; the message says where and why."""


def trouble(address: Address, *, may_be_private: bool) -> str | None:
    """Say why a webhook may not go to an address; None where it may.

    ``may_be_private`` lets loopback, private and carrier-grade NAT addresses pass. Link-local ones, where clouds keep
    their machines' credentials, multicast and reserved ones never pass.
    """
    inner = _carried(address)
    if inner is not None:
        return trouble(inner, may_be_private=may_be_private)
    never = {
        "it stands for no host": address.is_unspecified,
        "it is a link-local address": address.is_link_local or _is_site_local(address),
        "it is a multicast address": address.is_multicast,
        "it is a reserved address": address.is_reserved and not address.is_loopback,
    }
    for why, is_so in never.items():
        if is_so:
            return why
    if may_be_private or address.is_global:
        return None
    return "it is this machine's own address" if address.is_loopback else "it is no public address"


def _is_site_local(address: Address) -> bool:
    return isinstance(address, IPv6Address) and address.is_site_local


def _carried(address: Address) -> IPv4Address | None:
    """Return the IPv4 address inside an IPv6 one: mapped, 6to4, NAT64 or compatible; None where there is none."""
    if isinstance(address, IPv4Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    is_carried = any(address in one for one in _CARRIERS) and int(address) > 1  # :: and ::1 are themselves
    return IPv4Address(int(address) & 0xFFFF_FFFF) if is_carried else None


def resolve(host: str, port: int) -> list[str]:
    """Return all addresses of a name or literal address. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(one[4][0]) for one in found))


class Guard(httpcore.NetworkBackend):
    """Opens connections for an HTTP pool, to checked addresses only, within the time its thread was given."""

    def __init__(self, *, may_be_private: bool, resolver: Callable[[str, int], Sequence[str]] = resolve) -> None:
        """Check addresses as ``trouble`` does; ``resolver`` stands for DNS."""
        self._may_be_private = may_be_private
        self._resolve = resolver
        self._real = httpcore.SyncBackend()
        self._own = threading.local()

    def begin(self, seconds: float, *, is_loopback_only: bool) -> None:
        """Give the calling thread's next request so many seconds in all, however slowly the other side talks."""
        self._own.until = time.monotonic() + seconds
        self._own.is_loopback_only = is_loopback_only

    def left_s(self) -> float:
        """Return what is left of the thread's time. Raises httpcore.ReadTimeout when it is over."""
        left = self._own.until - time.monotonic()
        if left <= 0:
            raise httpcore.ReadTimeout("the time for the whole request is over")
        return float(left)

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """Connect to a name's first address that answers. Raises Refused when any address of it is not allowed."""
        try:
            addresses = self._resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(f"{host} has no address: {error}") from error
        for one in addresses:
            self._check(host, one)
        failed: Exception = httpcore.ConnectError(f"{host} has no address")
        for one in addresses:
            try:
                stream = self._real.connect_tcp(one, port, self.left_s(), local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failed = error
            else:
                return _Bounded(stream, self)
        raise failed

    def _check(self, host: str, text: str) -> None:
        address = ipaddress.ip_address(text.partition("%")[0])
        why = trouble(address, may_be_private=self._may_be_private)
        if why is None and self._own.is_loopback_only and not (_carried(address) or address).is_loopback:
            why = "plain http goes to this machine itself only"
        if why is not None:
            raise Refused(f"{host} is {text}: {why}")


class _Bounded(httpcore.NetworkStream):
    """A connection whose every step ends with its thread's time."""

    def __init__(self, stream: httpcore.NetworkStream, guard: Guard) -> None:
        self._stream = stream
        self._guard = guard

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._guard.left_s())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, self._guard.left_s())

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Bounded(self._stream.start_tls(ssl_context, server_hostname, self._guard.left_s()), self._guard)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
