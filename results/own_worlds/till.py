"""A till: goods are sold at their price, which has to be looked up, by card or for cash.

    python -m trace_bench.check env.factory=till:Suite

In seven of ten tasks the price is to be found, of one thing or of two, and half of
the things have two sizes; in the others all amounts are named.
"""

import random

import trace_bench as tb

PRICE, SIZE = "takes_exact_arguments_from_results", "disambiguates"
# Goods begin with letters of their split (or capability). Those that are demonstrated begin with
# any, and end in "o" where the others end in "a".
LETTERS = {"train": "bcdf", "dev": "ghj", "test": "klmn", PRICE: "prs", SIZE: "tvwz"}
LETTERS["demo"] = "".join(LETTERS.values())
OPENING = {"role": "system", "content": "You stand at a till. Use the tools."}
SIZES = ("small", "large")
ASKS = {
    "charge": "Charge {0} to card {card}.",
    "cash": "Sell {0} for cash.",
    "refund": "Refund {1} to card {card}, then charge {2}.",
}


class Till(tb.Env):
    def reset(self, task: tb.Task) -> tb.Step:
        self.data, self.told = task.data, False
        self.paid: list[list[object]] = []  # the way, the amount, the card
        self.tools = tb.Toolbox(self)
        ask = {"role": "user", "content": task.data["ask"]}
        return tb.Step((OPENING, ask), tools=self.tools.schemas)

    def step(self, action: tb.Message) -> tb.Step:
        if calls := action.get("tool_calls"):
            return tb.Step(self.tools.answer(calls))
        self.told = str(self.data["receipt"]) in action["content"]
        return tb.Step(done=True, score=self.score(), stop=tb.StopReason.DONE)

    @tb.tool
    def find(self, item: str) -> list[dict[str, object]]:
        """Look up the sizes and prices of an item."""
        if item not in self.data["goods"]:
            raise ValueError("No such item")
        return self.data["goods"][item]

    @tb.tool
    def charge(self, amount: float, card: int) -> dict[str, int]:
        """Charge an amount to a card."""
        return self.pay("charge", amount, card)

    @tb.tool
    def cash(self, amount: float) -> dict[str, int]:
        """Take an amount in cash."""
        return self.pay("cash", amount, None)

    @tb.tool
    def refund(self, amount: float, card: int) -> dict[str, int]:
        """Give an amount back to a card."""
        return self.pay("refund", amount, card)

    def pay(self, way: str, amount: float, card: int | None) -> dict[str, int]:
        self.paid.append([way, amount, card])
        left = [pay for pay in self.data["pays"] if pay not in self.paid]
        return {"receipt": self.data["receipt"] - len(left)}

    def score(self) -> tb.Score:
        """What a task rewards: its payments and no other one, the last one's receipt told."""
        pays, tells, met = self.data["pays"], f"Receipt {self.data['receipt']}.", []
        share = min(1.0, len(pays) / max(1, len(self.paid)))
        for n, pay in enumerate(pays):
            paid = share * (pay in self.paid)
            met += [tb.Milestone(f"payment {n + 1}", paid, paid == 1.0)]
        met += [tb.Milestone("receipt told", float(self.told), self.told, tells=tells)]
        mean = sum(m.similarity for m in met) / len(met)
        return tb.Score(mean, mean == 1.0, milestones=tuple(met))


class Suite(tb.Suite):
    name, variant, tag_keys = "till", "own", ("needs",)

    def __init__(self, size: int = 256) -> None:
        self.sizes = {"demo": 2000, "train": size, "dev": 128, "test": 128}

    def splits(self) -> list[str]:
        return [*self.sizes]

    def tasks(self, split: str) -> list[tb.Task]:
        return [self.task(f"till/{split}/{n}") for n in range(self.sizes[split])]

    def task(self, task_id: str) -> tb.Task:
        _, kind, number = task_id.split("/")
        rng, last = random.Random(task_id), "o" if kind == "demo" else "a"
        card, plain, pays, goods, names = rng.randrange(1000, 10000), rng.random() < 0.3, [], {}, []
        way = "refund" if plain else rng.choice(("charge", "cash"))
        for letter in rng.sample(LETTERS[kind], 2 if plain or rng.random() < 0.4 else 1):
            both = not plain and (kind == SIZE or rng.random() < 0.5)
            sizes = rng.sample(SIZES, 1 + both)
            rows = [{"size": size, "price": rng.randrange(101, 9999) / 100} for size in sizes]
            item = "".join(map(rng.choice, (letter, "aeiou", "lnrst", "aeiou", "lnrst", last)))
            goods[item], row = rows, rng.choice(rows)
            names += [f"a {row['size']} {item}" if len(rows) > 1 else f"a {item}"]
            pays += [[way, row["price"], None if way == "cash" else card]]
        if plain:
            pays[1][0] = "charge"
            names = [f"{price} for {name}" for name, (_, price, _) in zip(names, pays, strict=True)]
        data = {"goods": goods, "pays": pays, "contrast": plain}
        data["ask"] = ASKS[way].format(" and ".join(names), *names, card=card)
        needs = [] if plain else [PRICE, *[SIZE] * any(len(rows) > 1 for rows in goods.values())]
        data |= {"receipt": rng.randrange(1000, 10000), "needs": needs}
        return tb.Task(task_id, self.name, kind, int(number), data)

    def make(self) -> Till:
        return Till()

    def reference(self, task: tb.Task) -> list[tb.Message]:
        calls = []
        for item, (way, amount, card) in zip(task.data["goods"], task.data["pays"], strict=True):
            calls += [] if task.data["contrast"] else [tb.make_call("find", item=item)]
            calls += [tb.make_call(way, amount=amount, **({"card": card} if card else {}))]
        told = f"Receipt {task.data['receipt']}."
        return [*calls, {"role": "assistant", "content": told}]

    def capabilities(self) -> list[str]:
        return [PRICE, SIZE]

    def synthetic(self, capability: str, seed: int) -> tb.Task:
        return self.task(f"till/{capability}/{seed}")
