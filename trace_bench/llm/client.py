"""HTTP client for OpenAI-compatible servers: bounded concurrency, deadlines, retries. Keys never
appear in messages.

Requests run in one event loop in its own thread, so waiting for one does not block the others. Only
the configured servers are contacted: no proxy from the environment, no redirects. Temporary errors
(429, 5xx, no connection, timeout, truncated response) are retried with growing pauses; other 4xx
responses are not. A server that has answered before and is gone is waited for: it may be restarted.
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
import re
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trace_bench.core.decode import Limits, TooMuch, Unreadable, decode, read
from trace_bench.core.errors import TraceBenchError, UserError, not_allowed
from trace_bench.core.text import without_surrogates
from trace_bench.core.types import JSON

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

LONGEST_PAUSE = 30.0  # seconds
CONNECT = 10.0  # seconds for a connection
BODY = Limits(16 * 2**20)  # of a response
MOST, ITS_NAME_ELSEWHERE = "max_tokens", "max_completion_tokens"  # OpenAI's reasoning models
_DIGITS = bytes(0 if 48 <= byte <= 57 else 1 for byte in range(256))  # each becomes the zero byte
OWN_FIELDS = {
    "model", "messages", "tools", "temperature", "max_tokens", "seed", "n", "stream", "logprobs",
}  # fmt: skip


class LLMError(TraceBenchError):
    """A request failed. `status`: the HTTP status; None if there was no response."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status

    @property
    def outage(self) -> bool:
        """Whether it may succeed later: no server, too much load, or an unknown key or model."""
        return self.status is None or self.status in (401, 403, 404)


class NoUsableAnswer(LLMError):
    """The model answered, but none of its answers was usable."""

    outage = False


class RefusedAnswer(LLMError):
    """The server's response exceeds a limit or is of no known encoding."""

    outage = False


@dataclass(frozen=True)
class Endpoint:
    """The servers of one model and how to contact them. `deadline`: seconds for one attempt.
    `pause`: seconds before the second attempt, then doubled. `patience`: seconds in which a server
    that is gone is waited for, beyond `retries`. `key`: the Authorization header's."""

    urls: tuple[str, ...]
    key: str | None = field(default=None, repr=False)
    deadline: float = 120.0
    retries: int = 5
    concurrency: int = 64
    pause: float = 0.5
    patience: float = 0.0


@dataclass(frozen=True)
class _Trouble:
    """Why an attempt has no answer. `wait`: seconds that the server asks for; `gone`: nothing
    listens there."""

    text: str
    wait: float | None = None
    gone: bool = False


@dataclass
class Usage:
    requests: int = 0
    retries: int = 0
    failures: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def add(self, reply: Mapping[str, Any]) -> None:
        """Adds the token counts that the server reports for one answer."""
        usage = reply.get("usage")
        for name in ("prompt_tokens", "completion_tokens"):
            count = usage.get(name) if isinstance(usage, dict) else 0
            usable = type(count) is int and 0 <= count < 10**9
            setattr(self, name, getattr(self, name) + (count if usable else 0))


