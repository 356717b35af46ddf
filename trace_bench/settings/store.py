"""The choices that need no file, in Hydra's store of configs."""

from __future__ import annotations

from hydra.core.config_store import ConfigNode, ConfigStore
from omegaconf import OmegaConf

from trace_bench.settings.choices import GROUPS, defaults, files, of_the_run, offered

PROVIDER = "trace_bench"


class Choice(ConfigNode):
    """A choice of a group. Hydra copies a node of the store when it is chosen, and only then is the
    part imported that has the settings."""

    def __init__(self, group: str, choice: str, named: bool) -> None:
        super().__init__(f"{choice}.yaml", OmegaConf.create(), group, group, PROVIDER)
        self.key, self.named = (group, choice), named

    def __copy__(self) -> ConfigNode:
        node = OmegaConf.create(defaults(*self.key, named=self.named))
        return ConfigNode(self.name, node, self.group, self.package, self.provider)


def fill() -> None:
    """Offers every choice that has no file, and all of them as `part/NAME`, on which the file of
    that name rests, which says its own name. Hydra has one store per process; filling it twice
    changes nothing."""
    store = ConfigStore.instance()
    store.store(name="settings", node=of_the_run(), provider=PROVIDER)
    for group in GROUPS:
        taken = files(group)
        choices = offered(group)
        store.repo[group] = {
            **{f"{c}.yaml": Choice(group, c, named=True) for c in choices if c not in taken},
            "part": {f"{c}.yaml": Choice(group, c, named=False) for c in choices},
        }
