"""The exit codes of `shoal`. Scripts and health checks rely on them, so a number never changes its meaning."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """How a command ended."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NO_DAEMON = 3
    ALONE = 4
    VERSION = 5
    SPLIT = 6
    FAILED_RUN = 7
    HIDDEN = 8
    UNREACHABLE = 9
    NETWORK_TROUBLE = 10
    UNKNOWN = 11
    NOT_ANSWERING = 12
    INTERRUPTED = 130


HELP = {
    Exit.OK: "Done.",
    Exit.FAILED: "It did not work; the message says whose fault it was and what to do.",
    Exit.USAGE: "The command line, a variable of the environment or config.toml is wrong.",
    Exit.NO_DAEMON: "No node runs in this SHOAL_HOME: `shoal node start`.",
    Exit.ALONE: "The node is SOLO and should not be: `shoal status` says what to do.",
    Exit.VERSION: "The node runs another version than this command: restart it.",
    Exit.SPLIT: "The swarm is SPLIT: too few of its members are reachable.",
    Exit.FAILED_RUN: "A run or its worker has failed, or it is not in one where it should be: see `shoal status`.",
    Exit.HIDDEN: "Others can meet this node neither directly nor by a relay: `shoal netcheck` says what to do.",
    Exit.UNREACHABLE: "The peer cannot be reached: `shoal doctor` says whose side that is on.",
    Exit.NETWORK_TROUBLE: "Something between this node and the others is broken: `shoal netcheck` says what.",
    Exit.UNKNOWN: "What was asked is not known yet: ask again later.",
    Exit.NOT_ANSWERING: "The node's process is there but does not answer: `shoal node stop --force` ends it.",
    Exit.INTERRUPTED: "Interrupted by Ctrl-C.",
}
