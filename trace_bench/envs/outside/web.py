"""Plain HTTP to the one server that a setting names: no redirect, no proxy, limits on answers."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.parse import quote, urlsplit

from trace_bench.core.decode import shown
from trace_bench.core.errors import UserError
from trace_bench.core.limits import Limits, read
from trace_bench.core.text import described
from trace_bench.envs.outside import digest, plain_name, refuse

LONGEST = Limits(4 * 2**20)
MOST_TASKS = 100_000


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
        try:
            with self._open(path, data) as answer:
                return read(answer.read(LONGEST.size + 1), LONGEST)
        except urllib.error.HTTPError as error:
            if error.code in (404, 405, 501):
                return None
            refuse(f"{path} answered with status {error.code}")
        except (OSError, HTTPException, ValueError) as error:
            refuse(f"{path}: {described(error)}")

    def _open(self, path: str, data: Mapping[str, Any] | None) -> Any:
        body = None if data is None else json.dumps(data).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, body, headers)
        return self._opener.open(request, timeout=self._deadline)


class TaskApi(Web):
    """The routes for splits and tasks, of the environment `name`."""

    name = ""

    def splits(self) -> dict[str, int]:
        """How many tasks each split has; none without the routes. Raises EpisodeError."""
        found = self.ask(f"/{quote(self.name)}/splits")
        out = {}
        for one in found if isinstance(found, list) else ():
            split = one.get("name") if isinstance(one, dict) else one
            if not isinstance(split, str) or plain_name(split, "") != split:
                refuse(f"a split is called {shown(split)}; allowed: letters, digits, _, . and -")
            counted = self.ask(f"/{quote(self.name)}/num_tasks", {"split": split})
            number = counted.get("num_tasks") if isinstance(counted, dict) else None
            if type(number) is not int or not 0 <= number <= MOST_TASKS:
                refuse(f"the split {split} has {shown(number)} tasks; allowed: 0 to {MOST_TASKS}")
            out[split] = number
        return out

    def digests(self, split: str, stop: int, start: int = 0) -> list[str]:
        """Of each task's description, so that a change is noticed; none where it shows none."""
        where = {"split": split, "start": start, "stop": stop}
        found = self.ask(f"/{quote(self.name)}/task_range", where)
        specs = found.get("tasks") if isinstance(found, dict) else None
        if not isinstance(specs, list) or len(specs) != stop - start:
            return []
        return [digest(spec) for spec in specs]

    def same(self, split: str, index: int, known: str | None) -> None:
        """Raises EpisodeError if the task's description is not the known one."""
        if known is not None and self.digests(split, index + 1, index) != [known]:
            refuse(f"the server's task {index} of {split} has changed")


def place(specs: Mapping[str, list[str]], split: str, number: int) -> dict[str, Any]:
    """A task's place, and the digest of its description where there is one."""
    known = {"spec": specs[split][number]} if specs[split] else {}
    return {"split": split, "index": number, **known}
