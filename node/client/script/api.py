"""`join` and `create`: a user's training script as the worker of a run (docs/scripts.md).

    from shoal.node import create, join

    run = join(link) if link else create("digits", method={"inner_steps": 20}, rounds={"last": 30})
    optimizer = run.wrap(optimizer, model)

The training loop stays as it is. The run belongs to this machine's node (SHOAL_HOME), which is started if none runs,
and which stays in the run when the script has ended: run the script again with the run's link, and it goes on.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from shoal.dht.link import looks_like_link, parse_link
from shoal.node.api.answers import Answer
from shoal.node.api.client import Client
from shoal.node.api.errors import find_run
from shoal.node.base.home import find_home
from shoal.node.client.cli.node import ensure_node
from shoal.node.manifest.model import CustomSpec
from shoal.protocol.base.errors import LocalError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from shoal.node.client.script.module import OwnModule
    from shoal.node.client.script.session import Progress, Session, Validate

    Scheduler = TypeVar("Scheduler", bound=torch.optim.lr_scheduler.LRScheduler)

OPEN_WITHIN = 60.0  # seconds in which a node that is in a run listens for its worker
POLL = 0.05

log = logging.getLogger("shoal.script")


def join(link: str) -> Run:
    """Take part in a run: by its link, or by the id or name of one that this machine's node is in already.

    The run is entered only after `wrap` has compared its model with the script's. LocalError if the run trains one of
    Shoal's own models; TransportError if no peer that knows the run can be reached.
    """
    if not isinstance(link, str):
        raise LocalError(
            f"`join` takes a run's link, id or name, and not {link!r}: `create` founds a run", code="not-a-link"
        )
    with ensure_node() as client:
        run = _run_here(client, link)
        if run is None:
            preview = client.preview_run(link)
            _check_is_for_scripts(preview["manifest"])
            run = str(preview["run"])
            whole = link if looks_like_link(link) else run  # the first characters of an id may be another run's later
            return Run(run, {}, Invitation(whole, preview["manifest"]["model"]))
        _wait_until_open(client, run)
        _check_is_for_scripts(client.run_details(run)["manifest"])
    return Run(run, {})


def create(
    name: str,
    *,
    method: Mapping[str, Any] | None = None,
    rounds: Mapping[str, Any] | None = None,
    codec: Mapping[str, Any] | None = None,
    public: bool = False,
) -> Run:
    """Describe a new run; `wrap` creates it, with the script's module, and from then on it has a link for others.

    `method`, `rounds` and `codec` are those tables of a manifest, see docs/methods.md: `method["batch"]` is how many
    samples a step counts for; settings of the inner optimizer have no effect, as the script has its own.
    """
    tables = {"name": name, "method": method, "rounds": rounds, "codec": codec, "public": public}
    return Run("", {key: dict(each) if isinstance(each, Mapping) else each for key, each in tables.items() if each})


@dataclass(frozen=True, slots=True)
class Invitation:
    """A run that the node is not in yet."""

    link: str
    model: Answer  # the table of the run's manifest, of kind custom


@dataclass(frozen=True, slots=True)
class LastSeen:
    """How far the run was when this script's last session in it was closed."""

    progress: Progress
    is_over: bool


