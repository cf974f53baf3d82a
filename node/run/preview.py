"""What joining a run would mean, in words that fit one screen, for a person who is about to decide."""

from __future__ import annotations

import json

from shoal.node.api.answers import Answer
from shoal.node.base.quantities import as_duration, size
from shoal.node.manifest.codec import CODECS
from shoal.protocol.catchup.donor import SLOWEST

DAY = 86_400
METHODS = {  # what a member does in a round; the words about codecs follow
    "ddp": "one step together, by the average of what all make of {batch}; gradients are sent",
    "diloco": "{steps} alone, then an average; changes are sent",
    "diloco-delayed": "{steps} alone, while the average of the steps before is made; changes are sent",
    "diloco-eager": "{steps} alone, while the average of the steps before is made, of which the own share counts at "
    "once; changes are sent",
    "co2": "{steps} alone, while the average of the weights before them is made; weights are sent",
    "streaming-diloco": "{steps} alone, in which each fragment of the model is averaged once, one after the other; "
    "changes are sent",
    "sparseloco": "{steps} alone, then an average of the largest changes, the others wait for later rounds; they are "
    "sent",
    "noloco": "{steps} alone, in which each pulls and is pulled by one partner; changes and weights are sent",
    "experts": "each part of the data by a peer alone, {steps} a round, and no average with the others; files of "
    "experts are sent, as weights",
    "gossip": "{steps} alone, in which each takes the average with one partner; weights are sent",
}


def preview_words(preview: Answer, line: tuple[int, int] = (0, 0)) -> list[list[str]]:
    """Rows of a label and a sentence, by the other keys of a preview. They may quote what strangers have written.

    `line`: bytes a second up and down of this node's line, 0 where not known.
    """
    manifest = preview["manifest"]
    return [
        ["model", _model(manifest["model"], preview["parameters"])],
        ["data", preview["data"]["words"]],
        ["method", _method(manifest)],
        _length(preview),
        ["memory", memory_words(preview["memory"])],
        ["traffic", _traffic(preview)],
        *([["line", words]] if (words := _line(preview, *line)) else ()),
    ]


def _model(model: Answer, parameters: int) -> str:
    if model["name"] == "custom":
        return f"a script's own, of {parameters:,} parameters: who trains has the script, which makes the module"
    if model["name"] in ("flow", "router"):
        sees = f"pictures of {model['side']:,} x {model['side']:,} pixels in {model['classes']:,} classes"
        return f"{model['name']} with {parameters:,} parameters: {model['layers']} layers of {model['width']}, {sees}"
    sees = f"{model['vocab']:,} tokens, context {model['context']:,}"
    if model["name"] == "hf":
        return _library_model(model, parameters, sees)
    shape = f"{model['layers']} layers of {model['dim']}, {sees}"
    return f"{model['name']} with {parameters:,} parameters: {shape}"


def _library_model(model: Answer, parameters: int, sees: str) -> str:
    """A model of transformers, whose config a stranger has written."""
    name = f"{str(json.loads(model['config'])['model_type'])[:40]} of transformers"
    if (lora := model["lora"]) is None:
        return f"{name} with {parameters:,} parameters: {sees}"
    base = "the run's seed" if lora["base"] == "seed" else f"weights {model['base'][:8]} of your own (--weights)"
    frozen = f"{model['frozen']:,} frozen parameters from {base}"
    return f"{name}: adapters of rank {lora['rank']:,} with {parameters:,} parameters on {frozen}, {sees}"


def _method(manifest: Answer) -> str:
    method, codec = manifest["method"], manifest["codec"]
    samples = "pictures" if manifest["data"]["name"] == "digits" else "sequences"
    there, back = (CODECS[codec[way]].words for way in ("scatter", "gather"))
    back_again = {"gossip": there}.get(method["name"], back)  # in gossip only the partner's contribution comes back
    what_else = "the weights" if method["name"] == "noloco" else "the mean"
    means = there if there == back_again else f"{there}, {what_else} {back}"
    steps = f"{method['inner_steps']:,} steps of {method['batch']:,} {samples}"
    what = METHODS[method["name"]].format(steps=steps, batch=f"{method['batch']:,} {samples}")
    return f"{method['name']}: {what} {means}"


