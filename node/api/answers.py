"""The types of the admin API's answers: JSON objects with these keys.

A published key keeps its meaning; new keys may appear, and readers ignore keys that they do not know. docs/api.md shows
the docstrings and annotations of these types. Code that only forwards an answer, or prints it by its keys, takes an
`Answer`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NotRequired, TypedDict

Answer = Mapping[str, Any]


# -- the node -----------------------------------------------------------------------------------------------


class NodeWarning(TypedDict):
    """Something that is not as it should be."""

    code: Annotated[str, "for programs"]
    words: Annotated[str, "for people"]


class Limits(TypedDict):
    """The owner's limits; null where there is none."""

    max_up: Annotated[float | None, "bytes a second"]
    max_down: Annotated[float | None, "bytes a second"]
    max_per_day: Annotated[int | None, "bytes"]
    used_today: Annotated[int, "bytes"]
    goes_on_at: Annotated[float | None, "when a paused node enters its runs again, in seconds since 1970"]


class Traffic(TypedDict):
    """Numbers of bytes."""

    sent: int
    received: int


class UnsavedRun(TypedDict):
    """A run that was left for a pause, and whose state is only in memory, since it could not be written to disk."""

    run: Annotated[str, "its id, in hex"]
    name: str
    words: Annotated[str, "that it is so, and why"]


class PauseStatus(TypedDict):
    """Whether the node is paused: in no run, and off its devices; docs/guest.md explains it."""

    paused: bool
    reasons: Annotated[list[str], "why, in words"]
    codes: Annotated[
        list[str],
        'the same for programs: "asked", "volume", "schedule", "in-use", "on-battery" or "gpu-in-use" for each reason',
    ]
    since: Annotated[float | None, "seconds since 1970"]
    until: Annotated[float | None, "when it ends by itself, in seconds since 1970; null if that is not known"]
    freed: Annotated[
        bool, "whether it is paused and the devices are free: no worker runs any more, nor a run's own script"
    ]
    left: Annotated[bool, "whether it is paused and has left its runs: `unsaved` names all that could not be kept"]
    unsaved: Annotated[list[UnsavedRun], "runs that cannot be kept on disk; it is tried again every 15 s"]


class Today(Traffic):
    """What the node has done since midnight UTC, also before a restart."""

    rounds: Annotated[int, "committed rounds in which this node took part, of all its runs"]


class LimitsStatus(TypedDict):
    """The owner's limits, and how much of them is used."""

    paused: Annotated[str | None, "why the node is paused, in one text, if so"]
    pause: PauseStatus
    warnings: Annotated[
        list[NodeWarning], "that the node soon will be paused, or that one of the owner's rules has no effect here"
    ]
    limits: Limits
    traffic: Annotated[Traffic, "all bytes on the wire since the node started"]
    today: Today


class RelayStatus(TypedDict):
    """The relays that the node uses, and how others use it as one."""

    relays: Annotated[Sequence[str], "peers that connect others with us"]
    relaying: Annotated[dict[str, Any], "how others use this node as a relay: {reservations, circuits, carried_bytes}"]
    nat: Annotated[str, "how the router translates our port, as far as relays see it"]


class PortMapping(TypedDict):
    """A port that the router forwards to the node."""

    protocol: Annotated[str | None, "natpmp or upnp"]
    external: Annotated[str | None, "the router's public host and port"]
    error: Annotated[str | None, "why there is no mapping, or why it is of no use"]
    behind_another_nat: Annotated[bool | None, "whether the router itself is behind one"]
    pending: Annotated[bool, "whether the router is still being asked"]


class LineSpeed(TypedDict):
    """The speed of our own line, in bytes a second; 0: not measured yet."""

    up: int
    down: int


class RoomLeft(TypedDict):
    """What this machine has left; looked at every few seconds."""

    memory_free: Annotated[int, "bytes that a process may still take, by the tightest limit"]
    memory_total: Annotated[int, "bytes, by that limit"]
    disk_free: Annotated[int, "bytes, of the disk of the node's folder"]
    disk_total: int


class Dht(TypedDict):
    """The node's part in the DHT."""

    servers: Annotated[int, "servers of the DHT that we know"]
    serves: Annotated[bool, "whether the node is a server itself: others may query it, and store records there"]
    records: Annotated[int, "records that we hold"]


