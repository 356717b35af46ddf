"""BabyAI by the package minigrid: levels of a gridworld that are named skills, missions in words.

An episode is one line of text a turn and six tools without arguments. The line says what the
benchmark's own observation shows, the 7 x 7 cells in front of the agent that it can see. Levels,
missions, success and the expert that gives references (`BabyAIBot`) are the package's; an action
without an effect is answered by an error. Success ends the episode, and so does a text.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from trace_bench.core.chat import make_call, make_tool
from trace_bench.core.errors import UserError, unknown
from trace_bench.core.protocols import Typical
from trace_bench.core.types import Message, Score, Step, Task
from trace_bench.envs import met, package_folder
from trace_bench.envs.games import Game, GameSuite

VERSION = "3.2.0"
DEFAULT = ("OpenDoor", "UnlockLocal")
# The world's seed of the first task; no two splits can share one.
FIRST = {"demo": 0, "train": 1_000_000, "dev": 2_000_000, "test": 3_000_000}
# Worlds that another split has, too, of the default levels and of those below; seeds further on
# stand in for these, and for those of synthetic tasks with a held-out world.
TWINS = {("UnlockLocal", 1639), ("UnlockLocal", 2233)}
TWINS |= {("Doors1", seed) for seed in (1_000_162, 1_000_417, 2_000_177)}
INSTEAD = 500_000
FIRST_SYNTHETIC = 10_000_000
DOORS = {"Doors1": 1, "Doors2": 2, "Doors3": 3}
"""Levels of BabyAI's parts that are not among its own: doors to open, one of which is locked."""
SKILLS: Mapping[str, tuple[str, ...]] = {
    "recovers_from_errors": ("UnlockLocal", "UnlockPickup", "Doors1"),
    "completes_all_parts": ("OpenTwoDoors",),
}
"""The levels that need one skill alone, in TRACE's words: a locked door refuses until its key is
fetched; a mission has two parts. The last ones stand in for levels that need both."""
PLAIN = "OpenDoor"  # the level of contrast cases
OPENING = {"role": "system", "content": "You walk through rooms. Call one tool a turn."}
WALL, DOOR = 2, 4
TYPES = {WALL: "wall", DOOR: "door", 5: "key", 6: "ball", 7: "box"}
ACTIONS = {
    "left": "Turn left.",
    "right": "Turn right.",
    "forward": "Go one step.",
    "pickup": "Take what is ahead.",
    "drop": "Put down what you hold.",
    "toggle": "Open or close what is ahead.",
}
STATES = ("open", "closed", "locked")
VIEW = 7  # cells, in both directions; the agent stands in the middle of the nearest row


def known_levels() -> Mapping[str, str]:
    """The package's names of all levels that the expert can solve, by the level's name."""
    import gymnasium

    levels = {re.sub(r"^BabyAI-|-v\d+$", "", name): name for name in gymnasium.registry}
    return {
        level: name
        for level, name in levels.items()
        if name.startswith("BabyAI-") and "Carrying" not in level and level != "KeyInBox"
    }


def _level(name: str) -> Any:
    """A level of the package or of `DOORS`, before its first reset."""
    import gymnasium

    if name in DOORS:
        return _doors(DOORS[name])
    return gymnasium.make(known_levels()[name], disable_env_checker=True).unwrapped


def _doors(count: int) -> Any:
    """A mission of so many parts, "open the red door and open the grey door, then open the blue
    door", in a room with these doors and the key of one of them, which is locked."""
    from minigrid.core.constants import COLOR_NAMES
    from minigrid.envs.babyai.core import verifier
    from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel

    class Doors(RoomGridLevel):
        def gen_mission(self) -> None:
            colors = self._rand_subset(COLOR_NAMES, count)
            sides = self._rand_subset(range(4), count)
            locked = self._rand_elem(colors)
            for side, color in zip(sides, colors, strict=True):
                self.add_door(1, 1, side, color, locked=color == locked)
            self.add_object(1, 1, "key", locked)
            self.place_agent(1, 1)
            parts = [verifier.OpenInstr(verifier.ObjDesc("door", color)) for color in colors]
            first = verifier.AndInstr(*parts[:2]) if count > 2 else parts[0]
            self.instrs = verifier.BeforeInstr(first, parts[-1]) if count > 1 else first

    return Doors(room_size=6)