class Run:
    """A run that this script takes part in."""

    def __init__(self, id: str, tables: Mapping[str, Any], invitation: Invitation | None = None) -> None:
        self.id = id  # in hex; empty until it is founded
        self._invitation = invitation  # until it is entered
        self._tables = tables
        self._session: Session | None = None
        self._last_seen: LastSeen | None = None
        self._said = ""  # the last words about what is waited for

    def wrap(
        self,
        optimizer: torch.optim.Optimizer,
        model: nn.Module,
        batch_size: int | None = None,
        validate: Validate | None = None,
    ) -> torch.optim.Optimizer:
        """Let `optimizer`, which steps all trained parameters of `model`, train in the run from now on.

        This waits for the run's state and loads it into the model. It returns the optimizer itself: each `step()` is an
        inner step of the run. The step that ends a round hands in the weights, waits if the method waits, and leaves
        the round's result in the model. Parameter groups, state and schedulers stay as they are. A step with
        accumulated gradients counts once; a step that a GradScaler skips does not count.

        Wrapping again, after `close` or when a notebook's cell is run again, resumes: the model has the run's state
        again, and what was wrapped before is replaced.

        The trained parameters are exchanged; buffers, such as BatchNorm's running means, and frozen parameters stay
        this machine's own. `batch_size` is the weight of a step in the rounds' means, by default the manifest's
        `method.batch`. After the run's last round, steps leave the model as it is: see `is_over`.

        `validate` returns the model's validation loss, which the node shows. It is called within `wrap` or `step()`,
        without gradients and in evaluation mode, while the model has the run's committed weights, and so seldom that it
        takes about 1 % of the script's time.
        """
        from shoal.node.client.script.module import OwnModule, unwrapped

        own = OwnModule(model, unwrapped(optimizer, "optimizer"))
        self._session = session = self._attached(own, batch_size, validate)
        try:
            session.start()  # another thread may close it while we wait
        except BaseException:
            self.close()
            raise
        return optimizer

    def follow(self, scheduler: Scheduler) -> Scheduler:
        """Let a scheduler that is stepped with the optimizer follow the run's progress, not this script's.

        Until `close` each of its steps takes it to where the run is, so a script that joins late or misses rounds has
        the same learning rate as the others. Returns the scheduler itself. A scheduler that follows a metric is left
        as it is: step it yourself. LocalError before `wrap`.
        """
        from shoal.node.client.script.hooks import follow
        from shoal.node.client.script.module import unwrapped

        _ = self._wrapped  # raises before `wrap`
        real = unwrapped(scheduler, "scheduler")
        follow(real, lambda: self._session.progress.step if self._session is not None else None)
        return scheduler

    def report(self, loss: float | Tensor) -> None:
        """Report the loss of a step's forward pass, best before the step; it is only shown. Ignored after `close`."""
        if self._session is not None or self._last_seen is None:
            self._wrapped.report(float(loss if isinstance(loss, float) else loss.detach()))

    @property
    def progress(self) -> Progress:
        """How far the run is: its inner steps, the round that is trained, and all members' samples behind it."""
        return self._session_or_last_seen.progress

    @property
    def is_over(self) -> bool:
        """Whether the run's last round is done, and its result in the model."""
        return self._session_or_last_seen.is_over

    @property
    def link(self) -> str:
        """The link by which others join, as of now."""
        if not self.id:
            raise LocalError("the run is founded by `wrap`; before, there is nothing to join", code="script-misused")
        if self._invitation is not None:
            return self._invitation.link
        return str(Client(find_home()).run_link(self.id)["link"])

    def close(self) -> None:
        """Stop taking part; the node stays in the run until `shoal run leave`. `wrap` or `join` resumes.

        This may be called twice, and from any thread: a step that waits for others ends with an error that says so.
        """
        session, self._session = self._session, None
        if session is not None:
            if session.has_begun:
                self._last_seen = LastSeen(session.progress, session.is_over)
            session.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _session_or_last_seen(self) -> Session | LastSeen:
        return self._last_seen if self._session is None and self._last_seen is not None else self._wrapped

    @property
    def _wrapped(self) -> Session:
        """The open session; LocalError if there is none."""
        if self._session is None:
            again = "nothing is trained any more" if self._last_seen is not None else "nothing is trained yet"
            raise LocalError(f"{again}: `optimizer = run.wrap(optimizer, model)` comes first", code="script-misused")
        return self._session

    def _attached(self, own: OwnModule, batch_size: int | None, validate: Validate | None) -> Session:
        """A session that has not started, in the run, which is founded or entered if need be."""
        from shoal.node.client.script.session import attach

        with ensure_node() as client:
            self.id = self.id or self._found(client, own)
            self._enter(client, own)
            socket = _wait_until_open(client, self.id)
        return attach(Path(socket), own, batch_size, self._check_run, validate)

    def _found(self, client: Client, own: OwnModule) -> str:
        from shoal.node.client.script import founding

        run = founding.found(client, find_home(), own, self._tables)
        log.info("founded the run %s", run)
        return run

    def _enter(self, client: Client, own: OwnModule) -> None:
        """Enter the run of the invitation, if there is one; LocalError before that if the module is not the run's."""
        if self._invitation is None:
            return
        own.check_fits(CustomSpec.model_validate_json(json.dumps(self._invitation.model)))
        if _run_here(client, self.id) is None:  # another script may have entered it meanwhile
            client.join_run(self._invitation.link, True)
        self._invitation = None

    def _check_run(self) -> None:
        """Called while a step waits: log what it waits for; LocalError if the node is not in the run any more."""
        row = _row(Client(find_home()).status(), self.id)
        if row is None or row["failure"]:
            raise LocalError(
                f"the node is in this run no more: {row['failure'] if row else 'it was left'}", code="run-left"
            )
        waiting = str(row["waiting_for"] or row["phase"])
        if waiting != self._said:
            self._said = waiting
            log.warning("waiting: %s", waiting, extra={"code": "run-waits"})


def _row(status: Answer, run: str) -> Answer | None:
    return next((row for row in status["runs"] if row["run"] == run), None)


def _run_here(client: Client, text: str) -> str | None:
    """The id in hex of the run that `text` names, if the node is in it; `text` is a link, an id or a name."""
    names = {str(row["run"]): str(row["name"] or row["run"][:8]) for row in client.status()["runs"]}
    if looks_like_link(text):
        run = parse_link(text).run.hex()
        return run if run in names else None
    try:
        return find_run(text, names)
    except LocalError:
        if len(text) == 64:
            return None  # a whole id: peers may know the run
        raise


def _wait_until_open(client: Client, run: str) -> str:
    """Wait until the node listens for the run's worker; returns the path of the socket."""
    deadline = time.monotonic() + OPEN_WITHIN
    while time.monotonic() < deadline:
        row = _row(client.status(), run)
        if row is not None and row["phase"] == "failed":
            raise LocalError(f"the run has failed on this node: {row['failure']}", code="run-failed")
        if row is not None and row["trains"] is False:
            raise LocalError(
                "this node is in the run without training: `shoal run leave` it, and join anew", code="already-in-run"
            )
        is_open = row is not None and row["phase"] not in ("restoring", "paused")
        if is_open and (socket := client.run_details(run)["worker_socket"]):
            return str(socket)
        time.sleep(POLL)
    raise LocalError(f"the node does not get to this run in {OPEN_WITHIN:.0f} s: see `shoal status`", code="not-ready")


def _check_is_for_scripts(manifest: Answer) -> None:
    if manifest["model"]["name"] != "custom":
        raise LocalError(
            f"the run {manifest['name']} trains a model of kind {manifest['model']['name']}, which nodes train "
            "themselves: `shoal run join` takes part in it. A script takes part in runs that a script has created",
            code="other-kind-of-run",
        )
