"""What the node of a home was started with besides config.toml: the values of flags and variables, for a restart.

The file is a help: what cannot be read or written of it is missing at the next restart, and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from shoal.node.base.atomic import replace_file
from shoal.node.base.home import Home
from shoal.node.base.settings import BY_KEY, ENVIRONMENT, FLAG, Choice


def keep(home: Home, chosen: Mapping[str, Choice]) -> None:
    """Keep the values, of all that were chosen, that flags or variables gave."""
    _write(
        home,
        {key: BY_KEY[key].write(each.value) for key, each in chosen.items() if each.origin in (FLAG, ENVIRONMENT)},
    )


def recall(home: Home) -> dict[str, Any]:
    """The kept values by key, as config.toml would have them."""
    try:
        found = json.loads(home.started.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return {key: item for key, item in found.items() if key in BY_KEY} if isinstance(found, dict) else {}


def forget(home: Home, keys: Collection[str]) -> None:
    """Keep no value of these keys, which config.toml has instead."""
    found = recall(home)
    if any(key in found for key in keys):
        _write(home, {key: item for key, item in found.items() if key not in keys})


def _write(home: Home, values: Mapping[str, Any]) -> None:
    with suppress(OSError):
        replace_file(home.started, [json.dumps(values).encode()])
