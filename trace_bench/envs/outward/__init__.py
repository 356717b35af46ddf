"""A suite's episodes as plain functions, for the trainers and hubs of others.

Their loops end an episode with the agent's first message without a call, and have no user who
answers in between. So here the user is reached by a tool, `talk_to_user`, and the agent's last text
is the message that ends the episode. The score is the suite's own. `trl`, `verifiers` and `openenv`
are built on this.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trace_bench.core.chat import call_json, text_message
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Env, Suite, make_env
from trace_bench.core.types import Message, Score, Step, Task, Tool

USER = "talk_to_user"
OVER = "The conversation has ended."
_TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "array": list,
          "object": dict}  # fmt: skip


class OutwardEpisode:
    """Episodes of a suite, one after the other. Raises UserError for a suite whose user is played
    by a model."""

    def __init__(self, suite: Suite) -> None:
        if suite.asks_user():
            raise UserError(
                f"{suite.name}/{suite.variant} has a user played by a model, which only a run of "
                "trace_bench can ask. Take a suite with a scripted user, such as env=toolsandbox."
            )
        self._suite = suite
        self._env: Env | None = None
        self._last = Step()

    def begin(self, task: Task) -> tuple[Sequence[Message], Sequence[Tool]]:
        """The opening messages and the tools at hand."""
        self.close()
        self._env = make_env(self._suite)
        self._last = self._env.reset(task)
        return self._last.messages, self._last.tools

    def call(self, name: str, arguments: Mapping[str, Any] | str) -> str:
        """A tool's result as text. Arguments in a text may be no JSON, as a model wrote them."""
        return self._act(text_message("", [call_json("call_0", name, arguments)]))

    def say(self, text: str) -> str:
        """What the user answers; `OVER` if that was the end."""
        return self._act(text_message(text))

    def finish(self) -> Score:
        """The score. An episode that is not over is scored as it stands, or 0 if the environment
        cannot."""
        if self._last.score is not None:
            return self._last.score
        return Score(0.0, False) if self._env is None else self._env.score()

    @property
    def over(self) -> bool:
        return self._last.done

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None

    def _act(self, action: Message) -> str:
        if self._env is None:
            raise UserError("an episode is acted in before it was begun; call begin or reset first")
        if self._last.done:
            return OVER
        self._last = self._env.step(action)
        said = "\n".join(m.get("content") or "" for m in self._last.messages)
        return said if said or not self._last.done else OVER


def function(tool: Tool, run: Callable[..., str], bound: bool = False) -> Callable[..., str]:
    """A Python function with a tool's name, parameters, types and docstring. It calls `run` with
    the tool's name and the arguments that were given; `bound`: it is a method, whose first argument
    is passed on. Raises UserError for a name that Python does not allow."""
    own = tool["function"]
    name, schema = own["name"], own.get("parameters", {})
    properties, required = schema.get("properties", {}), schema.get("required", ())
    ordered = sorted(properties, key=lambda argument: argument not in required)
    for text in (name, *properties):
        if not text.isidentifier():
            raise UserError(f"the tool {name} cannot be a function: {text!r} is no Python name")
    kinds = {a: _TYPES.get(str(properties[a].get("type")), str) for a in ordered}
    hints = {a: kinds[a] if a in required else kinds[a] | None for a in ordered}
    first = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)] if bound else []
    parameters = [
        inspect.Parameter(
            a, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=hints[a],
            default=inspect.Parameter.empty if a in required else None,
        )
        for a in ordered
    ]  # fmt: skip
    signature = inspect.Signature([*first, *parameters], return_annotation=str)

    def made(*given: Any, **named: Any) -> str:
        arguments = dict(signature.bind(*given, **named).arguments)
        owner = [arguments.pop("self")] if bound else []
        return run(*owner, name, {k: v for k, v in arguments.items() if v is not None})

    made.__name__ = made.__qualname__ = name
    made.__doc__ = _docstring(own, ordered)
    made.__annotations__ = {**hints, "return": str}
    made.__signature__ = signature  # type: ignore[attr-defined]
    return made


def _docstring(own: Mapping[str, Any], arguments: Sequence[str]) -> str:
    """Google's form, which schemas are read from again."""
    properties = own.get("parameters", {}).get("properties", {})
    told = {a: " ".join(str(properties[a].get("description") or a).split()) for a in arguments}
    lines = [str(own.get("description") or own["name"]), ""]
    if arguments:
        lines += ["Args:", *(f"    {a}: {text}" for a, text in told.items()), ""]
    return "\n".join([*lines, "Returns:", "    The result."])