class BabyAIEnv(Game):
    """One mission. Ends at the level's own limit, too."""

    def reset(self, task: Task) -> Step:
        self._game = _level(task.data["level"])
        with contextlib.redirect_stdout(io.StringIO()):  # the package prints what it draws anew
            seen, _ = self._game.reset(seed=task.data["seed"])
        self._left, self._won, self._over = self._steps, False, False
        # Naming a part looks up its objects anew, which must not happen later on.
        self._named = [part.surface(self._game) for part, _ in _parts(self._game.instrs)]
        ask = {"role": "user", "content": f"{self._game.mission}. {view(seen['image'])}"}
        return Step((OPENING, ask), tools=tuple(make_tool(*action) for action in ACTIONS.items()))

    @property
    def over(self) -> bool:
        return self._over

    @property
    def ended_itself(self) -> bool:
        return self._won

    def move(self, name: str, arguments: dict[str, Any]) -> str:
        """What is seen afterwards. What has no effect is an error of the agent's."""
        if name not in ACTIONS or arguments:
            raise ValueError(f"allowed, without arguments: {', '.join(ACTIONS)}")
        if self._over or self._left < 0:
            raise ValueError("it is over")
        why, game = self._useless(name), self._game
        seen, reward, over, cut, _ = game.step(game.actions[name])
        self._won, self._over = bool(over and reward > 0), bool(over or cut)
        if why:
            raise ValueError(why)
        return "done" if self._won else view(seen["image"])

    def score(self) -> Score:
        """The share of the mission's parts that are done, in their order."""
        hits = [done or self._won for _, done in _parts(self._game.instrs)]
        milestones = tuple(map(met, self._named, hits))
        return Score(sum(hits) / len(hits), self._won, milestones=milestones)

    def solution(self) -> Sequence[Message]:
        """By the expert, which knows no more than it has seen from here on."""
        from minigrid.utils.baby_ai_bot import BabyAIBot

        game, calls = copy.deepcopy(self._game), []
        bot = BabyAIBot(game)
        if rest := [part for part, done in _parts(game.instrs) if not done]:
            bot.stack.clear()
            for part in reversed(rest):
                bot._process_instr(part)
        for _ in range(0 if self._over else self._left):
            try:
                action = bot.replan()
            except Exception:  # it gives up on what an agent made of the world
                break
            calls.append(make_call(action.name))
            _, reward, over, cut, _ = game.step(action)
            if over or cut:
                return calls if reward > 0 else ()
        return ()

    def _useless(self, name: str) -> str:
        """Why an action has no effect; "" if it has one."""
        game = self._game
        ahead, held = game.grid.get(*game.front_pos), game.carrying
        if name == "forward" and ahead and not ahead.can_overlap():
            return f"{ahead.type} in the way"
        if name == "pickup" and not (ahead and ahead.can_pickup() and not held):
            return "hands full" if held else "nothing to take"
        if name == "drop" and (ahead or not held):
            return "no room" if held else "nothing to drop"
        if name == "toggle" and not (ahead and ahead.type in ("door", "box")):
            return "nothing to open"
        if name == "toggle" and getattr(ahead, "is_locked", False):
            key = held is not None and (held.type, held.color) == ("key", ahead.color)
            return "" if key else f"{ahead.color} door is locked"
        return ""


def _parts(mission: Any) -> list[tuple[Any, bool]]:
    """The instructions of a mission in the order in which they are due, and which are done."""
    if not hasattr(mission, "instr_a"):
        return [(mission, False)]
    both = [(mission.instr_a, mission.a_done), (mission.instr_b, mission.b_done)]
    if type(mission).__name__ == "AfterInstr":
        both.reverse()
    return [(part, done == "success") for one, done in both for part, _ in _parts(one)]


