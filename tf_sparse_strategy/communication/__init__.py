"""Ways of summing gradients over the workers, behind one interface."""

import difflib

from tf_sparse_strategy.communication.auto import Auto
from tf_sparse_strategy.communication.base import Communication
from tf_sparse_strategy.communication.dense import Dense
from tf_sparse_strategy.communication.dgc import DGC
from tf_sparse_strategy.communication.float16 import Float16
from tf_sparse_strategy.communication.gtopk import GTopK
from tf_sparse_strategy.communication.guarded import Guarded
from tf_sparse_strategy.communication.hitopk import HiTopK
from tf_sparse_strategy.communication.oktopk import OkTopK
from tf_sparse_strategy.communication.piecewise import Piecewise
from tf_sparse_strategy.communication.sharded_topk import ShardedTopK
from tf_sparse_strategy.communication.topk_all_gather import TopKAllGather
from tf_sparse_strategy.communication.torus2d import Torus2D
from tf_sparse_strategy.cost_model import Cost, LinkModel

_SCHEMES = (DGC, Auto, Dense, Float16, GTopK, HiTopK, OkTopK, ShardedTopK, TopKAllGather, Torus2D)
_BY_NAME = {scheme.__name__.lower(): scheme for scheme in _SCHEMES}
_WITH_ARGUMENTS = {
    "guarded": "tss.communication.Guarded(HiTopK(0.01), limit=2.0)",
    "piecewise": "tss.communication.Piecewise([(0, HiTopK(0.01)), (13, Torus2D())])",
}


def get(communication: str | Communication) -> Communication:
    """The `Communication` of a name.

    Args:
      communication: a scheme's name in lower case, for one with its defaults (not `Guarded`, `Piecewise`),
        or an instance.

    Returns:
      The scheme; an instance as it is.

    Raises:
      ValueError: the name is unknown.
      TypeError: neither a name nor a Communication.

    Example:
      >>> get("torus2d")
      Torus2D()
    """
    if isinstance(communication, Communication):
        return communication
    if not isinstance(communication, str):
        kind = "class" if isinstance(communication, type) else type(communication).__name__
        raise TypeError(
            f"communication={communication!r} is a {kind}; pass one of {sorted(_BY_NAME)} or an "
            "instance such as tss.communication.Torus2D()."
        )
    if communication not in _BY_NAME:
        near = difflib.get_close_matches(communication.lower(), [*_BY_NAME, *_WITH_ARGUMENTS], n=1)
        hint = f" Did you mean {_WITH_ARGUMENTS.get(near[0], repr(near[0]))}?" if near else ""
        raise ValueError(
            f"communication={communication!r} is unknown; allowed are {sorted(_BY_NAME)} or an "
            f"instance of tss.communication.Communication.{hint}"
        )
    return _BY_NAME[communication]()


__all__ = [
    "DGC",
    "Auto",
    "Communication",
    "Cost",
    "Dense",
    "Float16",
    "GTopK",
    "Guarded",
    "HiTopK",
    "LinkModel",
    "OkTopK",
    "Piecewise",
    "ShardedTopK",
    "TopKAllGather",
    "Torus2D",
    "get",
]
