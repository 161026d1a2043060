"""The sparse schemes in one process, in NumPy, written from the papers and not from our code.

P workers' gradients come as rows; each model keeps its residuals and returns the sum that every worker gets.
All arithmetic is float32 in the order the schemes document: workers of a node in rank order, then nodes.
"""

import statistics

import ml_dtypes
import numpy as np

from tests.mstopk_reference import top_k

_HALVES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def count(density: float, n: int) -> int:
    """K of n elements."""
    return min(n, max(1, round(density * n)))


def on_wire(values: np.ndarray, wire_dtype: str | None) -> np.ndarray:
    """What arrives of `values`."""
    if wire_dtype is None:
        return values
    return values.astype(_HALVES[wire_dtype]).astype(np.float32)


def gaussian(x: np.ndarray, k: int) -> np.ndarray:
    """Indices of the first K above a threshold, then of the first others: GaussianK of Shi et al."""
    size = np.abs(x)
    quantile = statistics.NormalDist().inv_cdf(1 - k / (2 * len(x)))
    threshold = abs(x.mean()) + np.float32(quantile) * x.std()
    for _ in range(20):
        above = np.count_nonzero(size > threshold)
        if 3 * k // 4 <= above <= 5 * k // 4:
            break
        threshold *= np.float32(1 / 1.02 if above < 3 * k // 4 else 1.02)
    return np.argsort(size <= threshold, kind="stable")[:k]


def sampled(x: np.ndarray, k: int) -> np.ndarray:
    """Indices of the K largest above a threshold, then of the first others: the sampling of Lin et al."""
    size = np.abs(x)
    sample = np.sort(size[::100])
    threshold = sample[-max(1, round(k / len(x) * len(sample)))]
    for _ in range(10):
        if np.count_nonzero(size > threshold) >= 4 * k // 5:
            break
        threshold *= np.float32(0.8)
    return top_k(np.where(size >= threshold, size, 0), k)


_SELECTORS = {"exact": top_k, "gaussian": gaussian, "sampled": sampled}


class _Model:
    """Node sums in shards, and residuals: float32 [H, S, n], padded with zeros.

    Row h of shard j is kept by the h-th, in rank order, of the workers that keep shard j of any node.
    """

    def __init__(self, nodes, n, density, error_feedback=True, wire_dtype=None, selector="exact"):
        sizes = {nodes.count(node) for node in nodes}
        flat = not self.hierarchical or len(sizes) > 1
        self.members = (
            [[rank] for rank in range(len(nodes))]
            if flat
            else [[r for r, at in enumerate(nodes) if at == node] for node in dict.fromkeys(nodes)]
        )
        self.holders, self.shards = len(self.members), 1 if flat else sizes.pop()
        self.n, self.length = n, -(-n // self.shards)
        self.density, self.wire_dtype, self.selector = density, wire_dtype, selector
        self.error_feedback = error_feedback and self.holders > 1
        self.residuals = np.zeros([self.holders, self.shards, self.length], np.float32)

    def step(self, gradients: np.ndarray) -> np.ndarray:
        """Returns the sum [N] of `gradients` [P, N]."""
        sums = np.zeros([self.holders, self.shards * self.length], np.float32)
        for holder, ranks in enumerate(self.members):
            for rank in ranks:
                sums[holder, : self.n] += gradients[rank]
        acc = sums.reshape(self.residuals.shape)
        for shard, ranks in enumerate(zip(*self.members, strict=True)):
            acc[:, shard] = acc[np.argsort(ranks), shard]
        acc = acc + self.residuals
        if self.holders == 1:
            return acc.ravel()[: self.n]
        total = np.stack([self.sum_shard(acc[:, j], j) for j in range(self.shards)])
        return total.ravel()[: self.n]

    def compress(self, acc: np.ndarray, times=1, selector="exact") -> np.ndarray:
        """What is sent of `acc` [n]: its K largest entries, or `times` as many; zero elsewhere."""
        sent = np.zeros_like(acc)
        chosen = _SELECTORS[selector](acc, min(len(acc), round(times * count(self.density, len(acc)))))
        sent[chosen] = on_wire(acc[chosen], self.wire_dtype)
        return sent

    def keep(self, shard, kept):
        if self.error_feedback:
            self.residuals[:, shard] = kept


class HiTopK(_Model):
    """Algorithm 2 of Shi et al., with the residual of each node's shard."""

    hierarchical = True

    def sum_shard(self, acc, shard):
        self.sent = np.stack([self.compress(a, selector=self.selector) for a in acc])
        self.keep(shard, acc - self.sent)
        total = np.zeros_like(acc[0])
        for part in self.sent:
            total += part
        return total


class DGC(HiTopK):
    """Momentum correction, momentum factor masking and local clipping of Lin et al."""

    def __init__(self, *args, momentum=0.9, nesterov=False, clip_norm=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.momentum, self.nesterov, self.clip_norm = np.float32(momentum), nesterov, clip_norm
        self.velocities = np.zeros_like(self.residuals)

    def step(self, gradients):
        if self.clip_norm is not None:
            limit = self.clip_norm / len(gradients) ** 0.5
            norms = np.linalg.norm(gradients, axis=1, keepdims=True)
            gradients = gradients * np.minimum(1, limit / norms).astype(np.float32)
        return super().step(gradients)

    def sum_shard(self, acc, shard):
        gradient = acc - self.residuals[:, shard]  # exact where the residual is
        velocity = self.momentum * self.velocities[:, shard] + gradient
        ahead = self.momentum * velocity + gradient if self.nesterov else velocity
        total = super().sum_shard(self.residuals[:, shard] + ahead, shard)
        self.velocities[:, shard] = np.where(self.sent != 0, 0, velocity)
        return total


class TopKAllGather(HiTopK):
    """Every worker a node."""

    hierarchical = False


class ShardedTopK(_Model):
    """Blocks, dealt in runs: selected by each node but its own, summed by one, selected there."""

    hierarchical = True

    def __init__(self, *args, applied=1, **kwargs):
        super().__init__(*args, **kwargs)
        self.applied = applied

    def sum_shard(self, acc, shard):
        run = min(512, self.length // (64 * self.holders)) or 1
        block_of = np.arange(self.length) // run % self.holders
        size = -(-self.length // (run * self.holders)) * run
        dealt = [np.flatnonzero(block_of == block) for block in range(self.holders)]
        blocks = np.zeros([self.holders, self.holders, size], np.float32)  # holder, block
        for block, where in enumerate(dealt):
            blocks[:, block, : len(where)] = acc[:, where]
        kept, result = blocks.copy(), np.zeros_like(blocks[0])
        for block in range(self.holders):
            total = np.zeros(size, np.float32)
            for holder in range(self.holders):
                if holder != block:
                    sent = self.compress(blocks[holder, block], selector=self.selector)
                    kept[holder, block] -= sent
                    total += sent
            total += blocks[block, block]
            result[block] = self.compress(total, self.applied)
            kept[block, block] = total - result[block]
        left, total = np.zeros_like(acc), np.zeros_like(acc[0])
        for block, where in enumerate(dealt):
            left[:, where] = kept[:, block, : len(where)]
            total[where] = result[block, : len(where)]
        self.keep(shard, left)
        return total


class GTopK(_Model):
    """Pairs merge their selections, one half of them leaving in each round; who drops keeps."""

    hierarchical = True

    def sum_shard(self, acc, shard):
        sent = [self.compress(a, selector=self.selector) for a in acc]
        kept = acc - np.stack(sent)
        standing = list(range(self.holders))
        while len(standing) > 1:
            for receiver, sender in zip(standing[::2], standing[1::2], strict=False):
                total = sent[receiver] + sent[sender]
                sent[receiver] = self.compress(total)
                kept[receiver] += total - sent[receiver]
            standing = standing[::2]
        self.keep(shard, kept)
        return sent[0]


class OkTopK(_Model):
    """Algorithms 1 and 2 of Li and Hoefler. Regions and balancing move sums about, and change none."""

    hierarchical = True

    def __init__(self, *args, threshold_period=32, **kwargs):
        super().__init__(*args, **kwargs)
        self.period, self.steps, self.overdue, self.absent = threshold_period, 0, False, False
        self.local = np.zeros(self.residuals.shape[:2])
        self.overall = np.zeros(self.shards)

    def step(self, gradients):
        self.absent = False
        result = super().step(gradients)
        self.steps += 1
        self.overdue = self.absent
        return result

    def sum_shard(self, acc, shard):
        due, k = self.steps % self.period == 0, count(self.density, acc.shape[1])
        for holder, a in enumerate(acc):
            passing = np.count_nonzero(a[np.abs(a) >= self.local[holder, shard]])
            if due or not 2 / 3 * k <= passing <= 5 / 4 * k:
                self.local[holder, shard] = self.kth(a)
        sent = np.where(np.abs(acc) >= self.local[:, shard, np.newaxis], acc, 0)
        total = np.zeros_like(acc[0])
        for part in sent:
            total += part
        if due or self.overdue:
            self.overall[shard] = self.kth(total)
        self.absent |= self.overall[shard] == 0
        applied = np.where(np.abs(total) >= self.overall[shard], total, 0).astype(np.float32)
        self.keep(shard, np.where((sent != 0) & (applied != 0), 0, acc))
        part = np.float32(max(1, np.count_nonzero(applied)) / k)
        self.overall[shard] = np.float32(self.overall[shard]) * part ** np.float32(1 / 16)
        return applied

    def kth(self, x):
        """The K-th largest magnitude; 0 where there are not as many that are not zero."""
        k = count(self.density, len(x))
        return 0 if k == len(x) or k > np.count_nonzero(x) else np.sort(np.abs(x))[-k]
