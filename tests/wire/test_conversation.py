"""The state machine alone: messages in, calls to a scripted session and bytes out, no socket."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from scripted_session import SECRET, Driver

from ducktail.engine.errors import AdminShutdown, TooManyConnections
from ducktail.pgwire_gateway.conversation import Need
from ducktail.sql.text.classified import Kind


@pytest.fixture
def door(read_answers: Any) -> Driver:
    """A conversation that nobody has spoken in."""
    return Driver(read_answers)


@pytest.fixture
def talk(door: Driver, written: Any) -> Driver:
    """A conversation whose client is in."""
    assert door.kinds(written.startup()) == "RSSSSKZ"
    return door


# At the door.


def test_ssl_and_gssapi_are_refused_once_each(door: Driver, written: Any) -> None:
    assert door.raw(written.packet(80877103)) == b"N"
    assert door.raw(written.packet(80877104)) == b"N"
    assert door.kinds(written.packet(80877103)) == "E"
    assert door.over


def test_startup_says_who_and_how(door: Driver, written: Any) -> None:
    answers = door.say(written.startup(application_name="app", options="-c a.b=1", TimeZone="UTC"))
    assert answers[0] == ("R", b"\0\0\0\0")
    assert answers[-2] == ("K", struct.pack("!i", 7) + SECRET[:4])
    assert answers[-1] == ("Z", b"I")
    (entry,) = door.host.entries
    assert (entry.user, entry.database, entry.application_name) == ("ann", "ducktail", "app")
    assert entry.settings == {"a.b": "1", "TimeZone": "UTC"}


def test_a_newer_minor_version_is_negotiated(door: Driver, written: Any) -> None:
    answers = door.say(written.startup(version=3 << 16 | 9999, **{"_pq_.fancy": "1"}))
    assert answers[0] == ("v", struct.pack("!ii", 3 << 16 | 2, 1) + b"_pq_.fancy\0")
    assert answers[-2:] == [("K", struct.pack("!i", 7) + SECRET), ("Z", b"I")]


def test_protocol_3_2_has_long_cancel_keys_and_needs_no_negotiation(door: Driver, written: Any) -> None:
    answers = door.say(written.startup(version=3 << 16 | 2))
    assert [kind for kind, _ in answers if kind in "vKZ"] == ["K", "Z"]
    assert answers[-2] == ("K", struct.pack("!i", 7) + SECRET)


def test_an_unknown_option_of_3_0_is_told_with_what_is_spoken(door: Driver, written: Any) -> None:
    answers = door.say(written.startup(**{"_pq_.fancy": "1"}))
    assert answers[0] == ("v", struct.pack("!ii", 3 << 16, 1) + b"_pq_.fancy\0")
    assert answers[-2] == ("K", struct.pack("!i", 7) + SECRET[:4])


def test_who_is_not_let_in_is_told_why(door: Driver, written: Any, read_fields: Any) -> None:
    door.host.refuse = TooManyConnections("full")
    ((kind, body),) = door.say(written.startup())
    assert (kind, read_fields(body)["S"], read_fields(body)["C"]) == ("E", "FATAL", "53300")
    assert door.over and door.session.calls == []


def test_cancel_request_gets_no_answer(door: Driver, written: Any) -> None:
    assert door.raw(written.packet(80877102, struct.pack("!i", 7), SECRET)) == b""
    assert door.over and door.host.cancels == [(7, SECRET)]


def test_a_session_message_before_startup(door: Driver, written: Any) -> None:
    ((kind, _),) = door.say(written.query("rows 1"))
    assert kind == "E" and door.over


# Simple protocol.


def test_one_statement_is_autocommit_and_one_hop(talk: Driver, written: Any) -> None:
    hops = talk.hops
    answers = talk.say(written.query("rows 4"))
    assert [kind for kind, _ in answers] == ["T", "D", "D", "D", "D", "C", "Z"]
    assert answers[-2] == ("C", b"SELECT 4\0")
    assert talk.session.calls == ["parse rows 4", "execute rows 4"]
    # The driver passes from the loop to a worker at the first, and stays there.
    assert talk.hops - hops == 2


def test_several_statements_share_a_transaction(talk: Driver, written: Any) -> None:
    assert talk.kinds(written.query("put; rows 1;")) == "CTDCZ"
    assert talk.session.calls == [
        "parse put", "parse rows 1",
        "begin_implicit", "parse put", "execute put", "parse rows 1", "execute rows 1", "commit_implicit",
    ]  # fmt: skip


def test_begin_and_commit_among_several_statements(talk: Driver, written: Any) -> None:
    assert talk.kinds(written.query("put; begin; put; commit; put")) == "CCCCCZ"
    called = [call for call in talk.session.calls if not call.startswith("parse")]
    assert called == [
        "begin_implicit", "execute put", "execute begin", "execute put", "execute commit",
        "begin_implicit", "execute put", "commit_implicit",
    ]  # fmt: skip


def test_an_error_stops_the_rest(talk: Driver, written: Any) -> None:
    assert talk.kinds(written.query("put; fail; put")) == "CEZ"
    assert talk.session.calls[-2:] == ["execute fail", "abort_implicit"]


def test_nothing_runs_where_a_later_statement_is_no_sql(talk: Driver, written: Any) -> None:
    assert talk.kinds(written.query("begin; put; commit; gibberish")) == "EZ"
    assert not [call for call in talk.session.calls if call.startswith("execute")]


def test_the_commit_of_several_statements_fails(talk: Driver, written: Any, read_fields: Any) -> None:
    talk.session.fail_commit = True
    answers = talk.say(written.query("put; put"))
    assert [kind for kind, _ in answers] == ["C", "E", "Z"]
    assert read_fields(answers[1][1])["C"] == "40001"


def test_nothing_to_do(talk: Driver, written: Any) -> None:
    assert talk.kinds(written.query(" ; -- nothing\n")) == "IZ"


def test_error_position_counts_in_the_text_that_was_sent(
    talk: Driver, written: Any, read_fields: Any
) -> None:
    text = "put 'é'; nonsense"
    answers = talk.say(written.query(text))
    assert int(read_fields(answers[-2][1])["P"]) == text.index("nonsense") + 5


def test_a_fault_of_ours_is_an_answer_too(
    talk: Driver, written: Any, read_fields: Any, caplog: pytest.LogCaptureFixture
) -> None:
    answers = talk.say(written.query("begin; crash"))
    assert read_fields(answers[-2][1])["C"] == "XX000"
    assert answers[-1] == ("Z", b"E")
    assert "ZeroDivisionError" in caplog.text and "a fault of ours" not in caplog.text


# Extended protocol.


def request(written: Any, text: str, **execute: Any) -> bytes:
    return written.parse(text) + written.bind() + written.describe("P") + written.execute(**execute)


def test_one_execute_before_its_sync_is_autocommit(talk: Driver, written: Any) -> None:
    assert talk.kinds(request(written, "rows 2") + written.sync) == "12TDDCZ"
    assert talk.session.calls == ["parse rows 2", "execute rows 2"]


def test_a_sync_that_has_not_come_yet_changes_nothing(talk: Driver, written: Any) -> None:
    assert talk.kinds(request(written, "put")) == "12n"
    assert talk.kinds(written.sync) == "CZ"
    assert talk.session.calls == ["parse put", "execute put"]


def test_a_flush_behind_it_makes_it_a_transaction(talk: Driver, written: Any) -> None:
    assert talk.kinds(request(written, "put")) == "12n"
    assert talk.kinds(written.flush) == "C"
    assert talk.kinds(written.sync) == "Z"
    assert talk.session.calls == ["parse put", "begin_implicit", "execute put", "commit_implicit"]


def test_in_a_block_nothing_more_is_waited_for(talk: Driver, written: Any) -> None:
    talk.say(written.query("begin"))
    assert talk.kinds(request(written, "put")) == "12nC"


def test_a_pipeline_is_one_transaction_and_an_error_undoes_it(talk: Driver, written: Any) -> None:
    one, bad = request(written, "put"), request(written, "fail")
    assert talk.kinds(one + one + written.sync) == "12nC12nCZ"
    assert talk.kinds(one + bad + one + written.sync + one + written.sync) == "12nC12nEZ12nCZ"
    called = [call for call in talk.session.calls if not call.startswith("parse")]
    assert called == [
        "begin_implicit", "execute put", "execute put", "commit_implicit",
        "begin_implicit", "execute put", "execute fail", "abort_implicit",
        "execute put",
    ]  # fmt: skip


def test_an_error_at_the_commit_of_a_pipeline(talk: Driver, written: Any) -> None:
    talk.session.fail_commit = True
    one = request(written, "put")
    assert talk.kinds(one + one + written.sync) == "12nC12nCEZ"
    talk.session.fail_commit = False
    assert talk.kinds(one + written.sync) == "12nCZ"


def test_everything_but_sync_is_skipped_after_an_error(talk: Driver, written: Any) -> None:
    skipped = request(written, "put") + written.query("put") + written.close("S") + written.flush
    assert talk.kinds(written.parse("nonsense") + skipped) == "E"
    assert talk.kinds(skipped + written.sync + written.query("put")) == "ZCZ"


def test_row_limit_suspends_and_goes_on(talk: Driver, written: Any) -> None:
    talk.say(written.query("begin"))
    assert talk.kinds(request(written, "rows 7", max_rows=4) + written.sync) == "12TDDDDsZ"
    assert talk.kinds(written.execute(max_rows=2) + written.sync) == "DDsZ"
    assert talk.kinds(written.execute(max_rows=2) + written.sync) == "DCZ"
    # A portal that is through gives nothing more.
    assert talk.say(written.execute() + written.sync)[0] == ("C", b"SELECT 0\0")


def test_a_pipeline_without_end_lets_others_in(talk: Driver, written: Any) -> None:
    """Neither answers nor time are collected without bound, whatever the requests."""
    for request in (written.sync, written.message("d"), written.close("S"), written.parse("nonsense")):
        before = talk.flushes
        talk.say(request * 1000)
        assert talk.flushes - before >= 10, request
    talk.say(written.sync + written.parse("wide 1000", "w"))
    talk.channel.receive(written.describe("S", "w") * 100)
    for _ in range(3):
        assert 0 < talk.until_flush() < 2 * 256 * 1024


def test_an_answer_is_due_before_the_next_request_is_done(talk: Driver, written: Any) -> None:
    """What drives it writes the first ReadyForQuery before it goes on to what may take its time."""
    talk.channel.receive(written.query("put") + written.query("wait"))
    step = talk.steps.send(True)
    while not talk.channel.due:
        step = talk.steps.send(True)
    assert step is Need.WORKER
    assert b"".join(talk.channel.take_output()).endswith(b"Z\0\0\0\5I")
    assert not talk.channel.due


def test_a_row_wider_than_its_count_is_refused(talk: Driver, written: Any, read_fields: Any) -> None:
    for request in (written.query("wide 32768"), written.parse("wide 32768") + written.sync):
        answers = talk.say(request)
        assert [kind for kind, _ in answers] == ["E", "Z"]
        assert read_fields(answers[0][1])["C"] == "54000"
    assert talk.kinds(written.parse("wide 32767") + written.sync) == "1Z"


def test_a_portal_ends_with_its_transaction(talk: Driver, written: Any, read_fields: Any) -> None:
    assert talk.kinds(request(written, "rows 7", max_rows=4) + written.sync) == "12TDDDDsZ"
    assert talk.session.results[-1].closed
    answers = talk.say(written.execute() + written.sync)
    assert read_fields(answers[0][1])["C"] == "34000"


def test_named_statements_and_portals(talk: Driver, written: Any, read_fields: Any) -> None:
    talk.say(written.query("begin"))
    assert talk.kinds(written.parse("rows 1 $1 $2", "s", (20,)) + written.describe("S", "s")) == "1tT"
    bind = written.bind("p", "s", (b"1", b"2"), (), (1,))
    assert talk.kinds(bind + written.describe("P", "p") + written.close("P", "p") + bind) == "2T32"
    codes = []
    for wrong in (
        written.parse("rows 1", "s"),
        written.bind("q", "missing"),
        written.bind("q", "s", (b"1",)),
        written.bind("q", "s", (b"1", b"2"), (0, 0, 0)),
        written.bind("q", "s", (b"1", b"2"), (2,)),
        written.bind("q", "s", (b"1", b"2"), (), (0, 0)),
        written.execute("missing"),
        written.describe("S", "missing"),
        written.describe("P", "missing"),
        written.parse("put; put"),
    ):
        answers = talk.say(wrong + written.sync)
        assert [kind for kind, _ in answers] == ["E", "Z"]
        codes.append(read_fields(answers[0][1])["C"])
    assert codes == [
        # A failed transaction has lost its portals, which PostgreSQL would find and refuse.
        "42P05", "26000", "08P01", "08P01", "22023", "08P01", "25P02", "26000", "25P02", "42601",
    ]  # fmt: skip
    assert talk.kinds(written.close("S", "s") + written.close("S", "s") + written.sync) == "33Z"


def test_a_portal_of_its_name_is_there_until_closed(talk: Driver, written: Any, read_fields: Any) -> None:
    assert talk.kinds(written.parse("put", "s") + written.bind("p", "s")) == "12"
    answers = talk.say(written.bind("p", "s") + written.sync)
    assert read_fields(answers[0][1])["C"] == "42P03"


def test_formats_reach_the_rows(talk: Driver, written: Any) -> None:
    answers = talk.say(
        written.parse("rows 1") + written.bind(results=(1,)) + written.describe("P") + written.sync
    )
    assert answers[2][1].endswith(b"\0\1")


def test_an_empty_statement(talk: Driver, written: Any) -> None:
    assert talk.kinds(request(written, "") + written.sync) == "12nIZ"


def test_error_inside_a_block_fails_it_also_when_the_session_never_saw_it(talk: Driver, written: Any) -> None:
    talk.say(written.query("begin"))
    assert talk.say(written.bind("", "missing") + written.sync)[-1] == ("Z", b"E")


def test_copy_messages_outside_of_copy_are_passed_over(talk: Driver, written: Any) -> None:
    data = written.message("d", b"1") + written.message("c") + written.message("f", b"\0")
    assert talk.kinds(data + written.query("put")) == "CZ"


def test_function_call_leaves_the_connection_usable(talk: Driver, written: Any, read_fields: Any) -> None:
    answers = talk.say(written.message("F", bytes(10)))
    assert [kind for kind, _ in answers] == ["E", "Z"]
    assert read_fields(answers[0][1])["C"] == "0A000"


def test_text_that_is_no_utf8(talk: Driver, written: Any, read_fields: Any) -> None:
    assert talk.kinds(written.message("Q", b"\xff\0")) == "EZ"
    assert talk.kinds(written.message("P", b"\xff\0\0\0\0") + written.sync) == "EZ"


# Ends.


@pytest.mark.parametrize("data", [b"\x01", b"S\0\0\0\0", b"p\0\0\0\x04"], ids=["type", "length", "password"])
def test_bytes_that_make_no_sense_end_the_session(talk: Driver, data: bytes, read_fields: Any) -> None:
    ((kind, body),) = talk.say(data)
    assert (kind, read_fields(body)["S"], read_fields(body)["C"]) == ("E", "FATAL", "08P01")
    assert talk.over


def test_terminate(talk: Driver, written: Any) -> None:
    assert talk.say(written.terminate) == []
    assert talk.over


def test_the_session_is_closed_at_the_end(talk: Driver) -> None:
    steps = list(talk.conversation.close())
    assert steps == [Need.WORKER] and talk.session.calls == ["close"]


def test_a_wait_goes_on_when_it_is_over_or_its_time_is_up(talk: Driver, written: Any) -> None:
    for done in (True, False):
        assert talk.say(written.query("wait")) == []
        assert [kind for kind, _ in talk.end_wait(done)] == ["C", "Z"]
        assert talk.session.calls[-1] == f"waited {done}"


def test_a_cancelled_wait(talk: Driver, written: Any, read_fields: Any) -> None:
    talk.say(written.query("wait"))
    talk.session.cancel()
    answers = talk.end_wait(True)
    assert [kind for kind, _ in answers] == ["E", "Z"]
    assert read_fields(answers[0][1])["C"] == "57014"


def test_a_request_that_sends_rows_is_cancelled(talk: Driver, written: Any, read_fields: Any) -> None:
    talk.channel.receive(written.query("rows 100000"))
    assert talk.until_flush() > 0
    talk.channel.cancel()
    answers = talk.say(b"")
    assert [kind for kind, _ in answers] == ["E", "Z"]
    assert read_fields(answers[0][1])["C"] == "57014"
    assert talk.session.results[-1].closed
    # It was meant for that request only.
    assert talk.kinds(written.query("rows 1")) == "TDCZ"


def test_the_server_ends_a_session_that_waits(talk: Driver, written: Any, read_fields: Any) -> None:
    talk.say(written.query("wait"))
    talk.channel.end(AdminShutdown("bye"))
    talk.session.cancel()
    ((kind, body),) = talk.end_wait(True)
    assert (kind, read_fields(body)["S"], read_fields(body)["C"]) == ("E", "FATAL", "57P01")
    assert talk.over


def test_a_lost_client_gets_nothing_more(talk: Driver, written: Any) -> None:
    talk.say(written.query("wait"))
    talk.channel.lose()
    talk.session.cancel()
    assert talk.end_wait(True) == []
    assert talk.over


# DEALLOCATE.


def test_deallocate_means_the_statements_of_the_protocol_too(talk: Driver, written: Any) -> None:
    assert talk.kinds(written.parse("put", "s") + written.parse("put", "t") + written.sync) == "11Z"
    assert talk.kinds(written.query('deallocate "s"')) == "CZ"
    assert talk.kinds(written.bind("", "s") + written.sync) == "EZ"
    assert talk.kinds(written.bind("", "t") + written.sync) == "2Z"
    assert talk.kinds(written.query("deallocate all")) == "CZ"
    assert talk.kinds(written.bind("", "t") + written.sync) == "EZ"


def test_what_is_inline_needs_no_worker_once_it_is_known(talk: Driver, written: Any) -> None:
    talk.kinds(written.query("inline"))
    hops = talk.hops
    assert talk.kinds(written.query("inline")) == "CZ"
    assert talk.kinds(request(written, "inline") + written.sync) == "12nCZ"
    assert talk.hops == hops


# What the host is told of statements.


def test_the_host_is_told_how_each_statement_ended(talk: Driver, written: Any) -> None:
    host = talk.host

    def told() -> list[tuple[str, str | None, str]]:
        ended = [(e.kind, e.sqlstate, e.text) for e in host.ended]
        host.ended.clear()
        return ended

    talk.say(written.query("rows 2; fail; rows 1"))
    kind = Kind.UTILITY.value
    assert told() == [(kind, None, "rows 2"), (kind, "40001", "fail")]
    talk.say(written.query("nonsense"))
    assert told() == [("unknown", "42P01", "nonsense")]
    talk.say(written.parse("nonsense") + written.bind() + written.execute() + written.sync)
    assert told() == [("unknown", "42P01", "nonsense")]
    talk.say(written.query("") + written.parse("") + written.bind() + written.execute() + written.sync)
    assert told() == []
    talk.say(written.parse("rows 3") + written.bind() + written.execute() + written.sync)
    assert told() == [(kind, None, "rows 3")]


def test_a_portal_in_pieces_is_one_statement_and_its_time_is_that_of_each_piece(
    talk: Driver, written: Any
) -> None:
    talk.say(written.parse("rows 3") + written.bind() + written.execute(max_rows=2) + written.flush)
    talk.host.time_s = 5.0
    talk.say(written.execute(max_rows=2) + written.sync)
    assert [(e.resumed, e.seconds) for e in talk.host.ended] == [(False, 0.0), (True, 0.0)]


def test_the_time_of_a_statement_has_its_waits_in_it(talk: Driver, written: Any) -> None:
    talk.say(written.query("wait"))
    talk.host.time_s = 1.5
    talk.end_wait(True)
    assert [(e.session_id, e.seconds, e.sqlstate) for e in talk.host.ended] == [(7, 1.5, None)]


def test_the_host_is_told_who_was_refused(door: Driver, written: Any) -> None:
    door.host.refuse = TooManyConnections("sorry")
    door.say(written.startup())
    assert door.host.refusals == [("ann", "53300")]
    assert door.conversation.error is door.host.refuse
