"""What a node answers: the seam between the daemon and everything that asks it (HTTP API, page, tests).

Every answer is plain JSON: dicts, lists, strings, numbers, booleans, None. A key once published keeps its
meaning; new keys may appear, and readers ignore what they do not know.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

from shoal.protocol.errors import LocalError

Answer = dict[str, Any]
MIN_PREFIX = 8  # hex characters of a run id: short enough to type, long enough not to collide


class UnknownRun(LocalError):
    """The caller named a run that this node does not have, or by a name that fits several."""


class UnknownRound(LocalError):
    """The caller named a round of which this node keeps nothing."""


class NodeService(Protocol):
    """A running node. Raises LocalError, RemoteError or TransportError; never anything else on purpose.

    `run` is a run's id in hex, a prefix of it of at least `MIN_PREFIX` characters, or its name.
    """

    def status(self) -> Answer:
        """{version, peer, state, evidence, peers, obstacle, waits, reachability, addresses, relays, nat, ...}.

        `state` is "SOLO", "CONNECTED", "IN-ROUND" or "SPLIT", `evidence` what SPLIT is said on, else None; `peers` is
        the number of peers with a connection, `obstacle` a sentence: why the node is not where it should be; `waits`:
        that is no fault, as it is the first of all to be back; `untold_addresses` are too many to tell others;
        `memory` is the daemon's, in bytes; `ending`: it was asked to stop, and says good-bye to its runs and saves what
        must be.
        `limits` are the owner's: {max_up, max_down (bytes a second), max_per_day, used_today (bytes), goes_on_at}, None
        where there is none; `paused` says why the node is in no run for the rest of the day, if so, `warnings`
        ([{code, words}]) that it soon will be; `traffic` is {sent, received}: all bytes on the wire since it started.
        `reachability` is "public", "nat" or "unknown"; `dht` is {servers (that we know), serves (others may ask us and
        store with us), records (that we hold)}. `relays` connect others with us; `relaying` is {reservations, circuits,
        carried_bytes}: what others have of us. `port_mapping` is {protocol, external, error, behind_another_nat,
        pending}: what the router lets in; None where no router is asked.
        Each of `runs`: {run, name, round, members, digest, loss, step, samples}, and what else is known:
        phase ("failed" if the run has ended on this node, "finished" after its last round, "paused"), failure (why it
        failed), worker_failure (why it trains nothing here until somebody mends that: no other worker is started),
        worker_lost (why its last worker ended, until another makes a step),
        waiting_for (a sentence: what holds it up), root, trains, is_creator, tokens_per_second, bytes_sent,
        bytes_received, bulk (of these, the bytes of payloads by the path that they took: {"direct"|"punched"|"relayed":
        {sent, received}}), warnings ([{code, words}]: what is not as it should be), last, checkpoint
        (the round of the newest one on this node's disk); of the worker: device (in words), worker_memory and
        device_memory (bytes), micro_batch (sequences that it works on at once), utilisation (the share of its time in
        which it trains), model_flops_utilization (the share of what the device could compute that training takes).
        """
        ...

    def peers(self) -> list[Answer]:
        """[{peer, run, round, path, reason, reason_code, relay, rtt_ms, send_rate, receive_rate}].

        `path` is "direct", "punched" or "relayed", None without a connection; `relay` is who
        connects us, where somebody must; `reason` says why it is that, in words,
        `reason_code` for programs (shoal.protocol.account). Rates are those of payloads, in bytes a second, None while
        none was large enough to be measured.
        """
        ...

    def netcheck(self) -> Answer:
        """How the node stands in the network: {settled, pending, verdict, findings, self, forecast, addresses, ...}.

        The first question begins to look, and `pending` names what is about to be known: ask again until it is empty.
        `verdict` is {sentence, action, exit_code}; each of `findings` {code, level: "ok"|"info"|"warn"|"bad", sentence,
        action}, with codes that never change; `self` what paths follow from ({dialable, mapping, has_relay}), and
        `forecast` the path that will be reached with others who are "public", "firewalled", "keeping" or "symmetric".
        docs/nat.md has it all.
        """
        ...

    def examine(self, peer: str) -> AsyncGenerator[Answer, None]:
        """Why a peer is reached as it is, or not: {event: "peer" | "step" | "report", ...}, as it is found out.

        `peer` is a PeerID, some characters of one that is known here, or a multiaddr. LocalError before the first event
        if nobody is meant. "peer" has {peer, path, addresses: [{address, from}]}; "step" what was tried, `live` if just
        now: {live, at, way, where, code, words, seconds, again, times}, see shoal.protocol.journal; "report", the last,
        all of it, with path, reason, reason_code, rtt_ms, send_rate, receive_rate as in `peers`, rate_note, both ends,
        {here: {reachability, nat, relays, addresses, ports}, there, there_note}, and the verdict {code, side, sentence,
        advice}, see shoal.node.doctor.verdict.
        """
        ...

    def run_details(self, run: str) -> Answer:
        """{run, name, author, worker_socket, manifest, members, rounds}: the manifest as tables, a dict per member.

        At `worker_socket`, a path, the run's worker talks to the node (worker/messages.py); empty if there is none yet.
        """
        ...

    def rounds(self, run: str, last: int | None = None) -> list[Answer]:
        """Committed, oldest first: [{round, attempt, members, contributors, digest, seconds, bytes}], and more.

        `last` (`?last=N` over HTTP) asks for the last ones only. Of the older ones phases and waited_for are not kept.
        `bytes` are those of the payloads that this node has sent for the round's all-reduce, `resent` those of them
        that it sent a second time, because an owner was lost; `took_part` is whether it was in the round's roster;
        `applied_at` is when it was applied here (seconds since 1970), `round_samples` and `samples` the tokens behind
        the round and behind the state, `waited_for` the seconds for which each member was waited for, as seen from
        here, `called` whether the others waited for us, and `phases` where the time went: docs/metrics.md has them all.

        Of a run of replicas they are this node's alone: `partner` is with whom it has exchanged (`is_mutual`: who is
        known to have taken ours as well), `lapse` why there was none, `words` either in words, and `digest` its root.
        """
        ...

    def timeline(self, run: str, round: int) -> Answer:
        """{run, name, round, peer, ready_at, phases, events, traffic, ...}: what happened in a round, and when.

        The last rounds are kept, also over a restart, and the one that goes on is shown as far as it is: docs/rounds.md
        has all fields. UnknownRound if nothing of it is kept.
        """
        ...

    def meters(self) -> list[Answer]:
        """What was counted of each run since this node joined it: see run/view.py."""
        ...

    def run_link(self, run: str) -> Answer:
        """{run, name, link, untold}: the link by which others join, with addresses of members that are there now.

        `untold` are addresses of this node for which there is no room in it.
        """
        ...

    async def preview_run(self, link: str) -> Answer:
        """What joining a run would mean; nothing is joined. `link` is a run's link, its id or a prefix of that.

        {run, name, author, manifest, parameters, state, memory: {node, worker, problem}, traffic: {sent, received},
        data: {missing, problem, words}, round, members, pace}: bytes, `traffic` those of a round, `state` and `missing`
        those to download first; `problem` is why this machine cannot have the data, or has no room for the run, empty
        if it can. The last three are what the one says who told us, `pace` in seconds from round to round, None if it
        is not known.
        """
        ...

    async def create_run(self, manifest_toml: str, train: bool, checkpoints: Sequence[str] = ()) -> Answer:
        """Sign the manifest, found its run and join it: as `run_link`. From a checkpoint's folder, it goes on there.

        And left_out, if there is any: phrases that say what of the text at --data is not in the run's data, and why,
        or has another name there.
        The experts of a family may begin with several checkpoints, one of each model.
        """
        ...

    async def join_run(self, link: str, train: bool, checkpoint: str = "") -> Answer:
        """Fetch the manifest and join: as `run_link`. `link` as in `preview_run`.

        With the checkpoint that the run goes on from there is nothing to download.
        """
        ...

    async def public_runs(self) -> list[Answer]:
        """Runs that were announced in the DHT: [{run, name, round, members, announced_by, link}]; all of it hearsay."""
        ...

    async def leave_run(self, run: str) -> Answer:
        """Say good-bye to the members and stop its worker: {run, name}."""
        ...

    def experts(self, family: str) -> list[Answer]:
        """[{part, peer, run, steps, of, loss, finished, published}]: the parts of a family of experts that we are in.

        `peer` is who trains it, in `run`, None if nobody does; `steps` are those that the expert has made, `of` those
        that it will; `published` is its furthest file: {round, steps, tokens, loss, bytes, file (BLAKE3, hex), author,
        holders (how many members say that they have it), here (whether this node has)}, None if there is none.
        """
        ...

    async def expert_sources(self, family: str) -> Answer:
        """{family, name, me, socket, manifest, parts}: what a process needs that asks experts, or answers for them.

        `socket` is a path (node/asking/), `me` our PeerID. `parts`: [{part, model, files: [{file, round, steps,
        finished, path, peers}]}], newest first: `path` is where a file lies here, None if it does not, `peers` are
        those that say that they can be asked.
        """
        ...

    async def fetch_experts(self, family: str, folder: str) -> Answer:
        """Download all published experts into a folder (absolute): {folder, experts, missing, tokens}.

        Each file is checked by its hash, each card by its author's signature; beside them is an ensemble.json
        (docs/experts.md), whose `experts` these are. `missing` are the parts of which there is no file yet. `tokens`
        is what a token is: {kind: "bytes" | "tokenizer", name, end_of_text}, with {file, blake3} of the tokenizer.json,
        or the problem why it is not there.
        """
        ...

    async def save_state(self, run: str, path: str, own: bool = False) -> Answer:
        """Write state.safetensors, as this peer holds it, to an absolute path: {round, root}.

        `own`: the weights of its worker, where they differ from the agreed ones, after the run's last round.
        """
        ...

    async def stop(self) -> None:
        """Begin to leave and end; returns at once, so that the caller still gets its answer."""
        ...


def find_run(wanted: str, known: Mapping[str, str], kind: str = "run") -> str:
    """The id that `wanted` means among `known` (id in hex -> name), all of a `kind`; UnknownRun if none or several."""
    if wanted in known:
        return wanted
    lowered = wanted.lower()
    found = [run for run, name in known.items() if name == wanted]
    if len(wanted) >= MIN_PREFIX:
        found += [run for run, name in known.items() if run.startswith(lowered) and name != wanted]
    if len(found) == 1:
        return found[0]
    if found:
        raise UnknownRun(f"'{wanted}' means several runs: {_listing(found, known)}; give more of the id")
    raise UnknownRun(f"this node is in no {kind} '{wanted}'; it is in {_listing(list(known), known) or 'none'}")


def _listing(runs: list[str], known: Mapping[str, str]) -> str:
    return ", ".join(f"{run[:MIN_PREFIX]} ({known[run]})" for run in runs)