class WorkerRow(TypedDict):
    """The worker that trains a run here; null where there is none, or the value is unknown."""

    device: Annotated[str | None, "in words"]
    worker_memory: Annotated[int | None, "bytes"]
    device_memory: Annotated[int | None, "bytes"]
    micro_batch: Annotated[int | None, "sequences that it processes at once"]
    utilisation: Annotated[float | None, "the share of its time in which it trains"]
    model_flops_utilization: Annotated[float | None, "the share of what the device could compute that training takes"]


class RunRow(WorkerRow):
    """A run of the node; if it is not open, most values are null."""

    run: Annotated[str, "its id, in hex"]
    name: str | None
    round: Annotated[int, "the last one that is applied here"]
    first_round: int | None
    members: Annotated[int | None, "members that are alive, this node included"]
    left: Annotated[list[str] | None, "the last members that have left it with a goodbye and are not back, as PeerIDs"]
    link: Annotated[
        str | None, "by which others join, if nobody else is in it and this node has founded it or the others have left"
    ]
    digest: Annotated[str | None, "of the run's history"]
    root: Annotated[str | None, "of the state"]
    loss: Annotated[float | None, "of the last training steps here"]
    validation_loss: Annotated[float | None, "the newest that was measured here, on a sample of the held-out data"]
    validation_round: Annotated[int | None, "the round after which the state had that validation loss"]
    seconds_left: Annotated[float | None, "until the last round, at the pace of the last ones"]
    step: Annotated[int, "inner steps of the worker"]
    samples: Annotated[int, "tokens behind the state"]
    phase: Annotated[
        str, '"failed" if the run has ended on this node, "finished" after its last round, "paused", "training", ...'
    ]
    trains: bool | None
    is_creator: bool | None
    is_resting: Annotated[bool | None, "whether this node is the first to be back after all had stopped"]
    tokens_per_second: float | None
    failure: Annotated[str | None, "why it failed"]
    may_be_opened_again: Annotated[bool | None, "whether the cause of the failure may pass"]
    worker_failure: Annotated[str | None, "why no worker trains here until somebody fixes that"]
    worker_lost: Annotated[str | None, "why its last worker ended; null again once the next one has made a step"]
    waiting_for: Annotated[str | None, "what holds it up, a sentence"]
    branch: Annotated[str | None, "that it has gone on without a quorum of its voters, and who is not back, a sentence"]
    branch_event: Annotated[
        str | None, "what happened last where it had gone on in parts, as far as this node has seen since its start"
    ]
    branch_event_at: Annotated[float | None, "when that was, in seconds since 1970"]
    branches: Annotated[int | None, "how often it has gone on so, of the last 16 times"]
    bytes_sent: int | None
    bytes_received: int | None
    bulk: Annotated[
        dict[str, dict[str, int]] | None,
        'payloads among these bytes, by path: {"direct" | "punched" | "relayed": {sent, received}}',
    ]
    warnings: list[NodeWarning] | None
    last: Annotated[int | None, "its last round"]
    checkpoint: Annotated[int | None, "the round of the newest one on this node's disk"]
    checkpoint_at: Annotated[float | None, "when that was written, in seconds since 1970"]
    writes_text: Annotated[bool | None, "whether text can be written with its states"]
    exchanges: Annotated[dict[str, int] | None, "of a run of replicas: the number of exchanges, by how they ended"]
    experts: Annotated[dict[str, Any] | None, "of a family: {parts, finished, trains}"]


class Settings(TypedDict):
    """The settings that the node has: those of its start, and those that were changed since and hold at once."""

    settings: Annotated[dict[str, Any], "by their keys in config.toml, as they are written there"]


class ChangedSettings(Settings):
    """Settings that were changed, in config.toml and, as far as that is possible, in the running node."""

    applied: Annotated[list[str], "keys that hold at once"]
    at_next_start: Annotated[list[str], "keys that hold from the next start of the node on"]


class Download(TypedDict):
    """The data of a run that are being downloaded, in bytes."""

    here: Annotated[int, "that have come, or were here"]
    whole: int


