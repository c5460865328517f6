"""Open logins, sessions, CSRF tokens and the limit of failed logins."""

import itertools

from support.gc_world import MovedClock

from sluice_console.oidc import LOGIN_S, LOGINS_MAX, PendingLogins
from sluice_console.sessions import (
    FAILURE_S,
    FAILURES_ALL_MAX,
    FAILURES_MAX,
    SESSIONS_MAX,
    LoginLimit,
    SessionBook,
    VisitorRole,
)


def book(clock: MovedClock, lifetime_s: float = 100.0) -> SessionBook:
    numbers = itertools.count()
    return SessionBook(clock, lambda: f"secret-{next(numbers)}", lifetime_s)


def test_a_session_ends_after_its_time() -> None:
    clock = MovedClock()
    sessions = book(clock)
    session_id = sessions.open("otto", VisitorRole.OPERATOR)
    found = sessions.find(session_id)
    assert (found.name, found.role) == ("otto", VisitorRole.OPERATOR)
    clock.pass_s(100.0)
    assert sessions.find(session_id) is None


def test_a_closed_session_is_unknown_and_others_stay() -> None:
    sessions = book(MovedClock())
    first, second = sessions.open("a", VisitorRole.VIEWER), sessions.open("b", VisitorRole.VIEWER)
    sessions.close(first)
    assert sessions.find(first) is None
    assert sessions.find(second) is not None
    assert sessions.find("") is None


def test_each_session_has_its_own_csrf_token() -> None:
    sessions = book(MovedClock())
    tokens = set()
    for _ in range(2):
        found = sessions.find(sessions.open("a", VisitorRole.OPERATOR))
        tokens.add(found.csrf)
    assert len(tokens) == 2


def test_the_number_of_sessions_is_bounded() -> None:
    sessions = book(MovedClock())
    ids = [sessions.open("a", VisitorRole.VIEWER) for _ in range(SESSIONS_MAX + 1)]
    assert sessions.find(ids[0]) is None
    assert sessions.find(ids[1]) is not None


def test_an_address_waits_after_its_failures_and_others_do_not() -> None:
    clock = MovedClock()
    limit = LoginLimit(clock)
    for _ in range(FAILURES_MAX):
        assert limit.wait_s("10.0.0.1") == 0
        limit.count_failure("10.0.0.1")
    assert 0 < limit.wait_s("10.0.0.1") <= FAILURE_S
    assert limit.wait_s("10.0.0.2") == 0
    clock.pass_s(FAILURE_S)
    assert limit.wait_s("10.0.0.1") == 0


def test_failures_of_many_addresses_slow_down_all() -> None:
    limit = LoginLimit(MovedClock())
    for number in range(FAILURES_ALL_MAX):
        limit.count_failure(f"10.0.{number}.1")
    assert limit.wait_s("192.0.2.1") > 0


def logins(clock: MovedClock) -> PendingLogins:
    numbers = itertools.count()
    return PendingLogins(clock, lambda: f"secret-{next(numbers)}")


def test_a_login_is_finished_once() -> None:
    book = logins(MovedClock())
    login = book.begin()
    assert book.finish(login.state, login.browser) == login
    assert book.finish(login.state, login.browser) is None


def test_another_browser_does_not_finish_or_end_a_login() -> None:
    book = logins(MovedClock())
    login = book.begin()
    for browser in ("", "guessed", "\udcff", book.begin().browser):
        assert book.finish(login.state, browser) is None
    assert book.finish(login.state, login.browser) == login


def test_a_login_ends_after_ten_minutes() -> None:
    clock = MovedClock()
    book = logins(clock)
    in_time, late = book.begin(), book.begin()
    clock.pass_s(LOGIN_S - 1)
    assert book.finish(in_time.state, in_time.browser) == in_time
    clock.pass_s(1)
    assert book.finish(late.state, late.browser) is None


def test_the_oldest_of_too_many_logins_is_dropped() -> None:
    book = logins(MovedClock())
    made = [book.begin() for _ in range(LOGINS_MAX + 1)]
    assert book.finish(made[0].state, made[0].browser) is None
    assert book.finish(made[1].state, made[1].browser) == made[1]
