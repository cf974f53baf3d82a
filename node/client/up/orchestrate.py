"""Carries out one `shoal up`, from its options to its exit code, and leaves no process behind that it started.

The event loop handles signals: the first one cancels everything. Before any child has been started, nothing at all is
left; afterwards a report is, and the children are ended synchronously on the way out,
where no second signal can interrupt that. Output is written by a thread, so that signals are handled and the play goes
on while nobody reads it; once the reader has closed the pipe, the play ends.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from shoal.node.api.answers import Answer
from shoal.node.base.devices import check_is_here
from shoal.node.base.exits import Exit
from shoal.node.base.fork_server import ForkServer
from shoal.node.base.lines import PARTING, LineStream
from shoal.node.base.options import UpOptions
from shoal.node.base.pools import DISK
from shoal.node.base.refusals import reason
from shoal.node.base.signals import on_ending
from shoal.node.client.report.page import make_report
from shoal.node.client.up.display import LineDisplay, console_on, make_display
from shoal.node.client.up.measuring import Replicas, measure, train_references
from shoal.node.client.up.peers import LocalPeer
from shoal.node.client.up.plan import (
    Plan,
    check_room,
    check_text,
    chosen_manifest,
    make_plan,
    prepare_folder,
    remove_folder,
    resumed_manifest,
    to_toml,
)
from shoal.node.client.up.processes import Children, Jobs, fork_server
from shoal.node.client.up.resume import Resumption, choose, survey
from shoal.node.client.up.stage import play
from shoal.node.client.up.swarm import Metrics, Swarm, Unread
from shoal.node.client.up.verdict import Finding, Outcome, PeerEnd, as_json, in_words, problems
from shoal.node.client.waiting import REWRITTEN_EVERY
from shoal.protocol.base.errors import LocalError, ShoalError

# -- after the last round ------------------------------------------------------------------------------------------


async def save_states(plan: Plan, swarm: Swarm) -> tuple[PeerEnd, ...]:
    """Let every live peer write its state, and compare the files, not what the peers say of themselves.

    Where workers' weights differ from the agreed state, these are written, too.
    """
    saved = await asyncio.gather(*(_save(peer, swarm.run, peer.state_file) for peer in swarm.live))
    if _has_own_weights(plan):
        await asyncio.gather(*(_save(peer, swarm.run, peer.own_file, own=True) for peer in swarm.live))
    answers = dict(zip([peer.name for peer in swarm.live], saved, strict=True))
    return tuple(_end(peer, plan, swarm, answers.get(peer.name)) for peer in swarm.peers)


async def measure_all(plan: Plan, swarm: Swarm, ends: tuple[PeerEnd, ...], jobs: Jobs, baseline: bool) -> Finding:
    """Measure the state of the first live peer, and all peers' own weights; train the references if `baseline`."""
    device = plan.device_of(plan.peers[0])
    saved = [peer for peer, end in zip(swarm.peers, ends, strict=True) if end.file_hash]
    swarm.note("validating", "measuring the validation loss before and after")
    with swarm.waiting("measuring the validation loss"):
        initial, (final, replicas) = await asyncio.gather(
            jobs.run("validate-initial", "validate", plan.manifest_file, "initial", device, *plan.data),
            _measure(plan, jobs, device, saved),
        )
    references = None
    if baseline:
        with swarm.waiting("training references"):
            references = await train_references(plan, jobs, swarm.note)
    tokens = max(int(peer.row.get("samples") or 0) for peer in swarm.peers)
    return Finding(
        plan,
        swarm.ledger,
        ends,
        final["parameters"],
        tokens,
        initial["loss"],
        final["loss"],
        final["validation_tokens"],
        references,
        final["sample"],
        replicas,
    )


async def _measure(plan: Plan, jobs: Jobs, device: str, saved: list[LocalPeer]) -> tuple[Answer, Replicas | None]:
    """The answer of `validate` for the play's result, and the losses of its replicas, if the method has any."""
    if _has_own_weights(plan):
        return await measure(plan, jobs, device, saved)
    state = saved[0].state_file
    return await jobs.run("validate-final", "validate", plan.manifest_file, state, device, *plan.data), None