class Status(LimitsStatus, RelayStatus):
    """The node as it is now."""

    version: str
    peer: Annotated[str, "its PeerID"]
    state: Annotated[str, '"SOLO", "CONNECTED", "IN-ROUND" or "SPLIT"']
    evidence: Annotated[str | None, "the evidence for SPLIT"]
    peers: Annotated[int, "connected peers"]
    obstacle: Annotated[str | None, "why the node is not in the state that it should be in, a sentence"]
    waits: Annotated[bool, "whether the obstacle is no fault, as the node is the first of all to be back"]
    download: Annotated[Download | None, "null if no run's data are on their way"]
    reachability: Annotated[str, '"public", "nat" or "unknown"']
    port_mapping: Annotated[PortMapping | None, "null if no router is asked"]
    line: LineSpeed
    dht: Dht
    addresses: list[str]
    untold_addresses: Annotated[list[str], "addresses that others are not told, because there are too many"]
    home: Annotated[str, "the node's folder, in which its token is"]
    memory: Annotated[int | None, "the daemon's, in bytes"]
    room: Annotated[RoomLeft | None, "null until it is known"]
    ending: Annotated[bool, "whether it was asked to stop, and is leaving its runs and saving state"]
    day: Annotated[
        Traffic | None,
        "about how many bytes of payloads a day of the open runs takes at their present pace; null if not known",
    ]
    draining: Annotated[bool, "whether it stops once the rounds under way are over"]
    runs: list[RunRow]


class PeerConnection(TypedDict):
    """How a peer is reached."""

    path: Annotated[str | None, '"direct", "punched" or "relayed"; null without a connection']
    reason: Annotated[str | None, "why the path is that one, in words"]
    reason_code: Annotated[str | None, "the same, for programs"]
    relay: Annotated[str | None, "the PeerID of the relay, if the path is relayed"]
    rtt_ms: float | None
    send_rate: Annotated[float | None, "of payloads, in bytes a second; null until one was large enough to tell"]
    receive_rate: float | None


class PeerRow(PeerConnection):
    """A peer, once for each run."""

    peer: Annotated[str, "its PeerID"]
    run: Annotated[str | None, "a run that both are in; null for other connected peers"]
    round: int | None
    phase: NotRequired[Annotated[str | None, "of a peer in a run"]]
    loss: NotRequired[float | None]


class NetcheckReport(TypedDict):
    """How the node stands in the network; docs/nat.md explains all of it."""

    settled: Annotated[bool, "whether nothing is pending"]
    pending: Annotated[list[str], "what is still being found out: ask again until it is empty"]
    verdict: Annotated[dict[str, Any], "{sentence, action, exit_code}"]
    findings: Annotated[
        list[dict[str, Any]], '{code, level: "ok" | "info" | "warn" | "bad", sentence, action}; codes never change'
    ]
    self: Annotated[dict[str, Any], "what the path to another peer depends on: {dialable, mapping, has_relay}"]
    forecast: Annotated[
        dict[str, str], 'the path to other peers that are "public", "firewalled", "keeping" or "symmetric"'
    ]
    addresses: Annotated[dict[str, list[str]], "{own, found_at, seen_at}"]
    nat: str
    mapping: str
    relays: Annotated[list[dict[str, Any]], "{peer, rtt_ms}"]
    clock_ahead: float | None
    port_mapping: PortMapping | None


class DoctorEvent(TypedDict, total=False):
    """A line of an examination: one "peer", any number of "step", and at the end one "report", which has all."""

    event: str
    peer: str | None
    addresses: Annotated[list[dict[str, Any]], "{address, from}"]
    path: Annotated[str | None, "this, the reasons, the relay, the round trip and the rates as in PeerRow"]
    steps: Annotated[list[dict[str, Any]], "of the report: all steps, each with the keys of a step"]
    live: Annotated[bool, "of a step: whether it belongs to this examination"]
    at: float
    way: str
    where: str
    code: str
    words: str
    seconds: float
    again: float
    times: int
    reason: str | None
    reason_code: str | None
    relay: str | None
    rtt_ms: float | None
    send_rate: float | None
    receive_rate: float | None
    rate_note: str | None
    here: Annotated[dict[str, Any], "{reachability, nat, relays, addresses, ports}"]
    there: Annotated[dict[str, Any] | None, "the peer's view of us"]
    there_note: str | None
    verdict: Annotated[dict[str, Any], "{code, side, sentence, advice}"]


