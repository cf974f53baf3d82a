"""Each message of the table has a tag of its kind, is imported with the package, and has a receiver."""

from __future__ import annotations

from pathlib import Path
from types import UnionType
from typing import get_args

from shoal.node.base.home import Home
from shoal.node.base.options import NodeSettings
from shoal.node.daemon.daemon import Daemon
from shoal.protocol import messages
from shoal.protocol.base.wire import NODE_TAGS, RUN_TAGS, Message, table
from shoal.protocol.messages.averaging import AVERAGING_MESSAGES
from shoal.protocol.messages.bulk import Knock, MayIKnock
from shoal.protocol.messages.log import KeeperMessage
from shoal.protocol.messages.membership import MEMBERSHIP_MESSAGES
from shoal.protocol.messages.transfer import TRANSFER_MESSAGES
from shoal.protocol.net.system.identity import Identity
from shoal.protocol.replicas.copying import COPY_MESSAGES
from shoal.protocol.replicas.rounds import REPLICA_MESSAGES

OURS = {tag: kind for tag, kind in table().items() if kind.__module__.startswith("shoal.protocol.messages.")}
UNIONS: tuple[UnionType, ...] = (
    MEMBERSHIP_MESSAGES,
    TRANSFER_MESSAGES,
    AVERAGING_MESSAGES,
    KeeperMessage,
    REPLICA_MESSAGES,
    COPY_MESSAGES,
)
OF_CARRIERS: set[type[Message]] = {MayIKnock, Knock}  # protocol/net/peers answers them itself


def test_each_file_of_messages_is_imported_with_the_package() -> None:
    files = {path.stem for path in Path(messages.__file__).parent.glob("*.py")} - {"__init__"}
    assert files == set(messages.__all__)


def test_a_member_takes_each_message_of_a_run_and_no_other() -> None:
    taken = {kind for union in UNIONS for kind in get_args(union)}
    assert taken == {kind for tag, kind in OURS.items() if tag in RUN_TAGS}


def test_a_node_answers_each_call(tmp_path: Path) -> None:
    daemon = Daemon(NodeSettings(tmp_path), Home(tmp_path).create(), Identity.generate())
    of_nodes = {kind for tag, kind in OURS.items() if tag in NODE_TAGS}
    calls = {kind for kind in of_nodes if not (kind.__doc__ or "").startswith("Answer")} | OF_CARRIERS
    assert calls == {*daemon._calls, *OF_CARRIERS}
