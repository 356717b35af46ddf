"""One episode's checklists as they are worked off, step by step.

Once satisfied, an item stays satisfied. Every step is judged when it is made, so an episode that is
cut off in the middle of a turn has been judged on all that happened in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from trace_bench.checklists.items import Checklist, Item
from trace_bench.checklists.judges import Judge, Scene, without_calls
from trace_bench.core.types import Check


class Progress:
    """`checklists`: the variants of one dialogue, each with a verdict of its own."""

    def __init__(self, checklists: Sequence[Checklist], judge: Judge) -> None:
        self._variants, self._judge = list(checklists), judge
        self._met: dict[tuple[int, int, str], int] = {}  # (variant, turn, item) -> step

    def judge(self, turn: int, step: int, scene: Scene) -> None:
        """Judges the episode's `step`-th step (from 0), made in the user's `turn`. Raises
        EpisodeError if there is no verdict."""
        for variant, checklist in enumerate(self._variants):
            if turn >= len(checklist.turns):
                continue
            open_items = [
                item for item in checklist.turns[turn] if (variant, turn, item.id) not in self._met
            ]
            asked = without_calls(open_items, scene)
            for name in self._judge.satisfied(asked, scene) if asked else ():
                self._met[variant, turn, name] = step

    def goes_on(self, turn: int) -> bool:
        """Whether the user goes on after this turn: in more than half of the variants all required
        items are satisfied."""
        agreed = sum(
            all(
                (variant, turn, item.id) in self._met
                for item in checklist.turns[turn]
                if item.required
            )
            for variant, checklist in enumerate(self._variants)
            if turn < len(checklist.turns)
        )
        return 2 * agreed > len(self._variants)

    def checks(self) -> tuple[Check, ...]:
        """All items as the score carries them; of several variants each has its share of the
        weight."""
        return tuple(
            self._check(variant, turn, item)
            for variant, checklist in enumerate(self._variants)
            for turn, items in enumerate(checklist.turns)
            for item in items
        )

    def _check(self, variant: int, turn: int, item: Item) -> Check:
        return Check(
            turn,
            self._name(variant, item.id),
            item.weight / len(self._variants),
            tuple(self._name(variant, name) for name in item.after),
            self._met.get((variant, turn, item.id)),
        )

    def _name(self, variant: int, item: str) -> str:
        return item if len(self._variants) == 1 else f"{variant}:{item}"
