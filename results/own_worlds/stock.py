"""A shop's stock: goods are put aside if they are on the shelf, and ordered if they are not.

    python -m trace_bench.check env.factory=stock:Suite

In six of ten tasks the wish leaves open which, and the shop wants its shelf looked at before
anything is done; in the others the goods are to be ordered, whatever is there.
"""

import random

import trace_bench as tb

# Articles begin with letters of their split (or capability). Those that are demonstrated begin
# with any, and have an even number where the others have an odd one.
LETTERS = {"train": "ABCDEFG", "dev": "HJKLM", "test": "NPQRST", "checks_preconditions": "UVWXYZ"}
LETTERS["demo"] = "".join(LETTERS.values())
OPENING = {"role": "system", "content": "You keep a shop's stock. Use the tools."}
OPEN = ("Reserve {} of {} if there, or order them.", "Get {} of {} from the shelf or by an order.")
PLAIN = ("Order {} of {}.", "A customer wants {} of {} ordered.")


class Shop(tb.Env):
    def reset(self, task: tb.Task) -> tb.Step:
        self.data, self.looked, self.told = task.data, False, False
        self.deeds: list[tuple[str, int]] = []  # what was reserved or ordered, and how many
        self.tools = tb.Toolbox(self)
        ask = {"role": "user", "content": task.data["ask"]}
        return tb.Step((OPENING, ask), tools=self.tools.schemas)

    def step(self, action: tb.Message) -> tb.Step:
        if calls := action.get("tool_calls"):
            return tb.Step(self.tools.answer(calls))
        self.told = str(self.data["number"]) in action["content"]
        return tb.Step(done=True, score=self.score(), stop=tb.StopReason.DONE)

    @tb.tool
    def on_shelf(self, item: str, amount: int) -> bool:
        """Whether so many are on the shelf."""
        self.looked = self.looked or (item == self.data["item"] and not self.deeds)
        return item == self.data["item"] and amount <= self.data["there"]

    @tb.tool
    def supplier(self, item: str) -> str:
        """Who supplies an item."""
        if item != self.data["item"]:
            raise ValueError("No such item")
        return self.data["supplier"]

    @tb.tool
    def reserve(self, item: str, amount: int) -> dict[str, int]:
        """Put goods aside for a customer, who waits for what is not there."""
        return self.note("reserve", item, amount)

    @tb.tool
    def order(self, item: str, amount: int, supplier: str) -> dict[str, int]:
        """Order goods from their supplier."""
        if supplier != self.data["supplier"]:
            raise ValueError("They do not supply it")
        return self.note("order", item, amount)

    def note(self, deed: str, item: str, amount: int) -> dict[str, int]:
        if item != self.data["item"]:
            raise ValueError("No such item")
        self.deeds.append((deed, amount))
        right = (deed, amount) == (self.data["deed"], self.data["amount"])
        return {"number": self.data["number"] + (0 if right else len(self.deeds))}

    def score(self) -> tb.Score:
        """What a task rewards: a look before the deed, the deed and no other, its number told."""
        tells, wanted = f"Number {self.data['number']}.", (self.data["deed"], self.data["amount"])
        done = (wanted in self.deeds) / max(1, len(self.deeds))
        met = [tb.Milestone("done", done, done == 1.0)]
        met += [tb.Milestone("number told", float(self.told), self.told, tells=tells)]
        if self.data["needs"]:
            met += [tb.Milestone("shelf looked at", float(self.looked), self.looked)]
        mean = sum(m.similarity for m in met) / len(met)
        return tb.Score(mean, mean == 1.0, milestones=tuple(met))


class Suite(tb.Suite):
    name, variant, tag_keys = "stock", "own", ("needs",)

    def __init__(self, size: int = 256) -> None:
        self.sizes = {"demo": 2000, "train": size, "dev": 128, "test": 128}

    def splits(self) -> list[str]:
        return [*self.sizes]

    def tasks(self, split: str) -> list[tb.Task]:
        return [self.task(f"stock/{split}/{n}") for n in range(self.sizes[split])]

    def task(self, task_id: str) -> tb.Task:
        _, kind, number = task_id.split("/")
        rng = random.Random(task_id)
        article = f"{rng.choice(LETTERS[kind])}{rng.randrange(500, 5000) * 2 + (kind != 'demo')}"
        plain, amount = rng.random() < 0.4, rng.randint(2, 9)
        there = amount + rng.randrange(6) if rng.random() < 0.5 else rng.randrange(amount)
        data = {"item": article, "amount": amount, "there": there, "contrast": plain}
        data["ask"] = rng.choice(PLAIN if plain else OPEN).format(amount, article)
        data["deed"] = "order" if plain or there < amount else "reserve"
        data |= {"supplier": f"S{rng.randrange(10, 100)}", "number": rng.randrange(1000, 10000)}
        data["needs"] = [] if plain else self.capabilities()
        return tb.Task(task_id, self.name, kind, int(number), data)

    def make(self) -> Shop:
        return Shop()

    def reference(self, task: tb.Task) -> list[tb.Message]:
        data, goods = task.data, {key: task.data[key] for key in ("item", "amount")}
        look = [tb.make_call("on_shelf", **goods)] if data["needs"] else []
        act = [tb.make_call("reserve", **goods)]
        if data["deed"] == "order":
            act = [tb.make_call("supplier", item=data["item"])]
            act += [tb.make_call("order", **goods, supplier=data["supplier"])]
        return [*look, *act, {"role": "assistant", "content": f"Number {data['number']}."}]

    def capabilities(self) -> list[str]:
        return ["checks_preconditions"]

    def synthetic(self, capability: str, seed: int) -> tb.Task:
        return self.task(f"stock/{capability}/{seed}")