class Client:
    """Sends requests to one endpoint's servers. Thread-safe; `close` cancels open requests."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.usage = Usage()
        self.secret = Secret(endpoint.key)
        self._there: set[int] = set()  # servers that have answered
        self._missed: set[int] = set()  # those of them that are waited for
        self._renamed = False  # whether the server wants the limit of tokens under its other name
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._gate = asyncio.Semaphore(endpoint.concurrency)
        self._http = asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()

    async def _open(self) -> ClientSession:
        import aiohttp

        headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
        if self.endpoint.key:
            headers["Authorization"] = f"Bearer {self.endpoint.key}"
        return aiohttp.ClientSession(
            headers=headers,
            auto_decompress=False,
            connector=aiohttp.TCPConnector(limit=self.endpoint.concurrency),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT),
        )

    def start(self, path: str, body: JSON | None, server: int = 0) -> Future[JSON]:
        """Starts a request (POST with a body, else GET) for a JSON object, or an LLMError."""
        return asyncio.run_coroutine_threadsafe(self._ask(server, path, body), self._loop)

    def ask(self, path: str, body: JSON | None, server: int = 0) -> JSON:
        return self.start(path, body, server).result()

    def close(self) -> None:
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        mine = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not mine]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._http.close()

    async def _ask(self, server: int, path: str, body: JSON | None) -> JSON:
        """The answer; where the server refuses `max_tokens` and names what it takes in its place,
        to a second request with that, as to all that follow."""
        try:
            return await self._attempts(server, path, body)
        except LLMError as error:
            about = str(error)  # a server may name both where the context is too short
            other_name = ITS_NAME_ELSEWHERE in about and "context" not in about
            if error.status != 400 or not other_name or MOST not in (body or ()):
                raise
            self._renamed = True
            return await self._attempts(server, path, body)

    async def _attempts(self, server: int, path: str, body: JSON | None) -> JSON:
        url = self.endpoint.urls[server].rstrip("/") + path
        if self._renamed and body is not None:
            body = {ITS_NAME_ELSEWHERE if key == MOST else key: v for key, v in body.items()}
        async with self._gate:
            self.usage.requests += 1
            tries, end = 1, time.monotonic() + self.endpoint.patience
            while isinstance(outcome := await self._try(url, body), _Trouble):
                if tries > self.endpoint.retries and not self._waits(server, outcome, end):
                    break
                self.usage.retries += 1
                await asyncio.sleep(self._pause(tries - 1, outcome.wait))
                tries += 1
            else:
                self._there.add(server)
                self._missed.discard(server)
                self.usage.add(outcome)
                return outcome
        self.usage.failures += 1
        text = self.secret.clean(outcome.text)  # an exception may show what the server sent
        raise LLMError(f"{url}: {text} (tried {tries} times)")

    def _waits(self, server: int, trouble: _Trouble, end: float) -> bool:
        """Whether to wait until `end` for a server that is gone and has answered before; said once.
        One that does not come back in time is not waited for until it answers again."""
        if not trouble.gone or server not in self._there:
            return False
        if time.monotonic() >= end:
            self._there.discard(server)
            return False
        if server not in self._missed:
            self._missed.add(server)
            url, most = self.endpoint.urls[server], self.endpoint.patience
            print(f"{url} is gone and is waited for, at most {most:g} s", file=sys.stderr)
        return True

    async def _try(self, url: str, body: JSON | None) -> JSON | _Trouble:
        """One attempt."""
        import aiohttp
        import msgspec

        content, refused = b"", ""
        how, data = ("GET", None) if body is None else ("POST", msgspec.json.encode(body))
        try:
            async with asyncio.timeout(self.endpoint.deadline):
                async with self._http.request(how, url, data=data, allow_redirects=False) as got:
                    content = await _body(got)
        except aiohttp.ClientResponseError as error:  # its text has what was sent, cut anywhere
            return _Trouble(f"{type(error).__name__}: no readable HTTP")
        except aiohttp.ClientError as error:
            gone = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
            return _Trouble(f"{type(error).__name__}: {error}", gone=gone)
        except TimeoutError:
            return _Trouble(f"no answer within {self.endpoint.deadline:g} s")
        except Unreadable as error:
            refused = str(error)
        try:
            raw = content.decode()
        except UnicodeDecodeError:
            raw, refused = content.decode(errors="replace"), "it is not UTF-8"
        text = self.secret.clean(raw)  # before it is shortened or stored
        if got.status == 429 or got.status >= 500:
            return _Trouble(f"HTTP {got.status}: {text[:300]}", _seconds(got.headers))
        if got.status >= 300:
            self.usage.failures += 1
            raise LLMError(f"{url}: HTTP {got.status}: {text[:500]}", got.status)
        try:
            reply = self.secret.clean_value(None if refused else _value(content))
        except TooMuch as error:
            reply, refused = None, str(error)
        except Unreadable:
            reply = text if body is not None and text else None  # a plain-text acknowledgement
            reply = {"text": reply} if reply and not reply.lstrip().startswith(("{", "[")) else None
        if refused:
            self.usage.failures += 1
            raise RefusedAnswer(f"{url}: the answer is refused: {refused}", got.status)
        if not isinstance(reply, dict):
            return _Trouble(f"the answer is no JSON object: {text[:100]!r}")
        return reply

    def _pause(self, attempt: int, wanted: float | None) -> float:
        """Seconds until the next attempt: doubled each time, with jitter against retry storms."""
        pause = min(self.endpoint.pause * 2 ** min(attempt, 20), LONGEST_PAUSE)
        pause *= 0.5 + random.random()
        return pause if wanted is None else max(pause, min(wanted, LONGEST_PAUSE))


async def _body(got: ClientResponse) -> bytes:
    """A response's body. Raises Unreadable as soon as it is longer than `BODY.size`, and for one
    that is compressed, of which a little may be too much."""
    if got.headers.get("content-encoding", "identity") != "identity":
        raise Unreadable("it is compressed, which was not asked for")
    body = bytearray()
    async for piece in got.content.iter_any():
        body += piece
        if len(body) > BODY.size:
            raise Unreadable(f"it is longer than {BODY.size} bytes")
    return bytes(body)


def _value(content: bytes) -> Any:
    """The JSON of a response, which may hold thousands of token ids. Raises Unreadable."""
    long = bytes(300) in content.translate(_DIGITS)  # digits that may be no number of a float
    value = read(content, BODY) if long else decode(content, object, BODY)
    escaped = b"\\ud" in content or b"\\uD" in content
    return without_surrogates(value) if escaped else value


def _seconds(headers: Mapping[str, str]) -> float | None:
    """The Retry-After header in seconds; None if it is not a number."""
    try:
        return max(0.0, float(headers.get("retry-after", "")))
    except ValueError:
        return None


def check_urls(urls: tuple[str, ...], setting: str) -> tuple[str, ...]:
    """The checked addresses. Raises UserError, without an address that may hold a password."""
    if not urls:
        raise UserError(f"`{setting}` names no server; such as http://127.0.0.1:8000/v1.")
    import httpx

    for url in urls:
        if "@" in url or "?" in url:  # in what is no address, too
            raise UserError(
                f"`{setting}` holds a name, a password or a query; keys come from an environment "
                "variable only, see the setting beside it that ends in `key_env`."
            )
        try:
            parts = httpx.URL(url)
            usable = bool(parts.host) and (parts.port or 1) < 2**16
        except (httpx.InvalidURL, UnicodeError):
            usable = False
        if not usable or parts.scheme not in ("http", "https"):
            raise not_allowed(setting, repr(url), "an address such as http://127.0.0.1:8000/v1")
    return urls


def check_extra(extra: Mapping[str, Any] | None, setting: str) -> dict[str, Any]:
    """Checks further fields of a request. Raises UserError for fields that other settings set."""
    if taken := sorted(OWN_FIELDS & set(extra or {})):
        raise UserError(
            f"`{setting}` holds {', '.join(taken)}, which other settings decide; allowed: other "
            "fields, such as chat_template_kwargs."
        )
    return dict(extra or {})


def read_key(variable: str | None, setting: str) -> str | None:
    """The key from an environment variable; None if no variable is named. Raises UserError. An
    invalid name is never shown: it may be the key itself, entered by mistake."""
    if variable is None:
        return None
    if not re.fullmatch(r"[A-Z_][A-Z0-9_]{0,63}", variable):
        raise UserError(
            f"`{setting}` is not the name of an environment variable (capitals, digits, _). Put "
            f"the key into a variable and name that, such as {setting}=OPENAI_API_KEY."
        )
    key = os.environ.get(variable, "").strip()
    if not key:
        raise UserError(
            f"{setting}={variable}, but the environment variable {variable} is empty. Set it, or "
            f"change `{setting}` (null: no key)."
        )
    if not re.fullmatch(r"[!-~]+", key):
        raise UserError(
            f"{setting}={variable}, but the environment variable {variable} holds something else "
            "than one key: a key has letters, digits and punctuation of ASCII and no space or "
            "line break. Set it again."
        )
    return key


HIDDEN = "***"
_SHORTEST = 8  # characters of base64 or hexadecimal digits that are no coincidence


class Secret:
    """Removes a server's key from whatever the server says: `clean` from a text, `clean_value` from
    all texts of a JSON value. Without a key both change nothing.

    A server that complains about a request may repeat it, escaped as its own framework does it. So
    each character of the key is looked for as itself, as a JSON escape, in URL encoding and as an
    HTML entity, mixed and escaped twice, and the whole key also in base64 (within any longer text)
    and in hexadecimal digits."""

    def __init__(self, key: str | None) -> None:
        spelled = ["".join(map(_spellings, form)) for form in _forms(key)] if key else []
        self._pattern = re.compile("|".join(spelled)) if spelled else None

    def clean(self, text: str) -> str:
        return self._pattern.sub(HIDDEN, text) if self._pattern else text

    def clean_value(self, value: Any) -> Any:
        """The value with its texts cleaned, the names of its fields included."""
        if self._pattern is None:
            return value
        if isinstance(value, str):
            return self.clean(value)
        if isinstance(value, dict):
            return {self.clean(name): self.clean_value(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self.clean_value(item) for item in value]
        return value


def _forms(key: str) -> list[str]:
    data = key.encode()
    forms = {data.hex(), data.hex().upper()}
    for before in range(3):  # bytes of other text before the key in a group of three
        code = base64.b64encode(bytes(before) + data).decode().rstrip("=")
        first = -(-before * 8 // 6)  # characters that the other text decides, too
        last = (before + len(data)) * 8 // 6
        for form in (code[first:last], code[first:last].translate(_URL_SAFE)):
            forms.add(form)
    return [key, *sorted(form for form in forms if len(form) >= _SHORTEST)]


_URL_SAFE = str.maketrans("+/", "-_")


def _spellings(character: str) -> str:
    """A pattern of the character in any encoding."""
    code = ord(character)
    octets = "".join(f"%(?:25)*{octet:02x}" for octet in character.encode())
    ways = (
        rf"\\{{0,8}}{re.escape(character)}",
        rf"\\{{1,8}}(?i:u{code:04x}|u\{{0*{code:x}\}}|x{code:02x})",
        f"(?i:{octets})",
        f"(?i:&#0*{code};|&#x0*{code:x};)",
    )
    return f"(?:{'|'.join(ways)})"
