"""The codes of errors: what ends a command, or is the answer of the API."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.node.base.codes.row import Fault, Row

YOU, MACHINE, PEER, NETWORK, SHOAL, NOBODY = Fault

ERRORS: Mapping[str, Row] = {
    # -- general: the sentence says all; commands do not show these --
    "not-possible": Row(YOU, "What was asked cannot be done now.", "Do what the sentence says."),
    "usage": Row(YOU, "The command line, or a variable of the environment, is wrong.", "See `--help` of the command."),
    "shortage": Row(MACHINE, "The machine is short of something for now.", "Wait, or do what the sentence says."),
    "bug": Row(SHOAL, "The node made a mistake.", "Send its developers what `shoal bugreport` collects."),
    # -- commands, settings and values --
    "bad-value": Row(YOU, "A value is not of its kind, or outside its bounds.", "Give one as the sentence says."),
    "bad-flags": Row(
        YOU, "Flags do not go together, or not with what the command is about.", "Remove or add what is named."
    ),
    "unknown-key": Row(YOU, "There is no such setting.", "See `shoal config show`; the nearest key is named."),
    "unknown-name": Row(YOU, "Nothing has that name.", "Choose one of the names that the sentence lists."),
    "not-an-address": Row(
        YOU, "What was given is no address of a peer.", "Give one as `shoal status --long` shows it."
    ),
    "not-confirmed": Row(YOU, "The question was not answered by yes.", "Nothing was done; ask again if you like."),
    "config-not-edited": Row(
        YOU,
        "The editor did not end well, or what was written does not count.",
        "config.toml does not have what you have written; `shoal config edit` goes on with it.",
    ),
    "too-large": Row(YOU, "A file, a text or a record is larger than it may be.", "Make it smaller."),
    "not-json": Row(YOU, "A file is not the JSON that is expected.", "Mend or replace what is named."),
    "no-report": Row(YOU, "There is nothing to report on, or it is damaged.", "Name a folder of `shoal up` or a node."),
    # -- the node's folder --
    "home-unknown": Row(YOU, "There is no folder for the node's files.", "Set SHOAL_HOME to one, by its whole path."),
    "home-unusable": Row(
        MACHINE,
        "SHOAL_HOME cannot be made, written or locked.",
        "Mend what the sentence names, or choose a SHOAL_HOME on a local disk that this user may write to.",
    ),
    "home-taken": Row(
        YOU,
        "A node runs in this SHOAL_HOME already.",
        "Use it, end it by `shoal node stop`, or set another SHOAL_HOME.",
    ),
    "home-gone": Row(YOU, "The folder of the running node was deleted or replaced.", "Start the node again."),
    "config-broken": Row(YOU, "config.toml is not valid.", "Mend the line that is named: `shoal config edit`."),
    "secret-open": Row(
        YOU,
        "Other users of the machine can read the node's key or token.",
        "`chmod 600` the file; if somebody may have read it, delete it, and the next start makes a new one.",
    ),
    "secret-damaged": Row(
        MACHINE,
        "The node's key or token is not valid.",
        "Restore the file, or move it away: the next start makes a new one. With a new key it is another peer.",
    ),
    "secret-unreadable": Row(
        MACHINE, "The node's key or token cannot be read.", "Give this user the right to read it."
    ),
    "record-damaged": Row(
        MACHINE, "A record of a run on this disk is damaged.", "Restore the file, or leave the run and join it again."
    ),
    "record-unwritable": Row(
        MACHINE,
        "A record of a run, which the member must not forget, cannot be written or removed.",
        "Mend the disk, then leave the run and join it again.",
    ),
    "folder-gone": Row(YOU, "The folder in which the command was started is gone.", "`cd` to another one."),
    # -- this machine --
    "system-refused": Row(
        MACHINE, "The operating system refuses what this needs.", "Do what the sentence says: it names the file."
    ),
    "no-room": Row(
        MACHINE, "There is too little memory, disk or other room for this.", "Make room, or choose something smaller."
    ),
    "too-few-files": Row(MACHINE, "The process may open too few files.", "Raise the limit, by `ulimit -n`."),
    "unreadable": Row(YOU, "A file or folder that was named cannot be read.", "Check its path and its permissions."),
    "unwritable": Row(YOU, "Something cannot be written there.", "Choose another place, or mend what is named."),
    "already-there": Row(YOU, "What was to be made exists.", "Give another name; nothing was overwritten."),
    "name-not-utf8": Row(YOU, "The name of a file or folder is not UTF-8.", "Rename it."),
    "not-text": Row(YOU, "A file that should be a text is none in UTF-8.", "Name texts, saved as UTF-8."),
    "package-missing": Row(MACHINE, "A Python package is missing, or too old.", "Install it as the sentence says."),
    "device-missing": Row(
        YOU,
        "This machine does not have the device.",
        "Use --device auto or cpu, or install its driver and torch for it.",
    ),
    "disk-silent": Row(MACHINE, "A disk does not answer.", "See the system's log; a network disk may be away."),
    # -- the running node --
    "no-node": Row(YOU, "No node runs in this SHOAL_HOME.", "`shoal node start`, or set SHOAL_HOME to where it runs."),
    "not-answering": Row(
        MACHINE,
        "The node's process is there and shows no life.",
        "Wake it if it is stopped; else `shoal bugreport`, then `shoal node stop --force`.",
    ),
    "node-slow": Row(
        MACHINE, "The node takes longer than is waited for.", "Look into its log; wait, or `shoal node stop --force`."
    ),
    "node-elsewhere": Row(
        YOU, "The node runs in another container or machine, or as another user.", "Run the command there."
    ),
    "other-version": Row(YOU, "Node and command are of different versions.", "Stop the node, and start it again."),
    "start-failed": Row(MACHINE, "The node ended before it answered.", "Its last words are shown; its log has more."),
    "node-failed": Row(MACHINE, "The node ended with an error.", "Its last words are shown; its log has more."),
    "in-foreground": Row(
        YOU, "The node belongs to a terminal or a service manager, which has to restart it.", "Restart it there."
    ),
    "no-log": Row(YOU, "The node does not log into its folder.", "Look where it was started, or in `journalctl`."),
    "ending": Row(
        NOBODY,
        "The node or server is about to end, or has stopped its downloads.",
        "Start it again, or `shoal resume`.",
    ),
    "node-paused": Row(
        NOBODY, "The node is paused, so it enters no run.", "`shoal resume`, or wait until it goes on by itself."
    ),
    "busy": Row(NOBODY, "Too much of the same is under way.", "Ask again when some of it has ended."),
    "not-ready": Row(NOBODY, "The node does not have that yet.", "Ask again in a while."),
    "port-taken": Row(YOU, "Another program listens on the port.", "Choose another one, or 0 for any free one."),
    "cannot-listen": Row(
        YOU,
        "Nothing can listen at that address and port.",
        "Name an address of this machine and a port that this user may have: those from 1024 on.",
    ),
    # -- requests to the API --
    "no-such-request": Row(YOU, "The API has no such path, method or size of body.", "See docs/api.md."),
    "bad-request": Row(YOU, "The request's body, or its query, is not valid.", "See docs/api.md."),
    "wrong-token": Row(
        YOU, "The request shows no token of this node, or a used login.", "Show the token in its SHOAL_HOME."
    ),
    "not-allowed": Row(YOU, "The request comes by a foreign name or page.", "Call the API by the node's address."),
    # -- runs and links --
    "not-a-link": Row(
        YOU,
        "What was given names no run.",
        "Give the one word that `shoal run link` prints on a member, or the run's id.",
    ),
    "link-damaged": Row(YOU, "The link was changed or cut on its way.", "Copy it again, whole and alone."),
    "other-protocol": Row(
        YOU,
        "The link or the run is of another version of Shoal's protocol.",
        "Install the same version on both machines, and take a new link.",
    ),
    "unknown-run": Row(YOU, "The node is in no such run, or nobody knows it.", "See `shoal run ls` and `discover`."),
    "ambiguous-run": Row(YOU, "Several runs fit what was given.", "Give more of the id, or a run's link."),
    "unknown-round": Row(YOU, "Nothing is known of that round, or not any more.", "See `shoal run show`."),
    "unknown-peer": Row(
        YOU, "No peer is known by what was given, or several.", "See `shoal peers`, or give an address."
    ),
    "no-steward": Row(
        YOU,
        "Only a run's author, its stewards and its voters may order that.",
        "Ask one of them, or see `shoal run show`.",
    ),
    "votes-already": Row(YOU, "The member has a vote already.", "Nothing: see `shoal run show`."),
    "no-need": Row(YOU, "The members that are here can decide all by themselves.", "Nothing: see `shoal status`."),
    "quorum-only": Row(
        YOU, "A run whose voters may lie goes on with a quorum of them only.", "Start those that are away."
    ),
    "already-in-run": Row(YOU, "The node is in that run already.", "See `shoal run ls`."),
    "alone": Row(
        YOU,
        "No other peer is connected, and one is needed for this.",
        "Give a run's whole link, which says where its members are.",
    ),
    "run-nowhere": Row(
        NETWORK,
        "Nobody at the addresses in the link answers for the run.",
        "Check that a member runs, and take a new link from it; `shoal netcheck` there says how it is reached.",
    ),
    "run-failed": Row(MACHINE, "The run has failed on this node.", "The sentence says why; see `shoal logs`."),
    "run-left": Row(YOU, "The node is no longer in the run.", "Join it again."),
    "nobody-asked": Row(YOU, "A question cannot be asked, as this is no terminal.", "Say --yes."),
    "stalled": Row(NETWORK, "Nothing has moved in the swarm for long.", "See the logs that are named."),
    "nobody-left": Row(MACHINE, "No peer of the swarm is left.", "See the logs that are named."),
    "state-gone": Row(NOBODY, "That state is no longer kept, as there are later ones.", "Ask for the newest one."),
    "other-kind-of-run": Row(YOU, "Runs of that kind are not used in this way.", "Do what the sentence says."),
    # -- scripts and workers --
    "script-misused": Row(YOU, "A script uses the run in another way than it can be used.", "See docs/scripts.md."),
    "script-module": Row(
        YOU, "The script's module or optimizer cannot be trained in a run as it is.", "Change it as the sentence says."
    ),
    "script-changed": Row(
        YOU,
        "The script has changed its module or optimizer since `wrap`.",
        "Do that before `wrap`, or found another run for it.",
    ),
    "script-closed": Row(YOU, "The script's run is closed, or another one took its place.", "Open it again."),
    "worker-refused": Row(
        YOU, "The node does not take the process as a run's worker.", "See which run and which process the node has."
    ),
    "worker-silent": Row(MACHINE, "The worker has ended, or does not answer in time.", "See its log, and try again."),
    # -- manifests, models, data --
    "manifest-wrong": Row(
        YOU, "The manifest is not valid.", "Mend the key that is named: docs/manifest.md has all of them."
    ),
    "manifest-unfinished": Row(
        YOU, "The manifest's file leaves something to its founder, so it names no run.", "Give the run's link or id."
    ),
    "data-missing": Row(YOU, "The run's text is not on this machine.", "Name it with --data."),
    "data-empty": Row(YOU, "There is no text, or too little, to train on.", "Name more text with --data."),
    "data-changed": Row(YOU, "The text has changed while it was read.", "Leave it alone, and try again."),
    "data-unusable": Row(YOU, "A file of the data is damaged, or not of its format.", "Mend or replace what is named."),
    "other-data": Row(YOU, "The text is another one than the run's.", "Name the founder's text, or let it download."),
    "data-too-large": Row(
        YOU,
        "The run's data are larger than what this node downloads.",
        "Start it with a greater --data-limit, or with --data and the same text.",
    ),
    "data-nowhere": Row(
        NETWORK, "No member that can be reached gives the run's data.", "Name the same text with --data, or try later."
    ),
    "tokenizer-missing": Row(YOU, "There is no tokenizer where one is needed.", "Name its file with --tokenizer."),
    "other-tokenizer": Row(YOU, "The tokenizer is none, or does not fit the model.", "Name the one of the run's data."),
    "weights-missing": Row(
        YOU, "The base weights of the adapters are not on this machine.", "Name their folder with --weights."
    ),
    "checkpoint-missing": Row(YOU, "There is no checkpoint there.", "`shoal ckpt ls` lists those of the node."),
    "checkpoint-damaged": Row(
        MACHINE, "A checkpoint is damaged: its hashes differ.", "Take another one: `shoal ckpt ls`."
    ),
    "checkpoint-version": Row(
        YOU, "A checkpoint is of another version of Shoal.", "Read it with that version, or take another one."
    ),
    "model-diverged": Row(
        YOU,
        "A trained model's numbers are not finite: its training has diverged.",
        "Take an earlier checkpoint, or leave this expert out.",
    ),
    "other-model": Row(
        YOU, "The model, or the state, is another one than the run's.", "Take the checkpoint or module of this run."
    ),
    "diverged": Row(
        YOU, "Training has diverged: numbers are not finite.", "Nothing was sent; lower the learning rate in a new run."
    ),
    "model-unsupported": Row(
        YOU, "Models of that kind cannot be used for this.", "Choose another model, or do what the sentence says."
    ),
    "model-unusable": Row(
        YOU, "The folder of a model is damaged, or its files do not fit together.", "Export or download it again."
    ),
    "adapters-alone": Row(YOU, "Adapters are no model without their base.", "Merge them with it, and name the result."),
    # -- serving and experts --
    "template-wrong": Row(
        YOU,
        "The model's template for conversations cannot be used.",
        "Mend or remove it; without one the format is plain.",
    ),
    "prompt-wrong": Row(YOU, "The prompt, or the length asked for, does not suit the model.", "Change it as is said."),
    "experts-wrong": Row(YOU, "A folder or table of experts is not valid.", "Fetch it again: `shoal experts fetch`."),
    "experts-differ": Row(
        YOU, "Experts are of different models, tokens or sizes.", "Use those of one family; start a server anew."
    ),
    "experts-nowhere": Row(
        NETWORK, "Nobody that can be reached has, or answers for, an expert.", "Try later, or see that a node has them."
    ),
    "expert-file-lost": Row(MACHINE, "A file of the family is gone from this disk.", "Found the family again."),
    "expert-damaged": Row(MACHINE, "The file of an expert is damaged.", "Fetch the experts again."),
    # -- peers --
    "peer-blamed": Row(
        PEER, "A peer sent what the protocol does not allow.", "Nothing of it was used; if it stays, tell its owner."
    ),
    "bad-payload": Row(
        PEER, "A peer sent numbers that are not finite.", "They were not used; if it stays, tell its owner."
    ),
}
