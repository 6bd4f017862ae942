"""Admission of clients: the number of sessions, and authentication with or without a password.

Other nodes of the cluster open sessions for their own clients. Without a bound one node could take all
connections here, and without a reserve the clients here could exclude every other node. So each other node
has a reserve that nobody else may use, and an upper bound:

    clients + the sum over the nodes of max(its sessions, its reserve) <= max_connections

Authentication depends on where a client comes from and on whether users exist:

    client                          no user yet                  there are users
    from this machine (loopback)    trust: he is a superuser     password
    from elsewhere, by TLS          no way in                    password
    from elsewhere, without TLS     no way in                    no way in

With `insecure`, clients from elsewhere count as local.
Source: docs/security.md; docs/cluster.md, "Statements about another node's streams".
"""

from __future__ import annotations

import base64
import ipaddress
import secrets
import socket
import threading
from collections import Counter
from collections.abc import Collection

from ...engine.catalog.passwords import mock_verifier
from ...engine.catalog.rights import Rights
from ...engine.database import Database
from ...engine.errors import InsufficientPrivilege, InvalidAuthorization, TooManyConnections
from ...engine.placement.peer import Peer
from ...engine.settings import Settings
from ..conversation import Door, Entry


class Admission:
    """Counts the sessions; safe to use from several threads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._mutex = threading.Lock()
        self._clients = 0
        self._of_node: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """The number of sessions."""
        return self._clients + self._of_node.total()

    def enter(self, node: str | None, others: Collection[str]) -> None:
        """Count one more session.

        Args:
            node: the node that connects; None for a client.
            others: the other nodes of the cluster.

        Raises:
            TooManyConnections: no session is free.
        """
        with self._mutex:
            self._check(node, others)
            if node is None:
                self._clients += 1
            else:
                self._of_node[node] += 1

    def _check(self, node: str | None, others: Collection[str]) -> None:
        most, mine = self._settings.max_connections, 0 if node is None else self._of_node[node]
        if node is not None and mine >= self._settings.peer_connections_max:
            raise TooManyConnections(
                f'node "{node}" has {mine} connections here already',
                hint="peer_connections_max says how many a node may have.",
            )
        # Clients keep at least half of all sessions, whatever is reserved.
        reserve = min(self._settings.peer_connections_reserved, most // 2) // max(1, len(others))
        if node in others and mine < reserve:
            return
        held = sum(max(self._of_node[other], reserve) for other in others)
        held += sum(count for other, count in self._of_node.items() if other not in others)
        if self._clients + held < most:
            return
        if self.count < most:
            raise TooManyConnections(
                "remaining connection slots are reserved for the nodes of the cluster",
                hint="peer_connections_reserved says how many.",
            )
        raise TooManyConnections("sorry, too many clients already")

    def leave(self, node: str | None) -> None:
        """Count one session less."""
        with self._mutex:
            if node is None:
                self._clients -= 1
            else:
                self._of_node[node] -= 1
                if not self._of_node[node]:
                    del self._of_node[node]


NONCE_BYTES = 18
TLS_HINT = "Connect with TLS: sslmode=require, or better verify-full."
USERS_HINT = "On the server's own machine: CREATE USER u PASSWORD '...' SUPERUSER."


def is_loopback(address: str) -> bool:
    """True if a numeric address is of this machine; False without an address."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback


def door_for(rights: Rights, entry: Entry, *, near: bool, secured: bool) -> Door:
    """The authentication required of a client.

    Args:
        near: True if it comes from this machine, or the server treats it as local.
        secured: its connection uses TLS.

    Raises:
        InvalidAuthorization: the client may not connect in this way.
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
    """The user for whom another node has connected: account and name of the session.

    Args:
        account, user: the user under which the node has connected.

    Raises:
        InsufficientPrivilege: that user may not act for others.
        ConnectionRefused: the node is of another cluster.
        SerializationFailure: the node's placement is older.
        InvalidAuthorization: its client's user does not exist here.
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
    """Refuse a server that others can reach without TLS and users.

    Args:
        secured: the server has a certificate.
        insecure: the operator permits it nevertheless.

    Raises:
        InvalidAuthorization: the server lacks TLS or users.
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
