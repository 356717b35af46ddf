"""One turn from every server before a run begins: what would fail every episode ends the run at
once, with the server's own words and the setting to change. It costs requests and no rollout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from trace_bench.core.errors import UserError
from trace_bench.core.limits import Unreadable
from trace_bench.core.protocols import TurnRequest
from trace_bench.core.types import Turn
from trace_bench.llm.client import LLMError

OneTurn = Callable[[int, TurnRequest], Turn]
"""(server, request) -> the only turn of an episode at that server. Raises LLMError, ContextFull and
Unreadable."""


class ContextFull(LLMError):
    """The server's context has no room for the prompt and a turn."""

    outage = False


def try_servers(urls: Sequence[str], model: str, one: OneTurn, request: TurnRequest) -> str:
    """Asks each server for the turn; returns what was asked. Where a server says which tokens it
    read, it is asked once more without the tools: if it read the same, they do not reach the model.
    Raises UserError."""
    asked = 0
    for server, url in enumerate(urls):
        read = _turn(url, model, partial(one, server, request)).prompt_ids
        asked += 1
        if not request.tools or not read:
            continue
        bare = replace(request, tools=(), max_tokens=1)
        asked += 1
        if _turn(url, model, partial(one, server, bare)).prompt_ids == read:
            raise UserError(
                f"the server {url} leaves tools out of the prompt, so the agent would never see "
                f"them: the prompt of {len(read)} tokens is the same without them. Give it a chat "
                "template with tools (vLLM: --chat-template), or change `model.name`."
            )
    many = f"{len(urls)} servers" if len(urls) > 1 else "the server"
    tools = f" with {len(request.tools)} tools" if request.tools else ""
    return f"asked {many} for a first turn{tools}: {asked} requests, no rollout"


def _turn(url: str, model: str, ask: Callable[[], Turn]) -> Turn:
    try:
        return ask()
    except ContextFull as error:
        raise UserError(
            f"the server {url} has no room for the first prompt of a task: {error}. Start it with "
            "a longer context (vLLM: --max-model-len), or lower `policy.max_tokens`."
        ) from error
    except LLMError as error:
        remedy = _remedy(error.status, model)
        raise UserError(f"the server {url} gives no turn: {error}. {remedy}") from error
    except Unreadable as error:
        raise UserError(
            f"the server {url} gives no turn that can be used: {error}. It must have OpenAI's chat "
            "completions; change `policy.base_url`."
        ) from error


def _remedy(status: int | None, model: str) -> str:
    """What to do about a request that failed; `status`: of the answer, None without one."""
    if status in (401, 403):
        return "Change its key (`policy.key_env`)."
    if status == 404:
        return (
            f"It does not serve the model {model!r}, or no chat completions: change `model.name` "
            "or `policy.base_url`."
        )
    if status is not None and status >= 400:
        return (
            "It refuses this request: change what it is asked for (`policy.extra`, "
            "`policy.max_tokens`), or how it is started (vLLM takes tools with "
            "--enable-auto-tool-choice and --tool-call-parser)."
        )
    return "See its log, change `policy.base_url`, or raise `policy.deadline`."
