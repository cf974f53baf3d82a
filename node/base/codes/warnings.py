"""The codes of warnings and events in the log of a node, a server or a script."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.node.base.codes.row import Fault, Row

YOU, MACHINE, PEER, NETWORK, SHOAL, NOBODY = Fault

WARNINGS: Mapping[str, Row] = {
    # -- where the node stands --
    "state-solo": Row(NETWORK, "The node is connected with nobody.", "Do what the line says: it has the run's link."),
    "state-split": Row(NETWORK, "Too few of a run's voters are reachable.", "Wait; see the members that it names."),
    "state-together": Row(NOBODY, "The node is connected with others."),
    "same-key": Row(
        YOU, "Another node has a copy of this node's key.", "Stop one, and delete its identity.key: it gets a new one."
    ),
    "clock-off": Row(MACHINE, "The clock differs from the others'.", "Set it, best by NTP."),
    "fault-armed": Row(YOU, "SHOAL_FAULT makes the node fail on purpose, for tests.", "Unset it."),
    "home-not-seen": Row(MACHINE, "The node's folder does not answer.", "Check its disk; it is looked at again."),
    # -- shortages, which pass by themselves --
    "record-waits": Row(
        MACHINE, "A vote cannot be written; the node is silent in the run until it can.", "Make room on the disk."
    ),
    "record-not-shortened": Row(MACHINE, "A run's log stays as long as it is; the run goes on.", "Make room there."),
    "record-not-read": Row(MACHINE, "A result cannot be read for others, who ask elsewhere.", "Check the disk."),
    "run-waits": Row(NETWORK, "A run waits for a peer that has its data, or for what is named."),
    "out-of-files": Row(MACHINE, "A socket for programs cannot be made yet.", "Raise `ulimit -n`."),
    "log-lost": Row(MACHINE, "Lines of the log are missing: their reader did not take them."),
    "timeline-not-written": Row(MACHINE, "Rounds cannot be noted on the disk; they go on.", "Make room there."),
    # -- ports, routers, ways --
    "ports-in-use": Row(YOU, "The ports are taken; the node listens on others.", "Tell others the new address."),
    "admin-port-taken": Row(YOU, "The admin port is taken; the API listens on another one.", "See `shoal status`."),
    "port-mapped": Row(NOBODY, "The router lets others in."),
    "port-mapping-none": Row(NOBODY, "No router here gives ports by itself.", "Forward the ports by hand, if need be."),
    "port-mapping-gone": Row(NOBODY, "The router no longer lets others in."),
    "port-mapping-refused": Row(NETWORK, "The router refuses a port.", "Forward the ports by hand."),
    "port-mapping-failed": Row(MACHINE, "The router could not be asked for a port.", "It is asked again."),
    "behind-another-nat": Row(
        NETWORK, "The router is behind another one, so its port is of no use.", "Do what the line says, or use relays."
    ),
    "mdns-unavailable": Row(MACHINE, "Nodes on the local network cannot be found.", "--no-mdns does without."),
    "bootstrap-unreachable": Row(
        NETWORK,
        "Nobody answers at an address that was given.",
        "Check that node, and whether this is still its address.",
    ),
    "bootstrap-refused": Row(YOU, "An address that was given leads to this node itself.", "Give another node's."),
    "connection-lost": Row(NETWORK, "A connection with a peer ended; it is made anew."),
    "bulk-relayed": Row(
        NETWORK, "Rounds are slow, as payloads take a relay.", "Forward the ports of one member in its router."
    ),
    # -- peers --
    "peer-mistake": Row(PEER, "A peer sent what the protocol does not allow; it was not used."),
    "bad-introduction": Row(PEER, "A peer did not introduce this node to a run properly; others are asked."),
    "data-liar": Row(PEER, "A peer gave wrong data; it is not asked again."),
    "expert-refused": Row(PEER, "A peer gave a bad file of an expert; it is not used."),
    "message-too-long": Row(SHOAL, "A message was too long and was not sent.", "Send `shoal bugreport`."),
    # -- runs --
    "run-not-entered": Row(NETWORK, "A run that was asked for at the start is not entered yet; it is tried again."),
    "run-not-restored": Row(MACHINE, "An earlier run cannot be entered again.", "Leave it, and join it again."),
    "run-not-ended": Row(MACHINE, "A run could not be left in order.", "To the others it looks like a death."),
    "round-undone": Row(MACHINE, "A result is lost on all disks, as after a power cut: it is undone."),
    "falls-behind": Row(
        MACHINE,
        "Results come or are applied here more slowly than others make them; a later state is fetched.",
        "Free processors here, or the line; or leave the run to others.",
    ),
    "one-sided": Row(NETWORK, "A partner was lost after it had sent its part."),
    "rest-damaged": Row(MACHINE, "What was kept of a run here cannot be used; others may have it."),
    "branch-founded": Row(
        YOU,
        "A run could decide nothing, and goes on without some of its voters.",
        "Whoever is back joins it by itself. Of two parts that went on, that which has done less joins the other.",
    ),
    "branch-left": Row(
        NETWORK,
        "A run had gone on in two parts; this node joins the one that has done more.",
        "Checkpoints of the other part lie in the run's folder, beside the others.",
    ),
    "branch-joined": Row(NOBODY, "Members are back without whom a run had gone on, perhaps in a part of their own."),
    "link-of-left-branch": Row(
        NOBODY, "A run has left the branch of its log on which its link was made; the link leads to it all the same."
    ),
    "vote-lost": Row(
        YOU, "A run was left for good whose members needed this node's vote.", "Start the voters that it names."
    ),
    "rest-not-removed": Row(MACHINE, "An old state cannot be deleted.", "Delete it by hand."),
    # -- workers and data --
    "worker-failed": Row(MACHINE, "The worker fails again and again; this node trains no more.", "See its log."),
    "worker-lost": Row(MACHINE, "The worker has ended; it is started again."),
    "not-compiled": Row(MACHINE, "The model cannot be compiled; it is trained without."),
    "data-damaged": Row(MACHINE, "The data on this disk are damaged.", "Start the node again: it mends them."),
    "own-data-not-read": Row(YOU, "The text at --data is not read.", "Mend what the line says."),
    "data-left-out": Row(NOBODY, "Some of the text at --data is left out, as the line says."),
    "buffer-from-config": Row(NOBODY, "The weights lack a buffer: it is what the config gives."),
    "rates-differ": Row(YOU, "A scheduler goes by this machine's own metrics.", "Choose one that counts steps."),
    # -- checkpoints --
    "checkpoint-late": Row(MACHINE, "The disk is too slow for so many checkpoints.", "Raise --checkpoint-every."),
    "checkpoint-failed": Row(MACHINE, "A checkpoint could not be written.", "Make room on the disk."),
    "checkpoint-skipped": Row(MACHINE, "A damaged checkpoint is passed over."),
    "checkpoint-set-aside": Row(NOBODY, "A checkpoint of another history was moved aside."),
    "checkpoint-gone": Row(MACHINE, "The checkpoint with which the run was entered cannot be used."),
    # -- volume --
    "volume-nearly-used-up": Row(NOBODY, "Most of the day's volume is used up.", "Raise --max-per-day."),
    "volume-used-up": Row(NOBODY, "The day's volume is used up: runs pause until tomorrow.", "Raise --max-per-day."),
    "volume-not-saved": Row(MACHINE, "The day's volume cannot be noted on the disk.", "Make room there."),
    "volume-damaged": Row(MACHINE, "The note of the day's volume is damaged: it begins anew."),
    # -- pauses and the page --
    "paused": Row(NOBODY, "The node pauses its runs, for the reason that the line names."),
    "pause-not-saved": Row(MACHINE, "A pause that was asked for cannot be noted on the disk.", "Make room there."),
    "pause-damaged": Row(
        MACHINE, "The note of a pause is damaged: the node is paused until you end it.", "End it: `shoal resume`."
    ),
    "rule-without-effect": Row(
        MACHINE, "A rule for pausing needs what cannot be known on this machine.", "Unset it: `shoal config unset`."
    ),
    "page-action": Row(NOBODY, "Somebody with the node's token has changed something at its page."),
    # -- programs on this machine --
    "no-handout": Row(MACHINE, "Other processes cannot be given parameters.", "Mend what the line says."),
    "no-switchboard": Row(MACHINE, "Experts cannot be asked for or answer here.", "Mend what the line says."),
    "bad-process": Row(
        YOU, "A process on this machine sent something invalid; its connection is closed.", "Update it."
    ),
    # -- experts and serving --
    "family-obstacle": Row(NOBODY, "Something keeps the family from going on; it is tried again."),
    "family-failed": Row(MACHINE, "The family has failed on this node.", "The line says why; see the log."),
    "part-given-up": Row(MACHINE, "This node cannot train a part; others may.", "Mend what the line says."),
    "expert-not-noted": Row(MACHINE, "After a restart the node would not know a file that it has.", "Make room."),
    "expert-lost": Row(NETWORK, "An expert does not answer; texts go on without it."),
    "expert-back": Row(NOBODY, "An expert answers again."),
    "expert-unusable": Row(MACHINE, "The file of an expert cannot be used here.", "Mend what the line says."),
    "experts-changed": Row(NOBODY, "Other experts are served from now on."),
    "reload-failed": Row(MACHINE, "Newer weights cannot be taken; the old ones are served on.", "See the line."),
    "reload-works": Row(NOBODY, "Newer weights are taken again."),
    "served-slowly": Row(NOBODY, "The model cannot be served in the fast way."),
    "model-stuck": Row(MACHINE, "The model does not finish its last step; the server ends without it."),
    "chat-template-unused": Row(YOU, "The model's template for conversations is not used.", "See the line."),
}

PAUSES: Mapping[str, Row] = {
    "asked": Row(NOBODY, "Somebody has asked for it.", "`shoal resume` ends it."),
    "schedule": Row(NOBODY, "It is outside the hours of `schedule`."),
    "in-use": Row(NOBODY, "Somebody or something else uses the machine (`only-when-idle`)."),
    "on-battery": Row(NOBODY, "The machine runs on its battery (`only-on-mains`)."),
    "gpu-in-use": Row(NOBODY, "Another process uses the GPU (`yield-gpu`)."),
    "volume": Row(NOBODY, "The day's volume is used up (`max-per-day`)."),
}