def view(image: Any) -> str:
    """What an observation [7, 7, 3] (kind, colour, state) shows, as one line: the next wall ahead,
    to the left and to the right, then all other things, the nearest first, then what is held."""
    from minigrid.core.constants import IDX_TO_COLOR

    walls, things, held = [], [], ""
    for x, column in enumerate(image.tolist()):
        for y, (kind, color, state) in enumerate(column):
            ahead, aside = VIEW - 1 - y, x - VIEW // 2
            if kind not in TYPES or (kind == WALL and ahead and aside):
                continue
            where = f" {ahead} ahead" if ahead else ""
            where += f" {abs(aside)} {'left' if aside < 0 else 'right'}" if aside else ""
            what = f"{IDX_TO_COLOR[color]} {TYPES[kind]}"
            order = (ahead + abs(aside), abs(aside), aside)
            if kind == WALL:
                walls.append(((aside != 0, aside > 0), order, f"wall{where}"))
            elif where:
                what = f"{STATES[state]} {what}" if kind == DOOR else what
                things.append((order, what + where))
            else:
                held = f"holding {what}"
    nearest = {way: text for way, _, text in sorted(walls, reverse=True)}
    parts = [*(nearest[way] for way in sorted(nearest)), *(text for _, text in sorted(things))]
    return ", ".join([*parts, *([held] if held else [])]) or "nothing"


class BabyAISuite(GameSuite):
    """Missions of BabyAI's levels.

    `levels`: their names, such as GoToLocal (docs/babyai.md). `steps`: the most calls of an
    episode.

    Raises UserError."""

    name = "babyai"
    image = "babyai"
    sizes = {**GameSuite.sizes, "demo": 4000}  # noqa: RUF012
    skills = SKILLS
    typical = Typical(12, 30, 12, 0)

    def __init__(self, levels: tuple[str, ...] = DEFAULT, steps: int = 40) -> None:
        package_folder("babyai", "minigrid", VERSION, "pip install '.[babyai]'", "minigrid")
        all_levels = {*known_levels(), *DOORS}
        for level in levels:
            if level not in all_levels:
                raise unknown("level", level, sorted(all_levels), "env.levels")
        if not levels:
            raise UserError("`env.levels` names no level.")
        self.levels, self._steps = levels, steps
        self.variant = "default" if levels == DEFAULT else "+".join(levels)

    def about(self) -> dict[str, Any]:
        return {"data": f"minigrid {VERSION}", "steps": self._steps}

    def make(self) -> BabyAIEnv:
        return BabyAIEnv(self._steps)

    def capabilities(self) -> Sequence[str]:
        needed = {name for level in self.levels for name in _needs(level)}
        return [name for name in SKILLS if name in needed]

    def data_for(self, capability: str, seed: int, contrast: bool, rng: Random) -> dict[str, Any]:
        of = [level for level in self.levels if level in SKILLS[capability]]
        level = PLAIN if contrast else rng.choice(of or SKILLS[capability][-1:])
        data = _data(level, FIRST_SYNTHETIC + seed)
        while self.world(data) in self._held_out:
            data["seed"] += INSTEAD
        return data

    def world(self, data: Mapping[str, Any]) -> str:
        """What a task with this data begins with: of two seeds it may be the same."""
        game = self.begun(Task("", self.name, "", 0, data))._game
        return repr((game.mission, game.agent_pos, game.agent_dir, game.grid.encode().tobytes()))

    @functools.cached_property
    def _held_out(self) -> frozenset[str]:
        return frozenset(self.world(t.data) for split in ("dev", "test") for t in self.tasks(split))

    def data_of(self, split: str, number: int) -> dict[str, Any]:
        """Of the levels in turn."""
        level, seed = self.levels[number % len(self.levels)], FIRST[split] + number
        return _data(level, seed + INSTEAD if (level, seed) in TWINS else seed)


def _data(level: str, seed: int) -> dict[str, Any]:
    return {"level": level, "seed": seed, "requires": _needs(level)}


def _needs(level: str) -> list[str]:
    return [name for name, of in SKILLS.items() if level in of or DOORS.get(level, 1) > 1]
