"""The admin API as one table: for each operation its path, its request, its answer and its errors.

Everything else about the API follows from the table. The daemon has a handler for each operation, of which
daemon/web/routes.py makes a route (only `login_code` is answered by daemon/web/session.py); the client has a method for
each, and so has the tests' fake node; docs/api.md is printed from the table.

Rules:
- A request is a frozen dataclass. Fields that the path names are in the path, the others in the query of a GET and in
  the JSON body of a POST. A field with a default may be left out or null.
- `run` is a run's id in hex, a prefix of it of at least `MIN_PREFIX` characters, or its name; `family` the same.
- Answers are JSON, see answers.py; errors say whose fault they are, see errors.py. `errors` lists only those that not
  every operation may have.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from shoal.node.api.answers import (
    ChangedSettings,
    Checkpoint,
    ContinuedRun,
    CreatedRun,
    DoctorEvent,
    ExpertRow,
    ExpertSources,
    FetchedExperts,
    FoundRun,
    LeftRun,
    LoginCode,
    NetcheckReport,
    PauseStatus,
    PeerRow,
    Preview,
    PublicRun,
    Round,
    RunDetails,
    RunLink,
    RunName,
    RunRow,
    SavedState,
    Settings,
    Status,
    Stopping,
    Timeline,
    WrittenText,
)
from shoal.node.api.errors import UnknownRound, UnknownRun
from shoal.node.base.room import NoRoom
from shoal.protocol.base.errors import RemoteError, ShoalError, TransportError

QUICK = 15.0  # seconds that a client waits for what is answered from memory
PATIENT = 600.0  # seconds, if the node has to ask peers, to wait for a process, or to write a file
JOINING = 30 * 86_400.0  # seconds, if it may download the run's data first; Ctrl-C ends the wait

P = ParamSpec("P")
A = TypeVar("A")


# -- requests -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EmptyRequest:
    """A request without parameters."""


@dataclass(frozen=True, slots=True)
class PeerRequest:
    """Names a peer."""

    peer: Annotated[str, "a PeerID, some characters of one that is known here, or a multiaddr"]


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Names a run of this node."""

    run: str


@dataclass(frozen=True, slots=True)
class MemberRequest:
    """Names a member of a run of this node."""

    run: str
    peer: Annotated[str, "its PeerID, or the beginning or end of that"]


@dataclass(frozen=True, slots=True)
class ContinueRequest:
    """Asks to go on without a quorum of a run's voters."""

    run: str
    sure: Annotated[bool, "false: only say who is here and who is away"]


@dataclass(frozen=True, slots=True)
class RoundsRequest:
    """Asks for the rounds of a run."""

    run: str
    last: Annotated[int | None, "how many, of the last ones; all by default"] = None


@dataclass(frozen=True, slots=True)
class RoundRequest:
    """Names a round of a run."""

    run: str
    round: int


@dataclass(frozen=True, slots=True)
class CreateRunRequest:
    """A run to found."""

    manifest: Annotated[str, "TOML"]
    train: bool
    checkpoints: Annotated[
        Sequence[str], "paths of checkpoint folders to go on from: one, or for a family one for each model"
    ] = ()
    nonce: Annotated[str, "32 hexadecimal digits: with manifest and node they give the run's id; empty: random"] = ""


@dataclass(frozen=True, slots=True)
class LookupRunsRequest:
    """The manifest of the runs that are sought."""

    manifest: Annotated[str, "TOML"]


@dataclass(frozen=True, slots=True)
class PreviewRunRequest:
    """Names a run that this node need not be in."""

    link: Annotated[str, "a run's link, its id or a prefix of that"]


@dataclass(frozen=True, slots=True)
class JoinRunRequest:
    """A run to join."""

    link: Annotated[str, "a run's link, its id or a prefix of that"]
    train: bool
    checkpoint: Annotated[str, "folder of the checkpoint that the run goes on from: then nothing is downloaded"] = ""


