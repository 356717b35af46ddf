"""An environment of your own: a broker's desk whose line to the exchange is sometimes down.

    python -m trace_bench.check env.factory=desk:Suite
    python -m trace_bench method=grpo env=custom env.factory=desk:Suite budget=320

A caller asks for a share price. In half of the tasks the line is down and the first look-up fails;
an agent that switches the line on and looks again can still answer.
"""

import random

import trace_bench as tb

# Tickers begin with letters of their split (or capability), so that no two splits share a task;
# others are demonstrated, at other prices.
LETTERS = {"train": "ABCDEFG", "dev": "HIJKLM", "test": "NOPQRST", "recovers_from_errors": "UVWXYZ"}
LETTERS["demo"] = "".join(LETTERS.values())
ASKS = ("Check the {} share price.", "Look up the {} stock price.")
OPENING = {"role": "system", "content": "You work at a desk. Use the tools."}


class Desk(tb.Env):
    """Plays one episode after the other. The agent's first message without a call ends it."""

    def reset(self, task: tb.Task) -> tb.Step:
        self.data, self.line, self.told = task.data, not task.data["down"], False
        self.tools = tb.Toolbox(self)
        ask = {"role": "user", "content": task.data["ask"]}
        return tb.Step((OPENING, ask), tools=self.tools.schemas)

    def step(self, action: tb.Message) -> tb.Step:
        if calls := action.get("tool_calls"):
            return tb.Step(self.tools.answer(calls))
        self.told = str(self.data["price"]) in action["content"]
        return tb.Step(done=True, score=self.score(), stop=tb.StopReason.DONE)

    @tb.tool
    def search_stock(self, query: str) -> dict[str, object]:
        """Look up a share by its ticker."""
        if query != self.data["ticker"]:
            raise ValueError("Nothing found")
        if not self.line:
            raise ConnectionError("Wifi is off")
        return {"symbol": query, "price": self.data["price"]}

    @tb.tool
    def set_wifi_status(self, on: bool) -> None:
        """Switch the line on or off."""
        self.line = on

    def score(self) -> tb.Score:
        """What a task rewards: the line is up, and the caller has heard the price."""
        price = f"The price is {self.data['price']} USD."
        met = [tb.Milestone("price told", float(self.told), self.told, tells=price)]
        met += [tb.Milestone("line up", float(self.line), self.line)] if self.data["down"] else []
        mean = sum(m.similarity for m in met) / len(met)
        return tb.Score(mean, mean == 1.0, milestones=tuple(met))


class Suite(tb.Suite):
    name, variant = "desk", "own"
    tag_keys = ("needs",)  # where a task names the capabilities that it takes

    def __init__(self, size: int = 48) -> None:
        self.size = size

    def splits(self) -> list[str]:
        return ["demo", "train", "dev", "test"]

    def tasks(self, split: str) -> list[tb.Task]:
        count = 2000 if split == "demo" else self.size
        return [self.task(f"desk/{split}/{n}") for n in range(count)]

    def task(self, task_id: str) -> tb.Task:
        """Everything follows from the id."""
        _, kind, number = task_id.split("/")
        rng = random.Random(task_id)
        ticker = rng.choice(LETTERS[kind]) + "".join(rng.choices("ABCDEFGHKLMNPRSTW", k=3))
        ask, price = rng.choice(ASKS).format(ticker), rng.randrange(1000, 30000) / 100
        data = {"ask": ask, "ticker": ticker, "price": price, "down": rng.random() < 0.5}
        data["needs"] = self.capabilities() if data["down"] else []
        return tb.Task(task_id, self.name, kind, int(number), data | {"contrast": not data["down"]})

    def make(self) -> Desk:
        return Desk()

    def reference(self, task: tb.Task) -> list[tb.Message]:  # the tables' ceiling
        look = tb.make_call("search_stock", query=task.data["ticker"])
        told = {"role": "assistant", "content": f"The price is {task.data['price']} USD."}
        again = [tb.make_call("set_wifi_status", on=True), look] if task.data["down"] else []
        return [look, *again, told]

    def capabilities(self) -> list[str]:  # training tasks for TRACE
        return ["recovers_from_errors"]

    def synthetic(self, capability: str, seed: int) -> tb.Task:
        return self.task(f"desk/{capability}/{seed}")
