"""A file tree: files are named in part, and folders may not be there yet.

    python -m trace_bench.check env.factory=files:Suite

Four of ten tasks name a file by a word alone, so that its folder has to be listed; in three of ten,
and in half of those, the folder to move it to has to be made after the first try fails.
"""

import random
from collections.abc import Collection

import trace_bench as tb

LISTS, MENDS = "takes_exact_arguments_from_results", "recovers_from_errors"
# Words begin with letters of their split (or capability). Those that are demonstrated begin with
# any, and end in "o" where the others end in "a".
LETTERS = {"train": "bcdf", "dev": "ghj", "test": "klmn", LISTS: "prs", MENDS: "tvwz"}
LETTERS["demo"] = "".join(LETTERS.values())
ENDS = ("txt", "csv", "pdf")
OPENING = {"role": "system", "content": "You tidy files. Use the tools."}
ASKS = {
    LISTS: "Move the {word} file from inbox to {folder}.",
    MENDS: "Move {file} to {folder}.",
    "": "Delete {other} and move {file} to {folder}.",
}


class Tree(tb.Env):
    def reset(self, task: tb.Task) -> tb.Step:
        self.data, self.told = task.data, False
        self.files = dict.fromkeys(task.data["files"], "inbox")  # file: its folder
        self.folders = {"inbox"} | ({task.data["folder"]} if task.data["there"] else set())
        self.tools = tb.Toolbox(self)
        ask = {"role": "user", "content": task.data["ask"]}
        return tb.Step((OPENING, ask), tools=self.tools.schemas)

    def step(self, action: tb.Message) -> tb.Step:
        if calls := action.get("tool_calls"):
            return tb.Step(self.tools.answer(calls))
        self.told = str(self.data["bytes"]) in action["content"]
        return tb.Step(done=True, score=self.score(), stop=tb.StopReason.DONE)

    @tb.tool
    def ls(self, folder: str) -> list[str]:
        """List the files of a folder."""
        self.look(folder, self.folders)
        return sorted(file for file, place in self.files.items() if place == folder)

    @tb.tool
    def mkdir(self, folder: str) -> str:
        """Make a folder."""
        self.folders.add(folder)
        return "Made"

    @tb.tool
    def mv(self, file: str, folder: str) -> dict[str, int]:
        """Move a file to a folder."""
        self.look(file, self.files)
        self.look(folder, self.folders)
        self.files[file] = folder
        return {"bytes": self.data["bytes"] + self.data["files"].index(file)}

    @tb.tool
    def rm(self, file: str) -> str:
        """Delete a file."""
        self.look(file, self.files)
        del self.files[file]
        return "Deleted"

    def look(self, name: str, there: Collection[str]) -> None:
        if name not in there:
            raise FileNotFoundError(f"No {name} here")

    def score(self) -> tb.Score:
        """What a task rewards: one file moved, the other deleted where asked, the bytes told."""
        file, other, third = self.data["files"]
        left = [third] if self.data["contrast"] else [other, third]
        moved = (self.files.get(file) == self.data["folder"]) / 2
        moved *= 1 + all(self.files.get(name) == "inbox" for name in left)
        met = [tb.Milestone("moved", moved, moved == 1.0)]
        if self.data["contrast"]:
            gone = other not in self.files
            met += [tb.Milestone("deleted", float(gone), gone)]
        tells = f"Moved {self.data['bytes']} bytes."
        met += [tb.Milestone("bytes told", float(self.told), self.told, tells=tells)]
        mean = sum(m.similarity for m in met) / len(met)
        return tb.Score(mean, mean == 1.0, milestones=tuple(met))


class Suite(tb.Suite):
    name, variant, tag_keys = "files", "own", ("needs",)

    def __init__(self, size: int = 256) -> None:
        self.sizes = {"demo": 2000, "train": size, "dev": 128, "test": 128}

    def splits(self) -> list[str]:
        return [*self.sizes]

    def tasks(self, split: str) -> list[tb.Task]:
        return [self.task(f"files/{split}/{n}") for n in range(self.sizes[split])]

    def task(self, task_id: str) -> tb.Task:
        _, kind, number = task_id.split("/")
        rng, last = random.Random(task_id), "o" if kind == "demo" else "a"
        *words, folder = (
            "".join(map(rng.choice, (letter, "aeiou", "lnrst", "aeiou", "lnrst", last)))
            for letter in rng.sample(LETTERS[kind], 3) + rng.choices(LETTERS[kind])
        )
        files = [f"{word}{rng.randrange(10, 100)}.{rng.choice(ENDS)}" for word in words]
        need = rng.choices([LISTS, MENDS, ""], [4 * (kind != MENDS), 3 * (kind != LISTS), 3])[0]
        there = not need or (need == LISTS and rng.random() < 0.5)
        data = {"files": files, "folder": folder, "there": there, "contrast": not need}
        names = {"word": words[0], "file": files[0], "other": files[1], "folder": folder}
        data |= {"ask": ASKS[need].format(**names), "bytes": rng.randrange(1000, 10000)}
        data["needs"] = [LISTS] * (need == LISTS) + [MENDS] * (not there)
        return tb.Task(task_id, self.name, kind, int(number), data)

    def make(self) -> Tree:
        return Tree()

    def reference(self, task: tb.Task) -> list[tb.Message]:
        data, (file, other, _) = task.data, task.data["files"]
        move = tb.make_call("mv", file=file, folder=data["folder"])
        first = [tb.make_call("ls", folder="inbox")] if LISTS in data["needs"] else []
        first += [tb.make_call("rm", file=other)] if data["contrast"] else []
        again = [] if data["there"] else [tb.make_call("mkdir", folder=data["folder"]), move]
        told = {"role": "assistant", "content": f"Moved {data['bytes']} bytes."}
        return [*first, move, *again, told]

    def capabilities(self) -> list[str]:
        return [LISTS, MENDS]

    def synthetic(self, capability: str, seed: int) -> tb.Task:
        return self.task(f"files/{capability}/{seed}")
