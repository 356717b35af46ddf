"""The scripted user, who answers from the task's data alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ScriptedUser:
    """`script` has "opening", "answers" ([{"keywords", "reply"}]), "followups" and "fallback"."""

    def __init__(self, script: Mapping[str, Any]) -> None:
        self.opening: str = script["opening"]
        self._fallback: str = script["fallback"]
        self._answers = [(tuple(a["keywords"]), a["reply"]) for a in script.get("answers", ())]
        self._followups = list(script.get("followups", ()))

    def reply(self, text: str) -> str | None:
        """The user's answer to a text of the agent; None when the user ends the conversation.

        A question gets the first unused answer with a keyword in it, else the fallback; anything
        else gets the next follow-up request while there is one.
        """
        if "?" not in text:
            return self._followups.pop(0) if self._followups else None
        lowered = text.lower()
        for i, (keywords, reply) in enumerate(self._answers):
            if any(keyword in lowered for keyword in keywords):
                del self._answers[i]
                return str(reply)
        return self._fallback
