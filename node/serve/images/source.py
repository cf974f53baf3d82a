"""A folder of experts on pictures (`shoal experts fetch`) as something to serve, looked at again when told so."""

from __future__ import annotations

import os
from pathlib import Path

from shoal.node.serve.ensemble.mix import Mix, parse_mix
from shoal.node.serve.ensemble.panel import changes
from shoal.node.serve.ensemble.table import ENSEMBLE, read_table
from shoal.node.serve.images.panel import load_panel
from shoal.node.serve.served import Choices
from shoal.node.serve.threads import use_threads
from shoal.node.spec.flow import PictureSpec
from shoal.node.trainer.device import choose_device
from shoal.protocol.errors import LocalError


def is_of_pictures(folder: Path) -> bool:
    """Whether a folder has experts on pictures; LocalError if its table cannot be read."""
    if not os.path.exists(folder / ENSEMBLE):  # unlike Path's, False for a name that no file could have
        return False
    return isinstance(read_table(folder).experts[0].model, PictureSpec)


class Gallery:
    """What paints, and what it is. The size and the classes of pictures are those of the first look."""

    def __init__(self, folder: Path, choices: Choices, name: str = "") -> None:
        """LocalError if the experts cannot paint together, or something was chosen that means nothing for them.

        `name` is the model's in the API; empty: the folder's table's.
        """
        self._mix = _checked_mix(folder, choices)
        use_threads(choices.threads)
        table = read_table(folder)
        self._folder, self._device = folder, choose_device(choices.device)
        self.panel = load_panel(folder, table, self._mix, self._device)
        self.name, self.mix = name or table.name, self._mix.name
        self.created = int((folder / ENSEMBLE).stat().st_mtime)  # seconds since 1970
        self.sentence = f"experts on pictures of {table.name} in {folder}, mixed by {self.mix}"

    def look_again(self) -> str:
        """At the folder, from a thread: which experts there are now. LocalError leaves those that there were."""
        before = self.panel
        after = load_panel(self._folder, read_table(self._folder), self._mix, self._device, before.models)
        if (after.spec.side, after.spec.classes) != (before.spec.side, before.spec.classes):
            raise LocalError(
                f"the experts in {self._folder} are on pictures of another size, or of other classes, than before: "
                f"start the server anew"
            )
        self.panel = after
        return changes(before.names, after.names)


def _checked_mix(folder: Path, choices: Choices) -> Mix:
    choices.check_no_peers(f"the folder {folder}")
    if choices.prior or choices.base or choices.tokenizer:
        raise LocalError("--prior, --base and --tokenizer are for experts on text, and these paint")
    mix = parse_mix(choices.mix)
    if mix.is_merge:
        raise LocalError(f"--mix {mix.name} is for experts on text: these are mixed by full, top-1, top-2 and so on")
    return mix
