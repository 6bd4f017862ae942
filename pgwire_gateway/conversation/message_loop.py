"""One client's connection from its first byte to its last, as a generator without a socket.

States: entering (SSLRequest, GSSENCRequest and CancelRequest are answered here, a Startup packet leads on),
serving (each message has a row in a table), over. In `serving` an error of the extended protocol leads to
skipping, which ends at Sync. For any bytes the machine answers or ends; it never reads on after bytes that
are no message. Source: PostgreSQL documentation, "Message Flow".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...engine.duck.duckdb_errors import recognized
from ...engine.errors import (
    AdminShutdown,
    DucktailError,
    InvalidPassword,
    NotSupported,
    ProtocolViolation,
    QueryCanceled,
)
from ..codec import Limits
from ..codec.backend import (
    ACCEPTED,
    REFUSED,
    AuthenticationOk,
    AuthenticationSasl,
    AuthenticationSaslContinue,
    AuthenticationSaslFinal,
    BackendKeyData,
    ErrorResponse,
    NegotiateProtocolVersion,
    ParameterStatus,
)
from ..codec.frontend import (
    Bind,
    CancelRequest,
    Close,
    CopyData,
    CopyDone,
    CopyFail,
    Describe,
    Execute,
    Flush,
    FunctionCall,
    GssEncRequest,
    Message,
    Parse,
    Password,
    Query,
    SslRequest,
    Startup,
    Sync,
    Undecodable,
    sasl_first,
)
from .channel import Channel, Fatal, Gone, Need, Steps
from .execution import StatementTimer, Work, report
from .interfaces import Host, Session
from .query_protocols import ExtendedQuery, SimpleQuery
from .startup import Door, Entry, Scram, read_startup
from .statement_text import IS_LONG

# These messages always end with ReadyForQuery; an error in any other leads to skipping.
ANSWERED_WITH_READY = (Query, FunctionCall, Sync)


LIMITS = Limits()


class Conversation:
    """The state machine of one connection; a driver runs `run`, then `close`.

    Args:
        host: the server.
        secret: the secret that a CancelRequest must contain, or its beginning for protocol 3.0; random,
            LONG_KEY_BYTES long.
        limits: the bounds of the client's messages and kept data.

        `session` is set once the client is authenticated, `error` once an error has ended the conversation.
    """

    def __init__(self, host: Host, secret: bytes, limits: Limits = LIMITS) -> None:
        self.channel = Channel(limits)
        self.session: Session | None = None
        self.error: DucktailError | None = None
        self._host = host
        self._secret = secret
        self._entry: Entry | None = None

    def run(self) -> Steps[None]:
        """Run the whole conversation; `close` follows, however it ends."""
        try:
            if (yield from self._enter()):
                yield from self._serve()
        except Gone:
            pass
        except (Fatal, DucktailError) as problem:
            error = problem.error if isinstance(problem, Fatal) else problem
            if isinstance(error, AdminShutdown) and self._entry is None:
                return  # It has asked for nothing yet: PostgreSQL's postmaster closes it without a message.
            self.channel.send(ErrorResponse(report(error, "FATAL")))
            self.error = error
            if self.session is None:
                self._host.refused(self._entry, error)

    def close(self) -> Steps[None]:
        """End the session, if there is one: roll back, free everything."""
        if self.session is not None:
            yield Need.WORKER
            yield from self.session.close()

    def _enter(self) -> Steps[bool]:
        """Run up to the first ReadyForQuery; False if the connection is no session."""
        asked: set[type] = set()
        while True:
            message = yield from self.channel.next()
            match message:
                case CancelRequest(pid, secret):
                    self._host.cancel(pid, secret)
                    return False
                case Startup():
                    yield from self._open(message)
                    return True
                case SslRequest() | GssEncRequest() if (
                    not self.channel.secured and type(message) not in asked
                ):
                    asked.add(type(message))
                    yield from self._answer_encryption(message)
                case _:
                    raise ProtocolViolation("expected a startup packet")

    def _answer_encryption(self, asked: SslRequest | GssEncRequest) -> Steps[None]:
        """Accept or refuse a request for encryption; after an acceptance all bytes go through TLS."""
        if isinstance(asked, SslRequest) and self._host.offers_tls:
            self.channel.check_silent()
            self.channel.send_bytes(ACCEPTED)
            yield Need.SECURE
        else:
            self.channel.send_bytes(REFUSED)
            self.channel.due = True

    def _open(self, startup: Startup) -> Steps[None]:
        self._entry = entry = read_startup(startup)
        if entry.negotiates:
            self.channel.send(NegotiateProtocolVersion(entry.minor, entry.protocol_options))
        door = self._host.door(entry, secured=self.channel.secured)
        if door.verifier is not None:
            yield from self._authenticate(entry, door)
        yield Need.WORKER
        try:
            self.session = session = self._host.open_session(entry, door)
        except Exception as error:
            if (told := recognized(error)) is None:
                raise
            raise told from error
        self.channel.authenticated()
        self.channel.send(AuthenticationOk())
        for name, value in session.parameter_status().items():
            self.channel.send(ParameterStatus(name, value))
        self.channel.send(BackendKeyData(session.id, self._secret[: entry.key_bytes]))

    def _authenticate(self, entry: Entry, door: Door) -> Steps[None]:
        """Authenticate the client by SCRAM."""
        assert door.verifier is not None, "a door with trust asks nothing"
        scram = Scram(door.verifier, self.channel.end_point, door.nonce)
        self.channel.send(AuthenticationSasl(scram.mechanisms))
        mechanism, words = sasl_first((yield from self._password()))
        self.channel.send(AuthenticationSaslContinue(scram.first(mechanism, words)))
        proof = scram.final((yield from self._password()))
        if proof is None or not door.known:
            raise InvalidPassword(f'password authentication failed for user "{entry.user}"')
        self.channel.send(AuthenticationSaslFinal(proof))

    def _password(self) -> Steps[bytes]:
        self.channel.due = True
        message = yield from self.channel.next()
        if not isinstance(message, Password):
            raise ProtocolViolation("expected an answer to the authentication request")
        return message.data

    def _serve(self) -> Steps[None]:
        assert self.session is not None, "only an open session is served"
        trace = self.session.trace
        observed = StatementTimer(self.session.id, self._host.now_s, self._host.statement_ended, trace)
        requests = Requests(Work(self.channel, self.session, observed))
        requests.ready()
        while True:
            message = yield from self.channel.next(while_idle=requests.tell)
            yield from requests.answer(message)
            yield from self.channel.rest()


class Requests:
    """The messages of an open session, each with its answer."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._simple = SimpleQuery(work)
        self._extended = ExtendedQuery(work)
        self._skipping = False
        self._answers: dict[type, Callable[[Any], Steps[None]]] = {
            Query: self._query,
            Parse: self._extended.parse,
            Bind: self._extended.bind,
            Describe: self._extended.describe,
            Execute: self._extended.execute,
            Close: self._extended.close,
            Sync: self._sync,
            Flush: self._flush,
            FunctionCall: self._function_call,
            CopyData: self._nothing,
            CopyDone: self._nothing,
            CopyFail: self._nothing,
            Password: self._out_of_place,
            Undecodable: self._undecodable,
        }

    def ready(self) -> None:
        """Send ReadyForQuery."""
        self._work.ready()

    def tell(self) -> None:
        """Send the session's notifications, if no request is in progress."""
        if not self._extended.under_way:
            self._work.tell()

    def answer(self, message: Message) -> Steps[None]:
        """Answer one message, also with its error, unless the error ends the session."""
        kind = message.kind if isinstance(message, Undecodable) else type(message)
        if self._skipping and kind is not Sync:
            return
        self._work.observed.reset()
        is_long = IS_LONG.get(type(message))
        if is_long is not None and is_long(message):
            yield Need.WORKER
        try:
            yield from self._answers.get(type(message), self._out_of_place)(message)
        except (Fatal, Gone):
            raise
        except Exception as error:
            if isinstance(error, QueryCanceled):
                # The cancel may be the end of the session, which is its only answer.
                self._work.channel.check()
            yield from self._work.answer_error(error)
            yield from self._extended.drop_portals()
            self._skipping = kind not in ANSWERED_WITH_READY
        else:
            self._skipping = False if kind is Sync else self._skipping
        if kind in ANSWERED_WITH_READY:
            self._work.ready()

    def _query(self, message: Query) -> Steps[None]:
        yield from self._extended.forget_unnamed()
        yield from self._simple.query(message)
        if self._work.session.transaction_status == "I":
            yield from self._extended.drop_portals()

    def _sync(self, message: Sync) -> Steps[None]:
        yield from self._extended.sync()

    def _flush(self, message: Flush) -> Steps[None]:
        yield Need.FLUSH
        self._work.channel.check()

    def _nothing(self, message: Message) -> Steps[None]:
        # The rest of a failed COPY, which PostgreSQL also ignores.
        yield from ()

    def _function_call(self, message: FunctionCall) -> Steps[None]:
        yield from ()
        raise NotSupported("function calls are not supported", hint="Call the function with SELECT.")

    def _out_of_place(self, message: Message) -> Steps[None]:
        yield from ()
        raise Fatal(ProtocolViolation(f"unexpected message: {type(message).__name__}"))

    def _undecodable(self, message: Undecodable) -> Steps[None]:
        yield from ()
        raise message.error
