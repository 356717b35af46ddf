"""TextArena: lakes of ice with holes, drawn and judged by the package textarena.

An episode is one line of text a turn and four tools without arguments. The line says what is on
the agent's four sides, and then shows the package's own board without its frame, row by row
("up wall, down ice, left wall, right ice. P . H / . . . / H . G"). Boards, moves and ends are the
package's; a move into the wall is answered by an error, and a second one with no allowed move
between them ends the game, as it does there.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

from trace_bench.core.chat import make_call, make_tool
from trace_bench.core.errors import UserError, not_allowed
from trace_bench.core.protocols import Typical
from trace_bench.core.types import Message, Milestone, Score, Step, Task
from trace_bench.envs import package_folder
from trace_bench.envs.games import Game, GameSuite

VERSION = "0.7.4"
GAME, SIZE, HOLES = "FrozenLake-v0-hardcore", 5, 6  # the package's name, and what it stands for
FIRST_SYNTHETIC = 10_000_000
APART = 100  # seeds between two made tasks, so that each finds an opening of its own
SKILL = "completes_all_parts"  # its contrast cases are without holes
OPENING = {"role": "system", "content": "You cross the ice. Call one tool a turn."}
ACTIONS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
ICE = "."
NAMES = {ICE: "ice", "H": "hole", "G": "goal", "P": "here", "P/G": "here"}  # of a board's cells
HALF = 0.5  # of the way
SHARES = {"demo": range(6, 16), "train": range(3, 6), "dev": range(2, 3), "test": range(2)}
"""A split's sixteenths of the checksums of openings: no split has a lake of another, and in all but
`demo`, for demonstrations, no two have the same opening."""
LIMIT = 100  # moves, after which the package ends a game
_DRAWING = threading.Lock()


def _begun(data: Mapping[str, Any]) -> Any:
    """The package's game at its start. It draws a lake from a generator of its module's, for which
    one of the lake's own stands in: Python's own belongs to everybody."""
    import textarena
    from textarena.envs.FrozenLake import env as module

    game = textarena.make(f"{GAME}-raw", size=data["size"], num_holes=data["holes"])
    with _DRAWING:
        kept, module.random = module.random, random.Random(data["seed"])
        try:
            game.reset(num_players=1)
        finally:
            module.random = kept
    return game


def seen(observation: Sequence[tuple[int, str, Any]]) -> tuple[str, str]:
    """Of an observation: the agent's four sides and the board; what is said of an illegal move."""
    board, refused = "", ""
    for _, text, kind in observation:
        if kind.name == "GAME_BOARD":
            framed = [line.strip("|").split("|") for line in text.splitlines() if line[:1] == "|"]
            rows = [[cell.strip() or ICE for cell in row] for row in framed]
            board = f"{_sides(rows)}. {' / '.join(' '.join(row) for row in rows)}"
        elif kind.name == "GAME_ADMIN":
            refused = text.partition("Reason: ")[2].partition("!")[0]
    return board, refused


def _sides(rows: Sequence[Sequence[str]]) -> str:
    places = {(y, x): NAMES[cell] for y, row in enumerate(rows) for x, cell in enumerate(row)}
    y, x = next(place for place, name in places.items() if name == "here")
    sides = {name: places.get((y + dy, x + dx), "wall") for name, (dy, dx) in ACTIONS.items()}
    return ", ".join(f"{name} {what}" for name, what in sides.items())


class TextArenaEnv(Game):
    """One game."""

    def reset(self, task: Task) -> Step:
        self._game, self._left = _begun(task.data), self._steps
        ask = {"role": "user", "content": seen(self._game.get_observation()[1])[0]}
        tools = tuple(make_tool(name, f"Go {name}.") for name in ACTIONS)
        return Step((OPENING, ask), tools=tools)

    @property
    def over(self) -> bool:
        return bool(self._game.state.done)

    def move(self, name: str, arguments: dict[str, Any]) -> str:
        """The board afterwards, or how the game ended."""
        if name not in ACTIONS or arguments:
            raise ValueError(f"allowed, without arguments: {', '.join(ACTIONS)}")
        if self.over or self._left < 0:
            raise ValueError("the game is over")
        self._game.step(f"[{name}]")
        board, refused = seen(self._game.get_observation()[1])
        told = self._game.state.game_info[0]
        if refused or told["invalid_move"]:
            raise ValueError(refused or told["reason"].partition("!")[0])
        return str(told["reason"].partition("!")[0]) if self.over else board

    def score(self) -> Score:
        """Success is the goal, and so is similarity: the package's own reward for a lost game, the
        share of the way that was behind the agent, is in the milestones (docs/textarena.md)."""
        ended = self._game.state.rewards
        share = ended[0] if ended else self._game._get_percentage_completion()
        return Score(float(share >= 1), share >= 1, milestones=_milestones(share))

    def solution(self) -> Sequence[Message]:
        """A shortest way from here that touches no hole; none if there is no step left for it."""
        state = self._game.state.game_state
        grid, start, goal = state["grid"], state["player_pos"], state["goal_pos"]
        ways: dict[tuple[int, int], tuple[str, ...]] = {start: ()}
        open_ends = deque([start])
        while open_ends:
            here = open_ends.popleft()
            for name, (down, right) in ACTIONS.items():
                there = here[0] + down, here[1] + right
                inside = 0 <= there[0] < len(grid) and 0 <= there[1] < len(grid)
                if inside and there not in ways and grid[there[0]][there[1]] != "H":
                    ways[there] = (*ways[here], name)
                    open_ends.append(there)
        way = () if self.over else ways.get(goal, ())
        return [make_call(name) for name in way] if len(way) <= self._left else ()


