"""`policy=openai`: its settings, and the policy that they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from trace_bench.core.checked import PLACE
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import RunContext
from trace_bench.core.types import Meta, Natural
from trace_bench.llm.client import Endpoint, check_extra, check_urls, read_key
from trace_bench.policies.chat import Chat
from trace_bench.policies.openai import OpenAIPolicy


@dataclass(frozen=True)
class OpenAISettings:
    """`policy.*` of `policy=openai`."""

    base_url: tuple[str, ...] = field(metadata=PLACE)
    """One address or a list of them; an episode stays on one server."""
    key_env: str | None = field(default=None, metadata=PLACE)
    """Name of the environment variable that holds the key; null: no key is sent."""
    deadline: Annotated[float, Meta(ge=0.1)] = field(default=120.0, metadata=PLACE)
    """Seconds for one attempt of a request."""
    retries: Natural = field(default=5, metadata=PLACE)
    """Further attempts after 429, 5xx, lost connections and deadlines."""
    extra: Mapping[str, Any] | None = None
    """More fields of every request, such as {chat_template_kwargs: {...}}."""
    parse: Literal["server", "tokens"] = "server"
    """Who reads calls and thoughts in a turn. server: what its parsers were started with; tokens:
    this program, from the sampled ids of a vLLM, with the tokenizer in `model.path`: no parser
    is needed there (docs/models.md has the formats)."""


def template_options(thinking: bool | None) -> dict[str, dict[str, bool]]:
    """What a request says to the template of vLLM's model; None: nothing."""
    return {} if thinking is None else {"chat_template_kwargs": {"enable_thinking": thinking}}


def served(settings: OpenAISettings, run: RunContext) -> OpenAIPolicy:
    """`policy=openai`: sends requests to servers."""
    endpoint = Endpoint(
        check_urls(settings.base_url, "policy.base_url"),
        read_key(settings.key_env, "policy.key_env"),
        deadline=settings.deadline,
        retries=settings.retries,
        concurrency=run.batch,
    )
    extra = check_extra(settings.extra, "policy.extra")
    for key, own in template_options(run.thinking).items():
        extra = {**extra, key: {**own, **extra.get(key, {})}}
    keep = run.thoughts == "keep"
    if keep and settings.parse != "tokens":
        raise UserError(
            "policy.thoughts=keep at servers needs prompts that are rendered here, with the "
            "tokenizer in `model.path`. Set policy.parse=tokens, or policy.thoughts=own."
        )
    chat = None
    if settings.parse == "tokens":
        from trace_bench.policies.loading import load_tokenizer

        chat = Chat(load_tokenizer(run.model), run.model, run.thinking)
    policy = OpenAIPolicy(
        endpoint, run.served_model, capacity=run.batch, extra=extra, chat=chat, keep=keep
    )
    policy.hold_to(Path(run.model))
    return policy
