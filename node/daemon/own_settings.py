"""The settings of the running node: told, and changed in config.toml and, where that is possible, at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shoal.node.api.answers import ChangedSettings, Settings
from shoal.node.base import config_file, started
from shoal.node.base.home import Home
from shoal.node.base.options import NodeSettings
from shoal.node.base.pools import NOTES
from shoal.node.base.settings import find_setting, node_settings, values_of, written

AT_ONCE = ("max-up", "max-down", "max-per-day", "schedule", "only-when-idle", "only-on-mains", "yield-gpu")


class OwnSettings:
    """The settings that the node has now. `apply` gets them when some have changed that hold at once."""

    def __init__(self, settings: NodeSettings, home: Home, apply: Callable[[NodeSettings], None]) -> None:
        self._settings, self._home, self._apply = settings, home, apply

    def as_json(self) -> Settings:
        """All of them, as config.toml would have them."""
        return {"settings": written(self._settings)}

    async def change(self, settings: Mapping[str, Any]) -> ChangedSettings:
        """Change the lines of these keys, None for no line; UsageError, and nothing is changed, if one is wrong."""
        usual = values_of(NodeSettings(self._home.root))
        values = {
            (setting := find_setting(key)).key: usual[key] if item is None else setting.read(key, item, self._home.root)
            for key, item in settings.items()
        }
        node_settings(self._home.root, values)  # they must also fit together

        def edit(text: str) -> str:
            for key, item in settings.items():
                text = config_file.without(text, key) if item is None else config_file.with_value(text, key, item)
            return text

        await NOTES.run(config_file.change, self._home, edit)
        await NOTES.run(started.forget, self._home, list(values))
        now = values_of(self._settings)
        self._settings = node_settings(
            self._home.root, {**now, **{key: value for key, value in values.items() if key in AT_ONCE}}
        )
        self._apply(self._settings)
        later = [key for key, value in values.items() if key not in AT_ONCE and value != now[key]]
        return {**self.as_json(), "applied": [key for key in values if key in AT_ONCE], "at_next_start": later}