@dataclass(frozen=True, slots=True)
class JoinRunByIdRequest:
    """A run to join, by its id or a prefix of that."""

    run: str
    train: bool
    checkpoint: Annotated[str, "as for /v1/join"] = ""


@dataclass(frozen=True, slots=True)
class SaveStateRequest:
    """Asks for the state of a run to be written to a path."""

    run: str
    path: Annotated[str, "absolute"]
    own: Annotated[bool, "after the last round: the worker's own weights, if they differ from the agreed ones"] = False


@dataclass(frozen=True, slots=True)
class WriteTextRequest:
    """Asks for a text by a run's model."""

    run: str
    prompt: Annotated[str, "what to go on from"]
    max_tokens: Annotated[int | None, "at most; by default 200, or as many as fit in a small context"] = None


@dataclass(frozen=True, slots=True)
class FamilyRequest:
    """Names a family of experts that this node is in."""

    family: str


@dataclass(frozen=True, slots=True)
class FetchExpertsRequest:
    """Asks for the experts of a family to be written to a folder."""

    family: str
    folder: Annotated[str, "absolute"]


@dataclass(frozen=True, slots=True)
class PauseRequest:
    """How long to pause."""

    seconds: Annotated[float | None, "at most a year; until `resume` by default"] = None


@dataclass(frozen=True, slots=True)
class DrainRequest:
    """How long to wait for the rounds under way."""

    within: Annotated[float | None, "seconds after which the node stops in any case; 600 by default"] = None


@dataclass(frozen=True, slots=True)
class ChangeSettingsRequest:
    """Settings to change."""

    settings: Annotated[
        dict[str, Any], "by their keys in config.toml, as they are written there; null takes a line out of it"
    ]


# -- operations ---------------------------------------------------------------------------------------------


class OperationCaller(Protocol):
    """Carries operations out: the client."""

    def call(self, operation: Operation[Any, A], request: Any) -> A:
        """The node's answer to a request."""


@dataclass(frozen=True, slots=True)
class Handler:
    """The function that answers an operation; it gets the fields of the request as keyword arguments."""

    operation: Operation[Any, Any]
    answer: Callable[..., Any]  # returns the answer, an awaitable of it, or an async iterator of lines


class Operation(Generic[P, A]):
    """A row of the table: `P` are the parameters of the request, `A` is the type of the answer.

    As an attribute of a client it is a method: `client.rounds("stdlib", last=3)`.
    """

    name = ""

    def __init__(
        self,
        method: str,
        path: str,
        request: Callable[P, object],
        answer: type[A],
        about: str,
        *errors: type[ShoalError],
        patience: float = QUICK,
        status: int = 200,
        in_lines: bool = False,
        any_version: bool = False,
        on_page: str = "",
    ) -> None:
        """`in_lines`: the answer is a series of JSON lines; `any_version`: clients of all versions may call.

        `on_page`: what was done, in words, when a person does it at the page; empty if the page does not offer it.
        """
        self.method, self.path = method, path
        self.request, self.answer = request, answer
        self.about, self.errors = about, errors
        self.patience, self.status = patience, status
        self.in_lines, self.any_version = in_lines, any_version
        self.on_page = on_page

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, caller: None, owner: type) -> Operation[P, A]: ...
    @overload
    def __get__(self, caller: OperationCaller, owner: type) -> Callable[P, A]: ...
    def __get__(self, caller: OperationCaller | None, owner: type) -> Operation[P, A] | Callable[P, A]:
        if caller is None:
            return self
        return lambda *args, **kwargs: self(caller, *args, **kwargs)

    def __call__(self, caller: OperationCaller, *args: P.args, **kwargs: P.kwargs) -> A:
        """Carry the operation out."""
        return caller.call(self, self.request(*args, **kwargs))

    def handled_by(self, answer: Callable[P, A | Awaitable[A] | AsyncIterator[Any]]) -> Handler:
        """The handler that answers this operation by `answer`."""
        return Handler(self, answer)


