"""A diary that lets two appointments clash: who writes in it has to look.

    python -m trace_bench.check env.factory=diary:Suite

Six of ten tasks ask for the first free of three hours; the others name the hour.
"""

import random
from typing import Literal

import trace_bench as tb

Day = Literal["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"]
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
# Names begin with letters of their split (or capability). Those that are demonstrated begin with
# any, and end in "o" where the others end in "a".
LETTERS = {"train": "BCDFG", "dev": "HJKL", "test": "MNPR", "checks_preconditions": "STVWZ"}
LETTERS["demo"] = "".join(LETTERS.values())
OPENING = {"role": "system", "content": "You keep a diary. Use the tools."}
OPEN = "Book {name} on {day} at {0}, {1} or {2}, the first that is free."
PLAIN = "Book {name} on {day} at {0} and remind me {early} minutes before."
TOLD = "{name} comes on {day} at {hour}."


class Diary(tb.Env):
    def reset(self, task: tb.Task) -> tb.Step:
        self.data, self.told = task.data, False
        self.booked: list[tuple[str, str, int]] = []
        self.reminders: list[tuple[str, int]] = []
        self.tools = tb.Toolbox(self)
        ask = {"role": "user", "content": task.data["ask"]}
        return tb.Step((OPENING, ask), tools=self.tools.schemas)

    def step(self, action: tb.Message) -> tb.Step:
        if calls := action.get("tool_calls"):
            return tb.Step(self.tools.answer(calls))
        self.told = f"{self.data['day']} at {self.data['hour']}." in action["content"] + "."
        return tb.Step(done=True, score=self.score(), stop=tb.StopReason.DONE)

    @tb.tool
    def is_free(self, day: Day, hour: int) -> bool:
        """Whether nothing is booked then."""
        mine = [entry[1:] for entry in self.booked]
        return (day, hour) not in [*mine, *((self.data["day"], at) for at in self.data["taken"])]

    @tb.tool
    def book(self, name: str, day: Day, hour: int) -> str:
        """Book an appointment."""
        self.booked.append((name, day, hour))
        return "Booked"

    @tb.tool
    def cancel(self, name: str) -> str:
        """Cancel an appointment."""
        kept = [entry for entry in self.booked if entry[0] != name]
        if kept == self.booked:
            raise ValueError("No such appointment")
        self.booked = kept
        return "Cancelled"

    @tb.tool
    def remind(self, name: str, minutes: int) -> str:
        """Set a reminder so many minutes before an appointment."""
        self.reminders.append((name, minutes))
        return "Set"

    def score(self) -> tb.Score:
        """What a task rewards: the entry and no other one, the reminder, the time told."""
        data, wanted = self.data, tuple(self.data[key] for key in ("name", "day", "hour"))
        booked = (wanted in self.booked) / max(1, len(self.booked))
        met = [tb.Milestone("booked", booked, booked == 1.0)]
        if data["contrast"]:
            reminded = self.reminders == [(data["name"], data["early"])]
            met += [tb.Milestone("reminder set", float(reminded), reminded)]
        met += [tb.Milestone("time told", float(self.told), self.told, tells=TOLD.format(**data))]
        mean = sum(m.similarity for m in met) / len(met)
        return tb.Score(mean, mean == 1.0, milestones=tuple(met))


class Suite(tb.Suite):
    name, variant, tag_keys = "diary", "own", ("needs",)

    def __init__(self, size: int = 256) -> None:
        self.sizes = {"demo": 2000, "train": size, "dev": 128, "test": 128}

    def splits(self) -> list[str]:
        return [*self.sizes]

    def tasks(self, split: str) -> list[tb.Task]:
        return [self.task(f"diary/{split}/{n}") for n in range(self.sizes[split])]

    def task(self, task_id: str) -> tb.Task:
        _, kind, number = task_id.split("/")
        rng, last = random.Random(task_id), "o" if kind == "demo" else "a"
        name = "".join(map(rng.choice, (LETTERS[kind], "aeiou", "lnrst", "aeiou", "lnrst", last)))
        plain, hours = rng.random() < 0.4, sorted(rng.sample(range(8, 19), 3))
        taken = [] if plain else hours[: rng.randrange(3)]
        data = {"name": name, "day": rng.choice(DAYS), "hour": hours[len(taken)], "taken": taken}
        data |= {"early": rng.randrange(5, 60, 5), "contrast": plain}
        data["ask"] = (PLAIN if plain else OPEN).format(*hours, **data)
        data["needs"] = [] if plain else self.capabilities()
        return tb.Task(task_id, self.name, kind, int(number), data)

    def make(self) -> Diary:
        return Diary()

    def reference(self, task: tb.Task) -> list[tb.Message]:
        data, when = task.data, {"day": task.data["day"], "hour": task.data["hour"]}
        looks = [] if data["contrast"] else [*data["taken"], data["hour"]]
        calls = [tb.make_call("is_free", day=data["day"], hour=hour) for hour in looks]
        calls += [tb.make_call("book", name=data["name"], **when)]
        if data["contrast"]:
            calls += [tb.make_call("remind", name=data["name"], minutes=data["early"])]
        return [*calls, {"role": "assistant", "content": TOLD.format(**data)}]

    def capabilities(self) -> list[str]:
        return ["checks_preconditions"]

    def synthetic(self, capability: str, seed: int) -> tb.Task:
        return self.task(f"diary/{capability}/{seed}")