def _has_own_weights(plan: Plan) -> bool:
    """Whether peers' weights differ until the end, or even there."""
    return plan.manifest.method.has_replicas or plan.manifest.method.has_own_weights


async def _save(peer: LocalPeer, run: str, file: Path, own: bool = False) -> Answer:
    return await peer.ask(lambda client: client.save_state(run, str(file), own=own))


def _end(peer: LocalPeer, plan: Plan, swarm: Swarm, saved: Answer | None) -> PeerEnd:
    if saved is None:
        return PeerEnd(peer.name, "killed", peer.round, str(peer.row.get("root", "")), device=peer.device)
    file_hash = hashlib.sha256(peer.state_file.read_bytes()).hexdigest()
    came = peer.name == plan.newcomer
    first = swarm.ledger.first_round_of(peer.name) if came else None
    outcome: Outcome = "joined" if came else "finished"
    return PeerEnd(peer.name, outcome, saved["round"], saved["root"], file_hash, first, peer.device)


def main(options: UpOptions) -> int:
    """Do what the options ask for; returns the exit code. ShoalError if there is no verdict."""
    check_is_here(options.devices)
    if options.resume is not None:  # problems with the options are reported before a folder is made
        survey(options.resume)
    else:
        check_room(chosen_manifest(options), options)
    command = _Command(options, *prepare_folder(options.out), LineStream(sys.stderr if options.json else sys.stdout))
    try:
        code = asyncio.run(command.unless_signalled())
    finally:  # wait until the output is read, but only briefly after a signal
        command.stream.drain(PARTING if command.received else None)
    stream = command.stream
    if options.json and command.answer is not None and not command.received:  # nobody may read it
        print(json.dumps(command.answer), flush=True)
    elif not options.json and code == Exit.OK and stream.failure is not None and not stream.is_unread:
        raise LocalError(f"what was to be printed cannot be written: {reason(stream.failure)}", code="unwritable")
    return code


class _Command:
    """One call of `shoal up`, and the signals that it has received."""

    def __init__(self, options: UpOptions, out: Path, before: Path, stream: LineStream) -> None:
        """`before` is the last part of the path `out` that this command has not made."""
        self.stream = stream
        self.received: list[signal.Signals] = []
        self.answer: dict[str, Any] | None = None  # the object of `--json`
        self._options, self._out, self._before = options, out, before

    async def unless_signalled(self) -> int:
        """The exit code: of the verdict, or of the signal or broken pipe that came before it."""
        work = asyncio.create_task(self._run())

        def stop(number: signal.Signals) -> None:
            self.received.append(number)
            work.cancel()

        on_ending(stop)
        try:
            code = await work
            return 128 + self.received[0] if self.received else code  # heard as the children were ended
        except asyncio.CancelledError:
            if not self.received:
                raise
            return 128 + self.received[0]
        except Unread:  # the shell's exit code for a program without a handler for it
            return 128 + signal.SIGPIPE

    async def _run(self) -> int:
        log = self._out / "logs" / "fork-server.log"
        log.parent.mkdir()
        with fork_server(log) as server:
            try:
                await server.ready()  # takes seconds
            except asyncio.CancelledError:
                server.close()
                remove_folder(self._out, self._before)
                raise
            return await self._play(server)

    async def _play(self, server: ForkServer) -> int:
        out, console = self._out, console_on(self.stream)
        say = LineDisplay(console).say
        with Metrics(out / "metrics.jsonl") as metrics, Children(server=server) as children:
            try:
                with make_display(console) as display:
                    swarm = Swarm(metrics, display, lambda: self.stream.is_unread and not self._options.json)
                    jobs = Jobs(children, out, self._options.weights)
                    async with _looking(display, jobs):
                        finding = await _play(self._options, out, swarm, children, jobs)
            except (ShoalError, asyncio.CancelledError, Unread) as error:
                metrics.write("event", event="ended", text=str(error) or "interrupted")
                await _leave(out, metrics, children, say)
                raise
            code, answer, words = Exit.FAILED if problems(finding) else Exit.OK, as_json(finding), in_words(finding)
            metrics.write("result", exit_status=code, words=words, sample=finding.sample, **answer)
            for line in words:
                say(line)
            await _leave(out, metrics, children, say)
        self.answer = answer
        return code


