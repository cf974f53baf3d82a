"""What a node answers, by operation: JSON objects with these keys.

A key once published keeps its meaning; new keys may appear, and readers ignore what they do not know. The words beside
the keys are what docs/api.md shows. What only passes an answer on, or prints it by its keys, takes an `Answer`.
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
    """What the owner lets pass; None where there is no limit."""

    max_up: Annotated[float | None, "bytes a second"]
    max_down: Annotated[float | None, "bytes a second"]
    max_per_day: Annotated[int | None, "bytes"]
    used_today: Annotated[int, "bytes"]
    goes_on_at: Annotated[float | None, "when a node that is paused enters its runs again, in seconds since 1970"]


class Traffic(TypedDict):
    """Bytes."""

    sent: int
    received: int


class LimitsStatus(TypedDict):
    """Where the node is with its owner's limits."""

    paused: Annotated[str | None, "why the node is in no run for the rest of the day, if so"]
    warnings: Annotated[list[NodeWarning], "that it soon will be"]
    limits: Limits
    traffic: Annotated[Traffic, "all bytes on the wire since the node started"]


class RelayStatus(TypedDict):
    """What relays do for the node, and it for others."""

    relays: Annotated[Sequence[str], "peers that connect others with us"]
    relaying: Annotated[dict[str, Any], "what others have of us: {reservations, circuits, carried_bytes}"]
    nat: Annotated[str, "what the router makes of our port, as far as relays see it"]


class PortMapping(TypedDict):
    """What the router lets in."""

    protocol: Annotated[str | None, "natpmp or upnp"]
    external: Annotated[str | None, "host and port at the router's outside"]
    error: Annotated[str | None, "why there is no mapping, or why it helps nobody"]
    behind_another_nat: Annotated[bool | None, "whether the router itself is behind one"]
    pending: Annotated[bool, "whether it is about to be known"]


class LineSpeed(TypedDict):
    """How fast our own line is, in bytes a second; 0: not measured yet."""

    up: int
    down: int


class Dht(TypedDict):
    """Our part in the DHT."""

    servers: Annotated[int, "that we know"]
    serves: Annotated[bool, "whether others may ask us, and store with us"]
    records: Annotated[int, "that we hold"]


class WorkerRow(TypedDict):
    """What trains a run here; None where nothing does, or nobody knows."""

    device: Annotated[str | None, "in words"]
    worker_memory: Annotated[int | None, "bytes"]
    device_memory: Annotated[int | None, "bytes"]
    micro_batch: Annotated[int | None, "sequences that it works on at once"]
    utilisation: Annotated[float | None, "the share of its time in which it trains"]
    model_flops_utilization: Annotated[float | None, "the share of what the device could compute that training takes"]


class RunRow(WorkerRow):
    """A run of the node; of one that is not open most is None."""

    run: Annotated[str, "its id, in hex"]
    name: str | None
    round: Annotated[int, "the last one that is applied here"]
    first_round: int | None
    members: Annotated[int | None, "that are here, with us"]
    digest: Annotated[str | None, "of the run's history"]
    root: Annotated[str | None, "of the state"]
    loss: float | None
    step: Annotated[int, "of the worker"]
    samples: Annotated[int, "tokens behind the state"]
    phase: Annotated[
        str, '"failed" if the run has ended on this node, "finished" after its last round, "paused", "training", ...'
    ]
    trains: bool | None
    is_creator: bool | None
    is_resting: Annotated[bool | None, "whether we are the first to be back with what all had kept"]
    tokens_per_second: float | None
    failure: Annotated[str | None, "why it failed"]
    may_be_opened_again: Annotated[bool | None, "whether it failed for want of what there may be again"]
    worker_failure: Annotated[str | None, "why it trains nothing here until somebody mends that"]
    worker_lost: Annotated[str | None, "why its last worker ended, until another makes a step"]
    waiting_for: Annotated[str | None, "what holds it up, a sentence"]
    bytes_sent: int | None
    bytes_received: int | None
    bulk: Annotated[
        dict[str, dict[str, int]] | None,
        'of these, payloads by their path: {"direct" | "punched" | "relayed": {sent, received}}',
    ]
    warnings: list[NodeWarning] | None
    last: Annotated[int | None, "its last round"]
    checkpoint: Annotated[int | None, "the round of the newest one on this node's disk"]
    exchanges: Annotated[dict[str, int] | None, "of a run of replicas: how many came to what end"]
    experts: Annotated[dict[str, Any] | None, "of a family: {parts, finished, trains}"]


