"""What can be chosen by a name, beyond the files in conf/."""

from __future__ import annotations

import functools

from trace_bench.core.checked import choices
from trace_bench.core.factory import load
from trace_bench.settings.registry import OWN


@functools.cache
def nested(group: str) -> frozenset[str]:
    """The settings of the package's own parts in a group that choose by a name what has settings of
    its own: method.route=gate method.route.share=0.2."""
    known = [load(text, group).known() for text in OWN.get(group, {}).values()]
    return frozenset(n for settings in known for n, p in settings.items() if choices(p.hint))
