"""Plain HTTP to the one server that a setting names: no redirect, no proxy, limits on answers."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from types import MappingProxyType
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

    def ask(
        self,
        path: str,
        data: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Any:
        """What a route answers; None for one that the server has not. Raises EpisodeError."""
        try:
            with self._open(path, data, headers) as answer:
                return read(answer.read(LONGEST.size + 1), LONGEST)
        except urllib.error.HTTPError as error:
            if error.code in (404, 405, 501):
                return None
            refuse(f"{path} answered with status {error.code}")
        except (OSError, HTTPException, ValueError) as error:
            refuse(f"{path}: {described(error)}")

    def stream(
        self, path: str, data: Mapping[str, Any], headers: Mapping[str, str]
    ) -> tuple[str, Any]:
        """What a route says in server-sent events, to their end: the name of what it came from, and
        the value. Raises EpisodeError."""
        end, size, name, event, parts = time.monotonic() + self._deadline, 0, "", "", list[str]()
        try:
            with self._open(path, data, headers) as answer:
                while line := answer.readline(LONGEST.size + 1):
                    size += len(line)
                    if size > LONGEST.size or time.monotonic() > end:
                        refuse(f"{path} says too much, or for longer than {self._deadline:g} s")
                    key, _, text = line.decode(errors="replace").strip().partition(":")
                    event = text.strip() if key == "event" else event
                    if key != "data":
                        continue
                    name = text.strip() if event == "task_id" else name
                    if event == "error":
                        refuse(f"{path}: {text.strip()[:2000]}")
                    parts += [text.strip()] if event in ("chunk", "end") else []
                    if event == "end":
                        said = "".join(parts)
                        return name, read(said, LONGEST) if said else None
        except (OSError, HTTPException, ValueError) as error:
            refuse(f"{path}: {described(error)}")
        refuse(f"{path} ended in the middle")

    def _open(self, path: str, data: Mapping[str, Any] | None, headers: Mapping[str, str]) -> Any:
        body = None if data is None else json.dumps(data).encode()
        kind = {"Content-Type": "application/json", **headers}
        request = urllib.request.Request(self.url + path, body, kind)
        return self._opener.open(request, timeout=self._deadline)


class TaskApi(Web):
    """The routes for splits and tasks, which OpenEnv and ORS share, of the environment `name`."""

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
