"""What experts on pictures need beside themselves: one router, which knows as many clusters as there are."""

from __future__ import annotations

from shoal.node.experts.spec import ExpertsSpec
from shoal.node.spec.flow import FlowSpec, PictureSpec, RouterSpec
from shoal.node.spec.model import AnyModel


def check_router(model: AnyModel, experts: ExpertsSpec) -> None:
    """ValueError unless a family of this model has a router exactly if it is one of pictures, and one that fits."""
    routers = [part.model for part in experts.parts if isinstance(part.model, RouterSpec)]
    if not isinstance(model, PictureSpec):
        if routers:
            raise ValueError("a router tells between experts on pictures, and these are on text: leave it out")
        return
    if not isinstance(model, FlowSpec):
        raise ValueError("the experts of a family of pictures are of kind flow; only a part of it is a router")
    if len(routers) != 1 or experts.clusters is None:
        raise ValueError(
            'experts on pictures need clusters and one router: a part with [experts.parts.model] name = "router"'
        )
    router = routers[0]
    if router.experts != experts.clusters.count:
        raise ValueError(f"the router knows {router.experts} clusters, and there are {experts.clusters.count}")
    others = [part.model for part in experts.parts if isinstance(part.model, PictureSpec)]
    if any((each.side, each.classes) != (model.side, model.classes) for each in others):
        raise ValueError("all models of a family see pictures of one size and the same classes")
