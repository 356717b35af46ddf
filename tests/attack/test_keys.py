"""A server that repeats the key in whatever encoding: no text that comes out holds any of them."""

from __future__ import annotations

import base64
import html
import json
from typing import Any
from urllib.parse import quote

import pytest
from raw import answering

from trace_bench.core.errors import UserError
from trace_bench.llm.client import Client, Endpoint, LLMError, Secret, read_key
from trace_bench.rehearse.scripted import Answer, serve

KEY = "sk-9f/Aq+Zr~7w=Kd/2+Xy"
BODY = {"model": "m", "messages": []}


def coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def everywhere(pattern: str) -> str:
    return "".join(pattern.format(ord(c)) for c in KEY)


SAID = {
    "plain": KEY,
    "slashes escaped, as PHP does": KEY.replace("/", "\\/"),
    "every character as a JSON escape": everywhere("\\u{:04x}"),
    "escaped twice": json.dumps(json.dumps(KEY.replace("/", "\\/"))),
    "escapes of Python": everywhere("\\x{:02x}"),
    "URL": quote(KEY, safe=""),
    "HTML": html.escape(KEY).replace("+", "&#43;").replace("/", "&#x2F;"),
    "base64": coded(KEY),
    "base64 of the header": coded(f"Bearer {KEY}"),
    "base64 of name and password": coded(f"x:{KEY}"),
    "base64 for URLs": base64.urlsafe_b64encode(f"Bearer {KEY}".encode()).decode(),
    "hexadecimal digits": KEY.encode().hex(),
}


def secrets() -> list[str]:
    """Pieces of what must not be seen, in each encoding: no encoding but that of one character
    changes the first or the last of them."""
    pieces = [KEY[:5], KEY[-4:], KEY.encode().hex()[6:20]]
    return [*pieces, *(coded("." * n + KEY)[8:20] for n in range(3)), everywhere("\\u{:04x}")[:24]]


def leaks(text: str) -> list[str]:
    return [piece for piece in secrets() if piece in text]


ANSWERS = [
    (said, status, raw)
    for said in SAID.values()
    for status, raw in ((200, False), (200, True), (302, True), (503, False))
]


def test_no_encoding_of_the_key_comes_back() -> None:
    """As a text of a JSON value, or in a body that the server wrote without an encoder."""

    def script(path: str, request: dict[str, Any]) -> Answer:
        said, status, raw = ANSWERS[int(path.rpartition("/")[2])]
        body = f'{{"error": "no: {said}", "{said}": [1]}}' if raw else {"error": said, said: [said]}
        return Answer(body, status, {"Location": said, "Retry-After": said, "X-Key": said})

    with serve(script) as server:
        asking = Client(Endpoint((server.url,), key=KEY, pause=0.01, retries=0))
        for number, (said, status, _) in enumerate(ANSWERS):
            try:
                out = asking.ask(f"/{number}", BODY)
            except LLMError as error:
                out = {"raised": [str(error), repr(error), repr(error.__cause__)]}
            texts = [str(out), repr(out), json.dumps(out), json.dumps(out, ensure_ascii=False)]
            assert not [leak for text in texts for leak in leaks(text)], said
            assert "***" in texts[0] or status == 302, said
        asking.close()


def test_no_exception_shows_the_key() -> None:
    for reply in (
        f"HTTP/1.1 200 OK\r\n{KEY}\r\n\r\n",
        f"HTTP/1.1 {KEY} OK\r\n\r\n",
        f"{KEY} 1.1\r\n\r\n",
        f"HTTP/1.1 200 OK\r\nContent-Length: {KEY}\r\n\r\n",
        f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{KEY}\r\n",
    ):
        with answering(reply.encode()) as url:
            asking = Client(Endpoint((f"{url}/v1",), key=KEY, pause=0.01, retries=0))
            with pytest.raises(LLMError) as caught:
                asking.ask("/chat/completions", BODY)
            asking.close()
        error: BaseException | None = caught.value
        while error is not None:
            assert not leaks(f"{error} {error!r}")
            error = error.__cause__ or error.__context__


@pytest.mark.parametrize("text", ["", "a b", "%41", "\\u0041", "sk-9f", coded("nothing of it")])
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert Secret(KEY).clean(text) == text
    assert Secret(KEY).clean_value({text: [text, 1, None]}) == {text: [text, 1, None]}
    assert Secret(None).clean_value([KEY]) == [KEY]


@pytest.mark.parametrize("value", ["sk-one\nsk-two", "sk-one sk-two", "sk-ключ", "k\x7f"])
def test_a_key_for_no_header_is_refused_unseen(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", value)
    with pytest.raises(UserError, match="SOME_KEY holds something else") as caught:
        read_key("SOME_KEY", "policy.key_env")
    assert "sk-" not in str(caught.value) and value not in str(caught.value)
