"""Testing: inference mode, large batches; the global model on one test set, or each client's own on its own.

With one test set per client there are three series, each pooled over its clients:

    sampled   the clients of the round          ever   those that ever took part          all   everybody

A client that keeps its half is tested with it (one that never took part, with the half it would start with).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from cutlayer.cut import blocks_of
from cutlayer.data.source import Source
from cutlayer.flat import Half, Vectors, Views, half
from cutlayer.metrics import Metric, Outputs, Scores, Series, score, series

BATCH = 512
Front = Callable[[int], Vectors | None]


class Evaluator:
    """Scores weights on test sources. `cut`: where fronts of their own are joined to the server half."""

    def __init__(
        self,
        model: nn.Module,
        tests: Sequence[Source],
        loss: Callable[[Tensor, Tensor], Tensor],
        device: torch.device,
        cut: int,
        per_client: bool,
        metric: Metric | None = None,
    ) -> None:
        self.tests, self.loss, self.per_client, self.metric = tests, loss, per_client, metric
        n = len(blocks_of(model))
        self.whole = half(model, 0, n, device)
        self.front, self.back = half(model, 0, cut + 1, device), half(model, cut + 1, n, device)
        for part in (self.whole, self.front, self.back):
            part.train(False)

    @torch.no_grad()
    def pooled(self, W: Vectors) -> Scores:
        """The global model on every test row."""
        chain = [(self.whole, self.whole.views(W))]
        return score([self._outputs(test, chain) for test in self.tests], self.metric)

    @torch.no_grad()
    def by_client(
        self, W: Vectors, front: Front, sampled: Collection[int], ever: Collection[int], everybody: bool
    ) -> Mapping[str, Series]:
        """The three series (only the first, unless `everybody`); `front(j)`: the half client j kept, if it did."""
        clients = range(len(self.tests)) if everybody else sorted(sampled)
        found = dict(zip(clients, self._each(W, front, clients), strict=True))
        groups = {"sampled": sampled, "ever": ever, "all": clients} if everybody else {"sampled": sampled}
        return {name: series([found[j] for j in sorted(group)], self.metric) for name, group in groups.items()}

    def _each(self, W: Vectors, front: Front, clients: Collection[int]) -> Iterator[Outputs]:
        whole = [(self.whole, self.whole.views(W))]
        back = (self.back, self.back.views(W.split(self.front.sizes)[1]))
        for j in clients:
            own = front(j)
            chain = whole if own is None else [(self.front, self.front.views(own)), back]
            yield self._outputs(self.tests[j], chain)

    def _outputs(self, test: Source, chain: Sequence[tuple[Half, Views]]) -> Outputs:
        device, total = self.whole.device, 0.0
        outs, ys = [], []
        for start in range(0, len(test), BATCH):
            x, y = test.take(np.arange(start, min(start + BATCH, len(test))), device)
            (first, views), *rest = chain
            out = first(x, views)
            for part, views in rest:
                out = part(out, views)
            total += float(self.loss(out, y)) * len(y)
            outs.append(out.cpu())
            ys.append(y.cpu())
        return Outputs(total, torch.cat(outs), torch.cat(ys)) if outs else Outputs(0.0, torch.empty(0), torch.empty(0))
