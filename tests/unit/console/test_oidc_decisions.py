"""Open logins: each is finished once, in time, by the browser that began it, in bounded memory."""

import itertools

from support.gc_world import MovedClock

from sluice_console.oidc import LOGIN_S, LOGINS_MAX, PendingLogins


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