# -- runs ---------------------------------------------------------------------------------------------------


class Round(TypedDict):
    """A committed round, as docs/metrics-jsonl.md describes it."""

    round: int
    entry: Annotated[int, "of the log, that decided it; 0 in runs of replicas"]
    members: int
    contributors: int
    digest: str
    took_part: Annotated[bool, "whether this node was in its roster"]
    seconds: float
    bytes: Annotated[int, "of payloads that this node has sent for it"]
    resent: Annotated[int, "bytes among these that were sent a second time, because an owner was lost"]
    tokens: int
    loss: float | None
    round_samples: Annotated[int, "tokens that were trained on for the round"]
    samples: Annotated[int, "tokens behind the state"]
    applied_at: Annotated[float, "seconds since 1970"]
    phases: Annotated[list[dict[str, Any]], "where the time went; not kept of old rounds"]
    waited_for: Annotated[dict[str, float], "seconds, by member; not kept of old rounds"]
    called: Annotated[bool, "whether the others waited for us"]
    partner: Annotated[str | None, "of a run of replicas: the peer with which it has exchanged"]
    is_mutual: Annotated[bool, "whether the partner is known to have taken our vectors, too"]
    lapse: Annotated[str, "why there was no exchange"]
    words: Annotated[str, "the exchange or the lapse, in words"]
    validation_loss: Annotated[float | None, "of the state after it, if this node has measured that"]
    validation_sequences: Annotated[int, "held-out sequences on which it was measured; 1 for a script's own figure"]


class RunDetails(TypedDict):
    """A run in full."""

    run: str
    name: str
    author: str
    worker_socket: Annotated[
        str, "path of the socket at which the run's worker talks to the node; empty if there is none yet"
    ]
    manifest: Annotated[dict[str, Any], "as tables"]
    members: Annotated[
        list[dict[str, Any]], "each with whether it votes, its round, digest, root, phase, step, loss, ..."
    ]
    rounds: Annotated[list[Round], "the last ones"]


class Timeline(TypedDict):
    """What happened in a round, and when; docs/rounds.md explains the fields."""

    run: str
    name: str
    round: int
    peer: str
    ready_at: float
    began: float | None
    committed: float | None
    ended: float | None
    proposer: str | None
    size: int
    members: list[str]
    chunks: int
    owners: dict[str, int]
    uncounted: list[str]
    phases: list[dict[str, Any]]
    waited_for: list[dict[str, Any]]
    events: list[dict[str, Any]]
    traffic: list[dict[str, Any]]
    paths: dict[str, str]


class RunName(TypedDict):
    """A run, by id and name."""

    run: str
    name: str


class ContinuedRun(RunName):
    """A run that can decide nothing, and with whom it goes on."""

    why: Annotated[str, "who is missing, so that nothing can be decided"]
    round: Annotated[int, "the one after which the state is that is here, and is gone on with"]
    keeps_replicas: Annotated[bool, "whether each member has parameters of its own, and keeps them"]
    here: Annotated[list[str], "the members with whom it goes on, this node among them"]
    away: Annotated[list[str], "the members that are left behind, voters first"]


class LeftRun(RunName):
    """A run that was left."""

    stuck: NotRequired[Annotated[str, "that those who stay can decide nothing, and why"]]


class RunLink(RunName):
    """A run's link, by which others join."""

    link: Annotated[str, "with addresses of members that are alive now"]
    untold: Annotated[list[str], "addresses of this node for which the link has no room"]
    qr: NotRequired[Annotated[list[str], "of `GET /v1/runs/{run}/link`: the link as a QR code, in rows; 1 is dark"]]


class CreatedRun(RunLink):
    """A run that this node has founded."""

    left_out: NotRequired[Annotated[list[str], "parts of the text at --data that are not in the run's data, and why"]]


