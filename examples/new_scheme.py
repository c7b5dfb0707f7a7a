"""A scheme of your own: a frozen dataclass that opens a session; here, one that keeps the median-loss surrogate.

Every client trains its own surrogate; at the end of the round the server half is not the mean but that of the
client whose last loss is the median. Not a good idea, but a whole one, and it runs wherever the others do.
"""

from dataclasses import dataclass
from typing import ClassVar

from cutlayer.data.tasks import digits
from cutlayer.models import mlp
from cutlayer.optim import step
from cutlayer.schemes.seam import Closed
from cutlayer.train import train


@dataclass(frozen=True)
class MedianServer:
    wave_order: ClassVar[str] = "together"
    carry: ClassVar[str] = "sync"

    def open(self, server, clients, kept):
        return Session(server, clients)


class Session:
    def __init__(self, server, clients):
        self.server, self.rows = server, server.surrogates(len(clients))
        self.row = {j: r for r, j in enumerate(clients)}
        self.memory, self.loss = server.memory(server.slots(len(clients))), {}

    def step(self, wave, smashed):
        replies = []
        for s in smashed:
            r = self.row[s.address.client]
            reply = self.server.backward(self.rows, r, s)
            step(self.server.optimizer, self.memory, r, self.rows.w[r], self.rows.g[r], self.server.eta)
            self.loss[s.address.client] = float(reply.loss)
            replies.append(reply)
        return replies

    def close(self):
        ranked = sorted(self.loss, key=self.loss.get)
        return Closed(self.rows.row(self.row[ranked[len(ranked) // 2]]))


if __name__ == "__main__":
    data = digits()
    clients = [(data.x[j::10], data.y[j::10]) for j in range(10)]
    model = mlp((1, 8, 8), 10)
    for scheme in ("fedavg", MedianServer()):
        result = train(model, clients, test=(data.x_test, data.y_test), scheme=scheme, rounds=4, batch_size=16)
        print(f"{scheme}: {[round(r.accuracy, 3) for r in result.history]}")
