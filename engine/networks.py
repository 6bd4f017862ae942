"""Addresses that sinks may send to: public ones, and those of networks that the operator has allowed.

The server can reach more than its users: itself, its neighbours, the metadata service of a cloud. A user who
names the receiver of events would otherwise reach them too (server-side request forgery). An address is
judged where a socket is made for it, after names have been resolved, so that neither a name that changes its
address nor another spelling of one passes. Source: docs/sinks.md, "Receivers that are refused".
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

from .errors import InvalidParameterValue

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# IPv6 addresses that a translator turns into the IPv4 address in their last 32 bits (RFC 6052).
_TRANSLATED = (IPv6Network("64:ff9b::/96"),)
# Unique local, site local and discard-only networks, the documentation's, 6to4 and its relays, and local
# translators (RFC 8215), which may have the IPv4 address in other bits: none is a receiver's.
_NOT_PUBLIC = tuple(
    ip_network(text)
    for text in (
        "fc00::/7",
        "fec0::/10",
        "100::/64",
        "2001:db8::/32",
        "2002::/16",
        "2001::/23",
        "3fff::/20",
        "64:ff9b:1::/48",
        "192.88.99.0/24",
    )
)


def networks_of(texts: Iterable[str]) -> tuple[Network, ...]:
    """The networks of an operator's list, such as 10.0.0.0/8 or ::1/128.

    Raises:
        InvalidParameterValue: a text is no network.
    """
    found = []
    for text in texts:
        try:
            found.append(ip_network(text.strip()))
        except ValueError as error:
            raise InvalidParameterValue(
                f'"{text}" in "allowed_networks" is not a network: {error}', hint="Write 10.0.0.0/8, or ::1."
            ) from None
    return tuple(found)


def address_of(text: str) -> Address | None:
    """The address that a text is in its usual form, without an IPv6 zone; None for a name."""
    try:
        return ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return None


def _plain(address: Address) -> Address:
    """The IPv4 address within an IPv6 address that is only a form of it."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if any(address in network for network in _TRANSLATED):
            return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def is_allowed(address: Address, allowed: Iterable[Network]) -> bool:
    """True if an address is in one of the allowed networks."""
    forms = {address, _plain(address)}
    return any(form in network for network in allowed for form in forms if form.version == network.version)


def refusal(text: str, allowed: Iterable[Network], *, encrypted: bool) -> str | None:
    """The reason for which no sink may connect to an address; None if it may.

    Args:
        encrypted: the connection is encrypted, and the receiver's certificate checked.
    """
    address = address_of(text)
    if address is not None and is_allowed(address, allowed):
        return None
    if address is None or not is_public(address):
        return f"{text} is not a public address"
    return None if encrypted else f"{text} is a public address, and the connection is not encrypted"


def is_public(address: Address) -> bool:
    """True if an address is a host's in the public Internet."""
    plain = _plain(address)
    if any(plain in network for network in _NOT_PUBLIC if network.version == plain.version):
        return False
    return plain.is_global and not (plain.is_multicast or plain.is_reserved or plain.is_unspecified)
