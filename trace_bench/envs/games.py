"""Games that others made: an episode of moves, each a tool call; tasks for capabilities; splits by
what a game shows first."""

from __future__ import annotations

import random
import threading
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar
from zlib import crc32

from trace_bench.core.chat import answer_call, read_call
from trace_bench.core.errors import EpisodeError, UserError, unknown
from trace_bench.core.protocols import Env
from trace_bench.core.types import Boundary, Message, Step, StopReason, Task
from trace_bench.envs import SplitsByNumber

SYNTHETIC, CONTRAST = "synthetic", 0.2  # the split of made tasks, and the share of contrast cases


class Game(Env):
    """The game's end, `steps` calls, and a message without a call end an episode. `reset` sets
    `_game` and `_left`."""

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
        """The data of a game that needs the capability, or, for a contrast case, of one that does
        not."""

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
        """The task's environment at its start."""
        env = self.make()
        env.reset(task)
        return env

    def _made(self, kind: str, number: int) -> Task | None:
        task = super()._made(kind, number)
        return self.synthetic(kind, number) if not task and kind in self.capabilities() else task


class Divided:
    """Which seeds of a game belong to which split, by the openings that they give: no split has a
    game of another, and in all but `demo`, for demonstrations, no two have the same opening."""

    shares: ClassVar[Mapping[str, range]] = {
        "demo": range(6, 16), "train": range(3, 6), "dev": range(2, 3), "test": range(2)
    }  # fmt: skip
    """A split's sixteenths of an opening's checksums."""

    def __init__(self, opening: Callable[[int], str], setting: str, instead: str) -> None:
        """`opening`: what a seed's game shows first. `setting`, `instead`: the setting that names
        the game, and what is allowed where its openings are too few."""
        self._opening, self._setting, self._instead = opening, setting, instead
        self._seeds: dict[str, list[int]] = {name: [] for name in self.shares}
        self._taken: set[int] = set()
        self._next = 0  # the first seed that was not looked at
        self._looking = threading.Lock()

    def seed(self, split: str, place: int) -> int:
        """The seed with that place in a split. Raises UserError for a game whose openings are too
        few to be divided."""
        with self._looking:
            while len(self._seeds[split]) <= place:
                if self._next > 2000 + 40 * place:
                    raise self._too_few()
                checksum = crc32(self._opening(self._next).encode())
                there = self._split(checksum)
                if there == "demo" or checksum not in self._taken:
                    self._taken.add(checksum)
                    self._seeds[there].append(self._next)
                self._next += 1
            return self._seeds[split][place]

    def training(self, seed: int) -> int:
        """The first seed from this one on whose opening is one of `train`. Raises UserError if
        there is none among so many that one would be."""
        for found in range(seed, seed + 1000):
            if self._split(crc32(self._opening(found).encode())) == "train":
                return found
        raise self._too_few()

    def _too_few(self) -> UserError:
        return UserError(
            f"{self._setting}: its openings are too few for a split of their own; "
            f"allowed: {self._instead}."
        )

    def _split(self, checksum: int) -> str:
        return next(name for name in self.shares if checksum % 16 in self.shares[name])