def in_lines(
    path: str, request: Callable[P, object], each: type[A], about: str, *errors: type[ShoalError], on_page: str = ""
) -> Operation[P, Iterator[A]]:
    """An operation whose answer is a series of JSON lines, each of the type `each`."""
    answer = cast("type[Iterator[A]]", each)
    return Operation("POST", path, request, answer, about, *errors, patience=PATIENT, in_lines=True, on_page=on_page)


class Operations:
    """The table. The client derives from it, so each operation is a method there."""

    status = Operation(
        "GET",
        "/v1/status",
        EmptyRequest,
        Status,
        "The node as it is now: whether it is alone, in which runs, how far, and what holds it up.",
    )
    peers = Operation(
        "GET",
        "/v1/peers",
        EmptyRequest,
        list[PeerRow],
        "The members of the node's runs, and all other connected peers: how each is reached, why so, and how fast.",
    )
    settings = Operation(
        "GET",
        "/v1/settings",
        EmptyRequest,
        Settings,
        "What the node was started with: what flags, variables of the environment, config.toml and defaults came to.",
    )
    change_settings = Operation(
        "POST",
        "/v1/settings",
        ChangeSettingsRequest,
        ChangedSettings,
        "Change lines of the node's config.toml, all or none. Limits and rules for pausing hold at once, the others "
        "from the next start on, unless a flag or a variable of that start beats them.",
        on_page="changed settings: {settings}",
        patience=PATIENT,
    )
    netcheck = Operation(
        "GET",
        "/v1/netcheck",
        EmptyRequest,
        NetcheckReport,
        "How the node stands in the network. The first call starts to find it out.",
    )
    examine = in_lines(
        "/v1/doctor",
        PeerRequest,
        DoctorEvent,
        "Why a peer is reached as it is, or not: each step as it ends. If no peer is meant, that is an error.",
    )
    runs = Operation("GET", "/v1/runs", EmptyRequest, list[RunRow], "The runs, as in `status`.")
    run_details = Operation(
        "GET", "/v1/runs/{run}", RunRequest, RunDetails, "A run's manifest, members and last rounds.", UnknownRun
    )
    rounds = Operation(
        "GET", "/v1/runs/{run}/rounds", RoundsRequest, list[Round], "Committed rounds, oldest first.", UnknownRun
    )
    timeline = Operation(
        "GET",
        "/v1/runs/{run}/rounds/{round}",
        RoundRequest,
        Timeline,
        "What happened in a round, and when. The last rounds are kept, also over a restart; the current one is shown "
        "as far as it has come.",
        UnknownRun,
        UnknownRound,
    )
    run_link = Operation(
        "GET", "/v1/runs/{run}/link", RunRequest, RunLink, "The link by which others join the run.", UnknownRun
    )
    public_runs = Operation(
        "GET",
        "/v1/discover",
        EmptyRequest,
        list[PublicRun],
        "Public runs that were announced in the DHT; all of it is hearsay.",
        patience=PATIENT,
    )
    preview_run = Operation(
        "POST",
        "/v1/preview",
        PreviewRunRequest,
        Preview,
        "What joining a run would mean; nothing is joined.",
        UnknownRun,
        RemoteError,
        TransportError,
        patience=PATIENT,
        on_page="looked at a run {name}",
    )
    create_run = Operation(
        "POST",
        "/v1/runs",
        CreateRunRequest,
        CreatedRun,
        "Sign the manifest, found its run and join it.",
        NoRoom,
        patience=PATIENT,
    )
    lookup_runs = Operation(
        "POST",
        "/v1/lookup",
        LookupRunsRequest,
        list[FoundRun],
        "The runs of a manifest that this node, peers that it knows, or peers announced in the DHT are in.",
        patience=PATIENT,
    )
    join_run = Operation(
        "POST",
        "/v1/join",
        JoinRunRequest,
        RunLink,
        "Fetch a run's manifest and join it, after downloading its data.",
        UnknownRun,
        RemoteError,
        TransportError,
        NoRoom,
        patience=JOINING,
        on_page="joined a run {name}",
    )
    join_run_by_id = Operation(
        "POST",
        "/v1/runs/{run}/join",
        JoinRunByIdRequest,
        RunLink,
        "The same, with the run in the path.",
        UnknownRun,
        RemoteError,
        TransportError,
        NoRoom,
        patience=JOINING,
    )
    leave_run = Operation(
        "POST",
        "/v1/runs/{run}/leave",
        RunRequest,
        LeftRun,
        "Say goodbye to the run's members, stop its worker and forget the run.",
        UnknownRun,
        patience=PATIENT,
        on_page="left the run {run}",
    )
    continue_run = Operation(
        "POST",
        "/v1/runs/{run}/continue",
        ContinueRequest,
        ContinuedRun,
        "Go on, as a branch of the run's log, with the members that are here, as they can decide nothing.",
        UnknownRun,
    )
    promote_member = Operation(
        "POST",
        "/v1/runs/{run}/promote",
        MemberRequest,
        RunName,
        "Order that a member be given a vote, as the run's author, a steward or a voter.",
        UnknownRun,
    )
    save_state = Operation(
        "POST",
        "/v1/runs/{run}/save",
        SaveStateRequest,
        SavedState,
        "Write the state, as this peer holds it, in the format safetensors.",
        UnknownRun,
        NoRoom,
        patience=PATIENT,
    )
    checkpoints = Operation(
        "GET",
        "/v1/runs/{run}/checkpoints",
        RunRequest,
        list[Checkpoint],
        "The checkpoints of a run on this node's disk, oldest first.",
        UnknownRun,
    )
    write_text = in_lines(
        "/v1/runs/{run}/write",
        WriteTextRequest,
        WrittenText,
        "Write a text with the newest weights of a run, in a process of its own on the CPU; one at a time. It ends "
        "when the caller hangs up.",
        UnknownRun,
        NoRoom,
        on_page="had a text written by the run {run}",
    )
    experts = Operation(
        "GET",
        "/v1/experts/{family}",
        FamilyRequest,
        list[ExpertRow],
        "The parts of a family of experts.",
        UnknownRun,
    )
    expert_sources = Operation(
        "GET",
        "/v1/experts/{family}/sources",
        FamilyRequest,
        ExpertSources,
        "Where the experts of a family are: as files here, and at peers that can be queried.",
        UnknownRun,
    )
    fetch_experts = Operation(
        "POST",
        "/v1/experts/{family}/fetch",
        FetchExpertsRequest,
        FetchedExperts,
        "Download all published experts, each checked by its hash and its author's signature, with an ensemble.json.",
        UnknownRun,
        NoRoom,
        patience=JOINING,
    )
    login_code = Operation(
        "POST",
        "/v1/login/code",
        EmptyRequest,
        LoginCode,
        "A code for a link that opens the page and logs the browser in.",
    )
    pause = Operation(
        "POST",
        "/v1/pause",
        PauseRequest,
        PauseStatus,
        "Leave all runs for a while and free the devices; the node stays, and keeps that over a restart.",
        on_page="paused this node",
        patience=PATIENT,
    )
    resume = Operation(
        "POST",
        "/v1/resume",
        EmptyRequest,
        PauseStatus,
        "End a pause that was asked for; the node enters its runs again unless there is another reason to be paused.",
        on_page="ended the pause of this node",
        patience=PATIENT,
    )
    drain = Operation(
        "POST",
        "/v1/drain",
        DrainRequest,
        Stopping,
        "Stop once the rounds under way are committed here; the answer comes at once.",
        status=202,
        on_page="had this node stop after its rounds",
    )
    stop = Operation(
        "POST",
        "/v1/stop",
        EmptyRequest,
        Stopping,
        "Begin to leave all runs and end; the answer comes at once.",
        status=202,
        any_version=True,
    )


OPERATIONS: tuple[Operation[Any, Any], ...] = tuple(
    each for each in vars(Operations).values() if isinstance(each, Operation)
)
