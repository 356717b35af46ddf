"""Plain HTTP to the one server that a setting names: no redirect, no proxy, limits on answers."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from trace_bench.core.errors import UserError
from trace_bench.core.limits import Limits, read
from trace_bench.core.text import described
from trace_bench.envs.outside.values import refuse

LONGEST = Limits(4 * 2**20)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


class Web:
    """The server of `env.url`. Raises UserError for what is no address."""

    def __init__(self, url: str, deadline: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"env.url={url!r} is no http:// or https:// address.")
        self.url, self._deadline = url.rstrip("/"), deadline
        empty = urllib.request.ProxyHandler({})
        self._opener = urllib.request.build_opener(_NoRedirect, empty)

    def ask(self, path: str, data: Mapping[str, Any] | None = None) -> Any:
        """What a route answers; None for one that the server has not. Raises EpisodeError."""
        body = None if data is None else json.dumps(data).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, body, headers)
        try:
            with self._opener.open(request, timeout=self._deadline) as answer:
                return read(answer.read(LONGEST.size + 1), LONGEST)
        except urllib.error.HTTPError as error:
            if error.code in (404, 405, 501):
                return None
            refuse(f"{path} answered with status {error.code}")
        except (OSError, ValueError) as error:
            refuse(f"{path}: {described(error)}")
