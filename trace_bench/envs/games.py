"""Games that others made: an episode of moves, each a tool call, and tasks for capabilities."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Any

from trace_bench.core.chat import answer_call, read_call
from trace_bench.core.errors import EpisodeError, unknown
from trace_bench.core.protocols import Env
from trace_bench.core.types import Boundary, Message, Step, StopReason, Task
from trace_bench.envs import SplitsByNumber

SYNTHETIC, CONTRAST = "synthetic", 0.2  # the split of made tasks, and the share of contrast cases


class Game(Env):
    """Its end, `steps` calls, or a message without one end it. `reset` sets `_game`, `_left`."""

    def __init__(self, steps: int) -> None:
        self._steps = self._left = steps
        self._game: Any = None

    @property
    @abstractmethod
    def over(self) -> bool:
        """Whether the game has ended."""

    @property
    def ended_itself(self) -> bool:
        """Whether it did by itself, not by a limit of its own."""
        return self.over

    @abstractmethod
    def move(self, name: str, arguments: dict[str, Any]) -> str:
        """What a call is answered by. Raises ValueError with the agent's error."""

    def step(self, action: Message) -> Step:
        if self._game is None:
            raise EpisodeError(Boundary.ENVIRONMENT, "step without a running episode; reset first")
        calls = action.get("tool_calls") or ()
        answers = tuple(answer_call(call, self._answer(call)) for call in calls)
        if calls and not self.over and self._left > 0:
            return Step(answers)
        stop = StopReason.DONE if self.ended_itself or not calls else StopReason.TURN_LIMIT
        return Step(answers, done=True, score=self.score(), stop=stop)

    def close(self) -> None:
        self._game = None

    def _answer(self, call: Any) -> str:
        self._left -= 1  # also what cannot be read is a step
        try:
            return self.move(*read_call(call))
        except ValueError as error:
            return f"ValueError: {error}"


class GameSuite(SplitsByNumber):
    """A suite of games, with a capability's seeds as further tasks
    ("name/variant/synthetic/CAPABILITY/7"). `skills`: the capabilities that a game may need."""

    tag_keys = ("requires",)
    sizes = {"demo": 6000, "train": 512, "dev": 200, "test": 400}  # noqa: RUF012
    skills: Collection[str]

    @abstractmethod
    def data_for(
        self, capability: str, seed: int, contrast: bool, rng: random.Random
    ) -> dict[str, Any]:
        """The data of a game that needs the capability, or, for a contrast case, does not."""

    def synthetic(self, capability: str, seed: int) -> Task:
        """A game that needs the capability, or (in a fifth) one that does not."""
        if capability not in self.skills:
            raise unknown("capability", capability, self.skills, "capability")
        rng = random.Random(f"{self.name}/{capability}/{seed}")
        contrast = rng.random() < CONTRAST
        data = self.data_for(capability, seed, contrast, rng) | {"contrast": contrast}
        name = f"{self.name}/{self.variant}/{SYNTHETIC}/{capability}/{seed}"
        return Task(name, self.name, SYNTHETIC, seed, data)

    def reference(self, task: Task) -> Sequence[Message]:
        return self.begun(task).solution()

    def begun(self, task: Task) -> Any:
        env = self.make()
        env.reset(task)
        return env

    def _made(self, kind: str, number: int) -> Task | None:
        task = super()._made(kind, number)
        return self.synthetic(kind, number) if not task and kind in self.capabilities() else task