async def _leave(out: Path, metrics: Metrics, children: Children, say: Callable[[str], None]) -> None:
    """End all child processes and write the report; the verdict does not depend on the report."""
    children.stop(say)
    if lack := await metrics.settle():
        say(lack)
    try:
        say(f"The report: {await DISK.run(make_report, out)}")
    except Exception as error:
        say(f"No report could be made: {error}")
    say(f"Logs, metrics and states: {out}")


@asynccontextmanager
async def _looking(display: LineDisplay, jobs: Jobs) -> AsyncIterator[None]:
    """While the context is open, show how far that is which is waited for."""

    async def look() -> None:
        while True:
            with suppress(Exception):  # the play does not depend on what is shown of it
                display.look(await DISK.run(jobs.look))
            await asyncio.sleep(REWRITTEN_EVERY)

    looking = asyncio.create_task(look())
    try:
        yield
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


async def _play(options: UpOptions, out: Path, swarm: Swarm, children: Children, jobs: Jobs) -> Finding:
    plan = await _make_plan(options, out, jobs, swarm)
    await play(plan, swarm, children)
    with swarm.waiting("saving the states of all peers"):
        ends = await save_states(plan, swarm)
    children.stop(swarm.say)  # leaves the processors to the measurements
    return await measure_all(plan, swarm, ends, jobs, options.baseline)


async def _make_plan(options: UpOptions, out: Path, jobs: Jobs, swarm: Swarm) -> Plan:
    """The plan, with the manifest's text of --data, which is read once for its digest."""
    digest, size = "", 0
    resumed = await _resume(options.resume, jobs, swarm) if options.resume is not None else None
    if options.data:
        read = (resumed.about.decoded_manifest() if resumed else chosen_manifest(options)).data
        paths = [path.absolute() for path in options.data]
        with swarm.waiting("reading the text"):
            corpus = await jobs.run("corpus", "corpus", read.column, read.domain, *paths)
        digest, size = corpus["digest"], corpus["train"] + corpus["validation"]
        sizes = f"{corpus['train']:,} bytes to train on and {corpus['validation']:,} to validate with"
        texts = f"{corpus['files']} {'text' if corpus['files'] == 1 else 'texts'}"
        swarm.note("data", "; ".join([f"{texts}, {sizes}", *corpus["left_out"]]), **corpus)
    manifest = resumed_manifest(options, resumed, digest) if resumed else chosen_manifest(options, digest)
    if options.data:
        check_text(manifest, corpus["train"], corpus["validation"])
    check_room(manifest, options, size)
    plan = make_plan(options, out, manifest, resumed)
    plan.manifest_file.write_text(to_toml(plan.manifest), encoding="utf-8")
    deaths = f"{plan.victim} dies in round {plan.kill_at}" if plan.victim else "nobody dies"
    comes = f"{plan.newcomer} comes at round {plan.join_at}" if plan.newcomer else "nobody comes"
    rounds = f"rounds {resumed.round + 1} to {plan.rounds}" if resumed else f"{plan.rounds} rounds"
    text = f"{len(plan.peers)} peers, {rounds}; {deaths}, {comes}; all files: {out}"
    swarm.note("plan", text, **plan.facts())
    return plan


async def _resume(folder: Path, jobs: Jobs, swarm: Swarm) -> Resumption:
    """The checkpoints to go on from; another process reads every byte of them, as this one has no torch."""

    async def find_damage(paths: Sequence[Path]) -> Mapping[str, str]:
        damaged: Mapping[str, str] = (await jobs.run("verify", "verify", *paths))["damaged"]
        return damaged

    with swarm.waiting("reading the checkpoints"):
        resumed = await choose(folder, find_damage, lambda text: swarm.note("damaged", text))
    text = f"{len(resumed.checkpoints)} of {len(resumed.peers)} peers go on from round {resumed.round}"
    swarm.note("resumed", text, round=resumed.round, run=resumed.about.run)
    return resumed