class Preview(RunName):
    """What joining a run would mean. The number of rounds and members and the pace are hearsay."""

    author: str
    manifest: dict[str, Any]
    parameters: int
    state: Annotated[int, "bytes to download first"]
    memory: Annotated[dict[str, Any], "{node, worker (bytes), problem (why it does not fit; empty if it does)}"]
    traffic: Annotated[Traffic, "bytes of a round"]
    result: Annotated[int, "bytes of a round's result, on average; 0 where rounds have none that all take"]
    data: Annotated[
        dict[str, Any], "{missing (bytes to download), problem (why the data are not available), code (of that), words}"
    ]
    round: int
    members: int
    pace: Annotated[float | None, "seconds from round to round; null if not known"]
    words: Annotated[list[list[str]], "all of it for people: rows of a label and a sentence"]


class PublicRun(RunName):
    """A run as its members announce it."""

    round: int
    members: int
    announced_by: int
    link: str


class FoundRun(RunName):
    """A run of a manifest that somebody is about to found a run of."""

    author: str
    members: Annotated[int, "as the member that answered says, like the round"]
    round: int
    link: str
    joined: Annotated[bool, "whether this node is in it"]


class Checkpoint(TypedDict, total=False):
    """A checkpoint on this node's disk. If it is damaged, only its path and what is wrong with it are there."""

    path: str
    problem: Annotated[str | None, "null if it can be used, as far as its description says"]
    run: str
    name: str
    round: int
    history: str
    root: str
    samples: Annotated[int, "tokens behind the state"]
    peer: Annotated[str, "who wrote it"]
    inner_steps: int
    saved_at: Annotated[float, "seconds since 1970"]
    bytes: int


class WrittenText(TypedDict):
    """A part of a text that is being written."""

    text: Annotated[str, "what comes next; empty while the model is being loaded or computes"]
    round: Annotated[int, "the weights are those of this round, or of a later one"]
    error: Annotated[str | None, "why the text ends here, if it does not end by itself"]


class SavedState(TypedDict):
    """The state that was written."""

    round: int
    root: str


class RunCounters(TypedDict):
    """What this node has counted in a run since it joined."""

    samples: int
    failures: dict[str, int]
    durations: Annotated[list[list[Any]], "rows [upper bound in seconds, or null for the last; number of rounds]"]
    seconds: float
    exchanges: dict[str, int]
    sync: Traffic


class RunMetrics(RunCounters):
    """A run's values in `/metrics`; not an answer of the API."""

    run: str
    participants: int | None
    last_commit: float
    active: bool
    lacks_quorum: bool
    bytes: dict[str, dict[str, int]]
    bulk: dict[str, dict[str, int]]


# -- families of experts ------------------------------------------------------------------------------------


class ExpertRow(TypedDict):
    """A part of a family of experts, and its expert."""

    part: str
    peer: Annotated[str | None, "the peer that trains it; null if none does"]
    run: Annotated[str | None, "the run in which it is trained"]
    steps: Annotated[int, "steps that the expert has made"]
    of: Annotated[int, "steps that it will make in all"]
    loss: float | None
    finished: bool
    published: Annotated[
        dict[str, Any] | None,
        "its most advanced file: {round, steps, tokens, loss, bytes, file (BLAKE3, hex), author, holders (members that "
        "say that they have it), here (whether this node has it)}",
    ]


class ExpertSources(TypedDict):
    """What a process needs that queries experts, or answers for them."""

    family: str
    name: str
    me: Annotated[str, "our PeerID"]
    socket: Annotated[str, "path of the socket at which such processes talk to the node"]
    manifest: Annotated[str, "hex"]
    parts: Annotated[
        list[dict[str, Any]],
        "{part, model, files: [{file, round, steps, finished, path (null if it is not here), peers (that say that they "
        "can be asked)}]}, newest first",
    ]


class FetchedExperts(TypedDict):
    """The experts that were downloaded."""

    folder: str
    experts: Annotated[list[dict[str, Any]], "as in ensemble.json (docs/experts.md)"]
    missing: Annotated[list[str], "parts without a file yet"]
    tokens: Annotated[
        dict[str, Any],
        'what a token is: {kind: "bytes" | "tokenizer", name, end_of_text, and file and blake3 of the tokenizer.json, '
        "or the problem why it is not there}",
    ]


# -- what is done -------------------------------------------------------------------------------------------


class LoginCode(TypedDict):
    """A code for a link that logs a browser in."""

    code: Annotated[str, "valid once, for some minutes"]


class Stopping(TypedDict):
    """The node is ending."""

    stopping: bool