class Status(LimitsStatus, RelayStatus):
    """The node as it is now."""

    version: str
    peer: Annotated[str, "its PeerID"]
    state: Annotated[str, '"SOLO", "CONNECTED", "IN-ROUND" or "SPLIT"']
    evidence: Annotated[str | None, "what SPLIT is said on"]
    peers: Annotated[int, "with a connection"]
    obstacle: Annotated[str | None, "why the node is not where it should be, a sentence"]
    waits: Annotated[bool, "that this is no fault, as it is the first of all to be back"]
    reachability: Annotated[str, '"public", "nat" or "unknown"']
    port_mapping: Annotated[PortMapping | None, "None where no router is asked"]
    line: LineSpeed
    dht: Dht
    addresses: list[str]
    untold_addresses: Annotated[list[str], "too many to tell others"]
    memory: Annotated[int | None, "the daemon's, in bytes"]
    ending: Annotated[bool, "it was asked to stop: it says goodbye to its runs and saves what must be"]
    runs: list[RunRow]


class PeerConnection(TypedDict):
    """How a peer is reached."""

    path: Annotated[str | None, '"direct", "punched" or "relayed"; None without a connection']
    reason: Annotated[str | None, "why it is that, in words"]
    reason_code: Annotated[str | None, "the same, for programs"]
    relay: Annotated[str | None, "who connects us, where somebody must"]
    rtt_ms: float | None
    send_rate: Annotated[float | None, "of payloads, in bytes a second; None while none was large enough to tell"]
    receive_rate: float | None


class PeerRow(PeerConnection):
    """A peer, in a run."""

    peer: Annotated[str, "its PeerID"]
    run: Annotated[str | None, "that both are in; None of others who are connected"]
    round: int | None
    phase: NotRequired[Annotated[str | None, "of those in a run"]]
    loss: NotRequired[float | None]


class NetcheckReport(TypedDict):
    """How the node stands in the network; docs/nat.md has it all."""

    settled: Annotated[bool, "whether nothing is pending"]
    pending: Annotated[list[str], "what is about to be known: ask again until it is empty"]
    verdict: Annotated[dict[str, Any], "{sentence, action, exit_code}"]
    findings: Annotated[
        list[dict[str, Any]], '{code, level: "ok" | "info" | "warn" | "bad", sentence, action}; codes never change'
    ]
    self: Annotated[dict[str, Any], "what paths follow from: {dialable, mapping, has_relay}"]
    forecast: Annotated[dict[str, str], 'the path to others who are "public", "firewalled", "keeping" or "symmetric"']
    addresses: Annotated[dict[str, list[str]], "{own, found_at, seen_at}"]
    nat: str
    mapping: str
    relays: Annotated[list[dict[str, Any]], "{peer, rtt_ms}"]
    clock_ahead: float | None
    port_mapping: PortMapping | None


class DoctorEvent(TypedDict, total=False):
    """A line about a peer: of the event "peer", "step" (several) or "report", which is the last and has all."""

    event: str
    peer: str | None
    addresses: Annotated[list[dict[str, Any]], "{address, from}"]
    path: Annotated[str | None, "this and the rest of how it is reached as in `peers`"]
    steps: Annotated[list[dict[str, Any]], "of the report: all steps, with the keys of one"]
    live: Annotated[bool, "of a step: whether it was just now"]
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
    attempt: int
    members: int
    contributors: int
    digest: str
    took_part: Annotated[bool, "whether this node was in its roster"]
    seconds: float
    bytes: Annotated[int, "of payloads that this node has sent for it"]
    resent: Annotated[int, "of these, sent a second time because an owner was lost"]
    tokens: int
    loss: float | None
    round_samples: Annotated[int, "tokens behind the round"]
    samples: Annotated[int, "tokens behind the state"]
    applied_at: Annotated[float, "seconds since 1970"]
    phases: Annotated[list[dict[str, Any]], "where the time went; of old rounds not kept"]
    waited_for: Annotated[dict[str, float], "seconds, by member; of old rounds not kept"]
    called: Annotated[bool, "whether the others waited for us"]
    partner: Annotated[str | None, "of a run of replicas: with whom it has exchanged"]
    is_mutual: Annotated[bool, "whether the partner is known to have taken ours as well"]
    lapse: Annotated[str, "why there was no exchange"]
    words: Annotated[str, "either, in words"]