def _milestones(share: float) -> tuple[Milestone, ...]:
    half = Milestone("half of the way", min(1.0, share / HALF), share >= HALF)
    return half, Milestone("the goal", share, share >= 1)


class TextArenaSuite(GameSuite):
    """TextArena's frozen lakes.

    `size`: the cells of a side. `holes`: their number. `steps`: the most calls of an episode.

    Raises UserError."""

    name = "textarena"
    image = "textarena"
    skills = (SKILL,)
    typical = Typical(9, 80, 10, 0)

    def __init__(self, size: int = SIZE, holes: int = HOLES, steps: int = 20) -> None:
        package_folder(self.name, "textarena", VERSION, f"pip install '.[{self.name}]'", self.name)
        if not 3 <= size <= 12 or not 2 <= holes <= size**2 // 3:
            raise UserError(
                f"env.size={size} env.holes={holes}: allowed are 3 to 12 cells a side, and two "
                "holes up to a third of all cells. Change `env.size` or `env.holes`."
            )
        if not 2 * (size - 1) <= steps <= LIMIT:
            least = f"{2 * (size - 1)}, the shortest way across env.size={size}"
            raise not_allowed("env.steps", steps, f"{least}, to {LIMIT}, the package's own limit")
        self._size, self._holes, self._steps = size, holes, steps
        self.variant = "default" if (size, holes) == (SIZE, HOLES) else f"{size}x{size}-{holes}"
        self._seeds: dict[str, list[int]] = {split: [] for split in SHARES}
        self._taken: set[int] = set()  # checksums of the openings of those seeds
        self._next = 0  # the first seed that was not looked at
        self._looking = threading.Lock()

    def about(self) -> dict[str, Any]:
        lake = {"size": self._size, "holes": self._holes}
        return {"data": f"textarena {VERSION}", "steps": self._steps} | lake

    def make(self) -> TextArenaEnv:
        return TextArenaEnv(self._steps)

    def capabilities(self) -> Sequence[str]:
        return (SKILL,)

    def data_for(
        self, capability: str, seed: int, contrast: bool, rng: random.Random
    ) -> dict[str, Any]:
        first = FIRST_SYNTHETIC + APART * (seed % 10**7)
        data = self._data(first if contrast else self._training(first))
        return data | ({"holes": 0, "requires": []} if contrast else {})

    def data_of(self, split: str, number: int) -> dict[str, Any]:
        return self._data(self._seed(split, number))

    def _data(self, seed: int) -> dict[str, Any]:
        lake = {"size": self._size, "holes": self._holes, "seed": seed}
        return lake | {"requires": [SKILL]}

    def _seed(self, split: str, place: int) -> int:
        """The seed with that place in a split. Raises UserError for lakes with too few openings."""
        with self._looking:
            while len(self._seeds[split]) <= place:
                if self._next > 2000 + 40 * place:
                    raise self._too_few()
                checksum = self._checksum(self._next)
                if (there := _split(checksum)) == "demo" or checksum not in self._taken:
                    self._taken.add(checksum)
                    self._seeds[there].append(self._next)
                self._next += 1
            return self._seeds[split][place]

    def _training(self, seed: int) -> int:
        """The first seed from this one on whose opening is one of `train`. Raises UserError if
        there is none among so many that one would be."""
        for candidate in range(seed, seed + 1000):
            if _split(self._checksum(candidate)) == "train":
                return candidate
        raise self._too_few()

    def _checksum(self, seed: int) -> int:
        return crc32(seen(_begun(self._data(seed)).get_observation()[1])[0].encode())

    def _too_few(self) -> UserError:
        return UserError(
            f"env.size={self._size} env.holes={self._holes}: its openings are too few for a split "
            f"of their own; allowed: larger lakes, such as env.size={SIZE} env.holes={HOLES}."
        )


def _split(checksum: int) -> str:
    return next(split for split, share in SHARES.items() if checksum % 16 in share)
