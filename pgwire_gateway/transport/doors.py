"""Which way into a server is open for whom: trust, a password, or none.

    who comes                       no user yet                  there are users
    from this machine (loopback)    trust: he is a superuser     password
    from elsewhere, by TLS          no way in                    password
    from elsewhere, without TLS     no way in                    no way in

With `insecure` elsewhere is as this machine. Source: docs/security.md.
"""

from __future__ import annotations

import base64
import ipaddress
import secrets
import socket

from ...engine.database import Database
from ...engine.errors import InsufficientPrivilege, InvalidAuthorization
from ...engine.placement.peer import Peer
from ...engine.rights.rights import Rights
from ...engine.rights.scram import mock_verifier
from ..conversation import Door, Entry

NONCE_BYTES = 18
TLS_HINT = "Connect with TLS: sslmode=require, or better verify-full."
USERS_HINT = "On the server's own machine: CREATE USER u PASSWORD '...' SUPERUSER."


def is_loopback(address: str) -> bool:
    """Whether a numeric address is of this machine alone; no address is not."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback


def door_for(rights: Rights, entry: Entry, *, near: bool, secured: bool) -> Door:
    """How a client may come in.

    Args:
        near: it comes from this machine, or the server is told not to care.
        secured: its connection is TLS.

    Raises:
        InvalidAuthorization: 28000, no way.
    """
    if not near and not secured:
        raise InvalidAuthorization("connections from other machines want TLS", hint=TLS_HINT)
    if not rights.users:
        if not near:
            raise InvalidAuthorization(
                "there are no users yet, so nobody from another machine can come in", hint=USERS_HINT
            )
        return Door()
    nonce = base64.b64encode(secrets.token_bytes(NONCE_BYTES)).decode()
    user = rights.users.get(entry.user.lower())
    if user is None:
        return Door(None, mock_verifier(rights.nonce, entry.user.lower()), known=False, nonce=nonce)
    return Door(user.name, user.verifier, nonce=nonce)


def for_peer(database: Database, peer: Peer, account: str | None, user: str) -> tuple[str | None, str]:
    """For whom a node of the cluster has come in: account and user's name of its session.

    Args:
        account, user: as whom it has connected.

    Raises:
        InsufficientPrivilege: 42501, he may not speak for others. ConnectionRefused: 08004, it is a node of
            another cluster. SerializationFailure: 40001, its placement is older. InvalidAuthorization:
            28000, for whom it comes is no user here.
    """
    users = database.rights.users
    if account is not None:
        node_user = (database.placement.local.user or "").lower()
        found = users.get(account.lower())
        if account.lower() != node_user and (found is None or not found.superuser):
            raise InsufficientPrivilege(
                "permission denied to connect as a node",
                detail="Nodes connect as a superuser, or as the user whom cluster.toml names.",
            )
    database.cluster.check_peer(peer)
    if not peer.end_user:
        return account, user
    if not users:
        return None, peer.end_user
    end_user = users.get(peer.end_user.lower())
    if end_user is None:
        raise InvalidAuthorization(
            f'user "{peer.end_user}" of node "{peer.node}" does not exist on node '
            f'"{database.placement.local.name}"',
            hint="All nodes want the same users: see docs/cluster.md, Users.",
        )
    return end_user.name, end_user.name


def check_listener(listener: socket.socket, rights: Rights, *, secured: bool, insecure: bool) -> None:
    """A server that others can reach wants TLS and users.

    Args:
        secured: it has a certificate.
        insecure: the operator says that it may go without.

    Raises:
        InvalidAuthorization: 28000.
    """
    host = listener.getsockname()[0]
    if insecure or is_loopback(host):
        return
    if not secured:
        raise InvalidAuthorization(
            f"listening on {host} wants TLS: only loopback addresses do without",
            hint="--tls-cert and --tls-key name the files; --insecure does without.",
        )
    if not rights.users:
        raise InvalidAuthorization(
            f"listening on {host} wants users, and there is none: only loopback addresses do without",
            hint=f"Serve it on loopback first. {USERS_HINT}",
        )
