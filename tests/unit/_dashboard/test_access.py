"""Who may ask the dashboard: the token, the host, the origin; and what browsers are told."""

from __future__ import annotations

import asyncio

import pytest

from kinetic._dashboard import access

TOKEN, PORT = "the-token", 8642
OURS = f"http://127.0.0.1:{PORT}"


async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"secret"})


def ask(path: str = "/api/v1/jobs", method: str = "GET", query: str = "", is_own: bool = True, **headers: str):
    """Send a request through the guard; return status, headers and body."""
    sent = []

    async def send(message):
        sent.append(message)

    given = {"host": f"127.0.0.1:{PORT}", **{name.replace("_", "-"): value for name, value in headers.items()}}
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in given.items() if value],
    }
    scope["is_own"] = is_own
    asyncio.run(GUARD(scope, None, send))
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"]


GUARD = access.Guard(app, token=TOKEN, port=PORT, is_own=lambda scope: scope["is_own"])
COOKIE = ask("/", query=f"token={TOKEN}")[1][b"set-cookie"].decode().partition(";")[0]


def test_the_token_in_the_first_address_opens_the_page_and_becomes_a_cookie_of_the_same_site():
    status, headers, _ = ask("/", query=f"token={TOKEN}")

    assert status == 200
    assert headers[b"set-cookie"].decode() == f"{COOKIE}; Path=/; HttpOnly; SameSite=Strict"


def test_the_token_opens_nothing_for_another_user_who_read_it_among_the_arguments_of_the_browser():
    status, headers, body = ask("/", query=f"token={TOKEN}", is_own=False)

    assert status == 403
    assert b"secret" not in body
    assert b"set-cookie" not in headers
    assert ask(cookie=f"kinetic_dashboard_{PORT}={TOKEN}")[0] == 403


def test_the_cookie_opens_everything_else_whatever_other_cookies_there_are():
    assert ask(cookie=COOKIE)[0] == 200
    assert ask(cookie=f'a="b{{; {COOKIE}; x=1')[0] == 200


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"cookie": f"kinetic_dashboard_{PORT}=wrong"},
        {"cookie": COOKIE.replace(str(PORT), "8643")},
        {"cookie": f"kinetic_dashboard_{PORT}="},
        {"query": f"token={TOKEN}"},  # of the page itself only: else it would stand in many addresses
        {"path": "/", "query": "token=wrong"},
        {"path": "/"},
        {"path": "/", "query": "token=%FF%FE"},
    ],
)
def test_without_the_token_nothing_is_answered(given):
    status, headers, body = ask(**given)

    assert status == 403
    assert b"secret" not in body
    assert b"set-cookie" not in headers


@pytest.mark.parametrize(
    "host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1", "127.0.0.1:80", "", f"[::1]:{PORT}"]
)
def test_a_name_that_was_made_to_lead_here_is_refused_even_with_the_token(host):
    assert ask(host=host, cookie=COOKIE)[0] == 403
    assert ask("/", query=f"token={TOKEN}", host=host)[0] == 403


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:8642", "http://127.0.0.1:1"])
def test_requests_of_foreign_pages_are_refused(origin):
    assert ask(cookie=COOKIE, origin=origin)[0] == 403
    assert ask(method="POST", cookie=COOKIE, origin=origin)[0] == 403


def test_what_a_browser_calls_foreign_is_refused():
    assert ask(cookie=COOKIE, sec_fetch_site="cross-site")[0] == 403
    assert ask(cookie=COOKIE, sec_fetch_site="same-site")[0] == 403  # another port of this machine
    assert ask(cookie=COOKIE, sec_fetch_site="same-origin")[0] == 200


def test_a_link_in_a_notebook_may_open_the_page_with_its_token():
    assert ask("/", query=f"token={TOKEN}", sec_fetch_site="cross-site")[0] == 200


def test_only_a_request_that_names_our_origin_may_change_something():
    assert ask(method="POST", cookie=COOKIE)[0] == 403
    assert ask(method="POST", cookie=COOKIE, origin=OURS)[0] == 200
    assert ask(method="DELETE", cookie=COOKIE)[0] == 403
    # The same machine by its other name is another origin.
    assert ask(method="POST", cookie=COOKIE, origin=f"http://localhost:{PORT}")[0] == 403


def test_every_answer_forbids_foreign_scripts_frames_and_referrers():
    for _, headers, _ in (ask(cookie=COOKIE), ask()):
        policy = headers[b"content-security-policy"].decode()
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers[b"x-content-type-options"] == b"nosniff"
        assert headers[b"referrer-policy"] == b"no-referrer"
        assert headers[b"cache-control"] == b"no-store"


def test_a_token_is_long_and_never_the_same():
    assert len({access.new_token() for _ in range(100)}) == 100
    assert len(access.new_token()) >= 32
