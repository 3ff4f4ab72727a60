"""What is kept of obstore's words: what was asked, and what the answer was."""

from __future__ import annotations

import pytest
from obstore.exceptions import GenericError

from kinetic._stores import store_errors
from kinetic._stores.protocol import parse_address

NOT_WELL = "Server returned non-2xx status code:"
NO_ANSWER = (
    "Generic S3 error: Error performing HEAD https://no.example/b/x in 2.785456ms - HTTP error: error sending request"
    "\n\nDebug source:\nGeneric {\n kind: Connect,\n source: hyper_util::client::legacy::Error(\n "
)
SAID = {
    "PUT http://127.0.0.1:1/team-jobs/a/b: 404 Not Found: NoSuchBucket: The specified bucket does not exist.": (
        "Object at location a/b not found: Error performing PUT http://127.0.0.1:1/team%2Djobs/a%2Fb in 982.067µs - "
        f"{NOT_WELL} 404 Not Found: <?xml version='1.0' encoding='UTF-8'?><Error><Code>NoSuchBucket</Code>"
        "<Message>The specified bucket does not exist.</Message></Error>\n\nDebug source:\nNotFound {"
    ),
    "HEAD http://127.0.0.1:9/b/k, after 7 retries: HTTP error: error sending request": (
        "Generic GCS error: Error performing HEAD http://127.0.0.1:9/b/k in 3.972448028s, after 7 retries, "
        "max_retries: 7, retry_timeout: 120s  - HTTP error: error sending request\n\nDebug source:\nGeneric {"
    ),
    "PUT http://169.254.169.254/latest/api/token: 403 Forbidden: denied destination": (
        "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 2ms - "
        f"{NOT_WELL} 403 Forbidden: denied destination"
    ),
    "GET https://127.0.0.1:1/b/x, after 7 retries: the server's certificate is not trusted": (
        "Generic S3 error: Error performing GET https://127.0.0.1:1/b/x in 4.3s, after 7 retries, max_retries: 7, "
        "retry_timeout: 120s  - HTTP error: error sending request\n\nDebug source:\nGeneric {\n error: "
        "InvalidCertificate(\n UnknownIssuer,\n)"
    ),
    "HEAD https://no.example/b/x: HTTP error: error sending request: Name or service not known": (
        f'{NO_ANSWER}Connect,\n ConnectError(\n "dns error",\n Custom {{\n kind: Uncategorized,\n '
        'error: "Name or service not known",\n }'
    ),
    "HEAD https://no.example/b/x: HTTP error: error sending request: the proxy: Connection refused": (
        f'{NO_ANSWER}Connect,\n ConnectFailed(\n ConnectError(\n "tcp connect error",\n 127.0.0.1:1,\n Os {{\n '
        'code: 111,\n kind: ConnectionRefused,\n message: "Connection refused",\n }'
    ),
    "HEAD https://no.example/b/x: HTTP error: error sending request: the proxy: ProxyAuthRequired": (
        f"{NO_ANSWER}Connect,\n ProxyAuthRequired,\n )"
    ),
    "GET http://***@127.0.0.1:9/b?list-type=2: 503 Service Unavailable: busy": (
        f"Generic S3 error: Error performing GET http://ada:p@ss@127.0.0.1:9/b?list-type=2 in 1ms - {NOT_WELL} 503 "
        "Service Unavailable: busy"
    ),
    "no token: HTTP 401: invalid": "no token: HTTP 401: invalid\nand more",
}


@pytest.mark.parametrize("words", SAID)
def test_of_an_error_stays_what_was_asked_and_what_was_answered(words):
    assert store_errors.brief(SAID[words]) == words


@pytest.mark.parametrize(("key", "ends"), [("a/b", " for 'a/b'"), ("", "")])
def test_an_error_names_the_object_unless_it_is_about_all(key: str, ends: str) -> None:
    address = parse_address("gs://bucket/jobs")

    assert store_errors.unreachable(address, key, OSError("refused")).what == f"gs://bucket did not answer{ends}"
    rejected = store_errors.translated(GenericError(f"{NOT_WELL} 400 Bad Request"), address, key)
    assert rejected.what == f"the store rejected the request{ends}"
