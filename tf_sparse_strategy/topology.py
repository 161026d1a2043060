"""Who the workers are: P workers on M nodes, and the three groups they communicate in."""

import collections
import dataclasses
import enum
from collections.abc import Sequence


class Group(enum.Enum):
    """The workers that take part in a collective, seen from one worker.

    GLOBAL: all P workers. LOCAL: the workers of this node (fast links). CROSS: the workers with
    this worker's local index, one on each node (slow links).
    """

    GLOBAL = "global"
    LOCAL = "local"
    CROSS = "cross"


@dataclasses.dataclass(frozen=True)
class Topology:
    """Places P workers on M nodes.

    Args:
      nodes: the node index of each rank, length P. Ranks of one node need not be contiguous.
      rank: this worker, 0 <= rank < P.

    Raises:
      ValueError: `nodes` is empty or `rank` is outside it.

    Example:
      >>> Topology(nodes=(0, 0, 1, 1), rank=2).ranks(Group.CROSS)
      (0, 2)
    """

    nodes: tuple[int, ...]
    rank: int

    def __post_init__(self):
        if not 0 <= self.rank < len(self.nodes):
            raise ValueError(
                f"rank={self.rank} is not one of the {len(self.nodes)} workers in "
                f"nodes={self.nodes}; pass 0 <= rank < len(nodes)."
            )

    @classmethod
    def from_node_keys(cls, keys: Sequence[int], rank: int) -> "Topology":
        """Numbers nodes by first appearance of their key (any hashable that names a host)."""
        order = {key: index for index, key in enumerate(dict.fromkeys(keys))}
        return cls(nodes=tuple(order[key] for key in keys), rank=rank)

    def of(self, rank: int) -> "Topology":
        """The same workers, seen from `rank`."""
        return dataclasses.replace(self, rank=rank)

    @property
    def num_workers(self) -> int:
        """P."""
        return len(self.nodes)

    @property
    def num_nodes(self) -> int:
        """M."""
        return len(set(self.nodes))

    @property
    def node_sizes(self) -> tuple[int, ...]:
        """Workers on each node."""
        return tuple(size for _, size in sorted(collections.Counter(self.nodes).items()))

    @property
    def is_uniform(self) -> bool:
        """Whether every node has the same number of workers, as hierarchical schemes need."""
        return len(set(self.node_sizes)) == 1

    @property
    def is_nested(self) -> bool:
        """Whether several nodes have the same number of workers, more than one: both groups have partners."""
        return self.is_uniform and 1 < self.num_nodes < self.num_workers

    @property
    def local_workers(self) -> int:
        """G: workers on this node (the same on every node when `is_uniform`)."""
        return len(self.ranks(Group.LOCAL))

    @property
    def node(self) -> int:
        """This worker's node."""
        return self.nodes[self.rank]

    @property
    def local(self) -> int:
        """This worker's index within its node."""
        return self.ranks(Group.LOCAL).index(self.rank)

    def ranks(self, group: Group) -> tuple[int, ...]:
        """The ranks of this worker's `group`, ascending."""
        if group is Group.GLOBAL:
            return tuple(range(self.num_workers))
        if group is Group.LOCAL:
            return tuple(r for r, node in enumerate(self.nodes) if node == self.node)
        own, seen, across = self.local, collections.Counter(), []
        for rank, node in enumerate(self.nodes):
            if seen[node] == own:
                across.append(rank)
            seen[node] += 1
        return tuple(across)

    def by_column(self) -> tuple[int, ...]:
        """All ranks, those with the first local index first: CROSS groups one after the other.

        Example:
          >>> Topology(nodes=(0, 0, 1, 1), rank=2).by_column()
          (0, 2, 1, 3)
        """
        return tuple(rank for one in self.ranks(Group.LOCAL) for rank in self.of(one).ranks(Group.CROSS))

    def size(self, group: Group) -> int:
        """Number of workers in this worker's `group`."""
        return len(self.ranks(group))

    def is_trivial(self, group: Group) -> bool:
        """Whether nobody has a partner in its `group`, so that all may skip a collective."""
        sizes = {Group.GLOBAL: self.num_workers, Group.LOCAL: max(self.node_sizes)}
        return sizes.get(group, self.num_nodes) == 1

    def index(self, group: Group) -> int:
        """This worker's position within its `group`."""
        return self.ranks(group).index(self.rank)