def _length(preview: Answer) -> list[str]:
    """The label and the words for a run's length and number of members."""
    members = f"{preview['members']:,} member{'s' if preview['members'] != 1 else ''}"
    experts = preview["manifest"].get("experts")
    if experts is None:
        return ["rounds", _rounds(preview, members)]
    steps = sorted({part["steps"] or experts["steps"] for part in experts["parts"]})
    each = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
    parts = len(experts["parts"])
    return ["parts", f"{parts:,}, of {each} steps{' each' if parts > 1 else ''}; {members}"]


def _rounds(preview: Answer, members: str) -> str:
    last = preview["manifest"]["rounds"]["last"]
    count = f"{preview['round']:,}" if preview["round"] else "none"
    done = f"{count} of {last:,} done" if last else f"{count} done, and no last one"
    pace = f"; about one every {as_duration(preview['pace'])}" if preview["pace"] else ""
    return f"{done}; {members}{pace}"


def memory_words(memory: Answer, train: bool = True) -> str:
    """How much memory a run takes on this node, if it is to `train` or only keeps the state and votes."""
    if not train:
        return f"about {_about(memory['node'])} for the node, which does not train"
    node, worker = memory["node"], memory["worker"]
    whole = f"about {_about(node + worker)}"
    return f"{whole}: {_about(node)} for the node, {_about(worker)} to train, partly on a GPU if used"


def _traffic(preview: Answer) -> str:
    if preview["manifest"].get("experts") is not None:
        return (
            f"none to train; files of experts, about {_about(4 * preview['parameters'])} each, when they are published"
        )
    sent = preview["traffic"]["sent"]
    daily = f", {_about(sent * DAY / preview['pace'])} a day" if preview["pace"] else ""
    return f"about {_about(sent)} a round{daily}, each way; {_about(preview['state'])} to begin with"


def _line(preview: Answer, up: int, down: int) -> str:
    """How long this node's line takes for that; empty if not known, or there is no traffic."""
    if preview["manifest"].get("experts") is not None or not (up or down):
        return ""
    if down and (never := _never(preview, down)):
        return never
    traffic, pace = preview["traffic"], preview["pace"]
    ways = [(traffic["sent"], up), (traffic["received"], down)]
    each = max(count / rate for count, rate in ways if rate)
    least = "" if up and down else "at least "
    begin = f"about {as_duration(_seconds_to_begin(preview, down))} to begin with, and " if down else ""
    too_slow = "; rounds are faster: this node would hold them up, or be left out" if pace and each > pace else ""
    return f"this node's takes {begin}{least}{as_duration(each)} a round{too_slow}"


def _never(preview: Answer, down: int) -> str:
    """Why this node would never have the state that the others have; empty if nothing speaks for that.

    Members keep results for a joiner up to some times the size of a state, but on such a line they only get more.
    """
    result, pace = preview["result"], preview["pace"]
    state = f"this node's takes about {as_duration(preview['state'] / down)} for the state"
    if pace and result >= down * pace:
        return f"{state}, and {as_duration(result / down)} for a round's result: it would never catch up"
    return f"{state}, longer than members keep it for a joiner" if result and down < SLOWEST else ""


def _seconds_to_begin(preview: Answer, down: int) -> float:
    """For the state, and for the results of the rounds that go on meanwhile."""
    results = preview["result"] / preview["pace"] if preview["pace"] else 0.0
    seconds: float = preview["state"] / (down - results)
    return seconds


def _about(count: float) -> str:
    """A number of bytes, rounded to two significant digits."""
    amount, unit = size(count).split(" ")
    whole = float(amount)
    return f"{whole:.1f} {unit}" if whole < 10 else f"{round(whole, -1 if whole >= 100 else 0):.0f} {unit}"