class RunDetails(TypedDict):
    """A run in full."""

    run: str
    name: str
    author: str
    worker_socket: Annotated[str, "a path at which the run's worker talks to the node; empty if there is none yet"]
    manifest: Annotated[dict[str, Any], "as tables"]
    members: Annotated[list[dict[str, Any]], "each with its round, digest, root, phase, step, loss, ..."]
    rounds: Annotated[list[Round], "the last ones"]


class Timeline(TypedDict):
    """What happened in a round, and when; docs/rounds.md has all fields."""

    run: str
    name: str
    round: int
    peer: str
    ready_at: float
    began: float | None
    committed: float | None
    ended: float | None
    attempt: int | None
    leader: str | None
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
    """Which run."""

    run: str
    name: str


class RunLink(RunName):
    """The link by which others join a run."""

    link: Annotated[str, "with addresses of members that are there now"]
    untold: Annotated[list[str], "addresses of this node for which there is no room in it"]


class CreatedRun(RunLink):
    """A run that was founded."""

    left_out: NotRequired[Annotated[list[str], "what of the text at --data is not in the run's data, and why"]]


class Preview(RunName):
    """What joining a run would mean. What the last three say is hearsay."""

    author: str
    manifest: dict[str, Any]
    parameters: int
    state: Annotated[int, "bytes to download first"]
    memory: Annotated[dict[str, Any], "{node, worker (bytes), problem (why there is no room; empty if there is)}"]
    traffic: Annotated[Traffic, "of a round"]
    data: Annotated[dict[str, Any], "{missing (bytes to download), problem (why it is not to be had), words}"]
    round: int
    members: int
    pace: Annotated[float | None, "seconds from round to round; None if not known"]


class PublicRun(RunName):
    """A run as its members announce it."""

    round: int
    members: int
    announced_by: int
    link: str


class SavedState(TypedDict):
    """What was written."""

    round: int
    root: str


class RunCounters(TypedDict):
    """What was counted of a run since this node joined it."""

    samples: int
    failures: dict[str, int]
    durations: Annotated[list[list[Any]], "rounds, each with its upper bound; None for the last"]
    seconds: float
    exchanges: dict[str, int]
    sync: Traffic


class RunMetrics(RunCounters):
    """A run in `/metrics`; no answer of the API."""

    run: str
    participants: int | None
    last_commit: float
    active: bool
    bytes: dict[str, dict[str, int]]
    bulk: dict[str, dict[str, int]]


# -- families of experts ------------------------------------------------------------------------------------


class ExpertRow(TypedDict):
    """A part of a family of experts."""

    part: str
    peer: Annotated[str | None, "who trains it; None if nobody does"]
    run: Annotated[str | None, "in which it is trained"]
    steps: Annotated[int, "that the expert has made"]
    of: Annotated[int, "that it will"]
    loss: float | None
    finished: bool
    published: Annotated[
        dict[str, Any] | None,
        "its furthest file: {round, steps, tokens, loss, bytes, file (BLAKE3, hex), author, holders (how many members "
        "say that they have it), here (whether this node has)}",
    ]


class ExpertSources(TypedDict):
    """What a process needs that asks experts, or answers for them."""

    family: str
    name: str
    me: Annotated[str, "our PeerID"]
    socket: Annotated[str, "a path, at which such processes talk to the node"]
    manifest: Annotated[str, "hex"]
    parts: Annotated[
        list[dict[str, Any]],
        "{part, model, files: [{file, round, steps, finished, path (None if it is not here), peers (who say that they "
        "can be asked)}]}, newest first",
    ]


class FetchedExperts(TypedDict):
    """What was downloaded."""

    folder: str
    experts: Annotated[list[dict[str, Any]], "as in ensemble.json (docs/experts.md)"]
    missing: Annotated[list[str], "parts of which there is no file yet"]
    tokens: Annotated[
        dict[str, Any],
        'what a token is: {kind: "bytes" | "tokenizer", name, end_of_text, and file and blake3 of the tokenizer.json, '
        "or the problem why it is not there}",
    ]


# -- what is done -------------------------------------------------------------------------------------------


class LoginCode(TypedDict):
    """For a link that logs a browser in."""

    code: Annotated[str, "good once, for some minutes"]


class Stopping(TypedDict):
    """It ends."""

    stopping: bool
